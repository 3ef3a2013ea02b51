import * as React from 'react';

/** So near to an end, in pixels, a reader is there. */
const NEAR = 8;
const NEAR_TOP = 40;
/** So near to the top, older pages are fetched before the reader is there. */
const AHEAD = 800;

/**
 * Keeps the place of a reader in a box whose content changes at both ends: at the end where it follows the newest, and
 * else the line at the top. Calls `begin` and `end` where the reader scrolls there. Gives the box's `onScroll`.
 */
export function useScroll(
  box: React.RefObject<HTMLDivElement | null>,
  paged: boolean,
  begin: () => void,
  end: () => void
): () => void {
  const atEnd = React.useRef(true);
  const place = React.useRef<IReadingPlace | null>(null);
  const wasPaged = React.useRef(paged);

  React.useLayoutEffect(() => {
    const element = box.current;
    if (!element) {
      return;
    }
    if (paged && !wasPaged.current) {
      const below = place.current?.below ?? 0; // other lines stand here now, as far from the end
      element.scrollTop = element.scrollHeight - below;
    } else if (!paged && (atEnd.current || wasPaged.current)) {
      element.scrollTop = element.scrollHeight;
    } else if (paged && place.current) {
      restore(element, place.current);
    }
    wasPaged.current = paged;
    place.current = placeIn(element);
  });

  return () => {
    const element = box.current!;
    const { scrollTop, scrollHeight, clientHeight } = element;
    const before = place.current;
    place.current = placeIn(element);
    atEnd.current = scrollTop + clientHeight >= scrollHeight - NEAR;
    const up = before !== null && scrollTop < before.top;
    const down = before !== null && scrollTop > before.top;
    if (up && scrollTop < (paged ? AHEAD : NEAR_TOP)) {
      begin();
    } else if (paged && down && atEnd.current) {
      end();
    }
  };
}

interface IReadingPlace {
  top: number;
  /** From the top to the end of the content. */
  below: number;
  /** The line at the top, and how far above it the box begins. */
  key: string | null;
  offset: number;
}

function placeIn(element: HTMLElement): IReadingPlace {
  const { scrollTop, scrollHeight } = element;
  const line = lineAt(element, scrollTop);
  return {
    top: scrollTop,
    below: scrollHeight - scrollTop,
    key: line?.dataset.key ?? null,
    offset: line ? scrollTop - line.offsetTop : 0
  };
}

/** The first line that ends below the top; found by halving, because lines are in order. */
function lineAt(element: HTMLElement, top: number): HTMLElement | null {
  const lines = element.children;
  let low = 0;
  let high = lines.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    const line = lines[middle] as HTMLElement;
    if (line.offsetTop + line.offsetHeight <= top || !line.dataset.key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return (lines[low] as HTMLElement) ?? null;
}

function restore(element: HTMLElement, place: IReadingPlace): void {
  const line =
    place.key === null
      ? null
      : element.querySelector<HTMLElement>(
          `[data-key="${CSS.escape(place.key)}"]`
        );
  element.scrollTop = line
    ? line.offsetTop + place.offset
    : element.scrollHeight - place.below;
}
