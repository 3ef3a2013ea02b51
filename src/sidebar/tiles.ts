/** Which blocks of tiles of the smallest size are near the part of the list that can be seen. */

/** A tile of the smallest size and the gap below it; a heading and its gap: pixels, as in base.css. */
export const PITCH = 9;
export const HEADING = 23;
/** Blocks so many pixels beyond the edges are drawn, so that scrolling shows no gap. */
const OVERSCAN = 160;

/** What is seen of a list that scrolls, in pixels; ``width`` is that of a row. */
export interface IPlace {
  top: number;
  height: number;
  width: number;
}

/** The height of a block of so many tiles, with the gap below it. */
export function heightOf(
  tiles: number,
  headed: boolean,
  width: number
): number {
  const columns = Math.max(1, Math.floor((width + 1) / PITCH));
  return Math.ceil(tiles / columns) * PITCH + (headed ? HEADING : 0);
}

/** The first block that is drawn, and the one after the last. */
export function near(
  heights: readonly number[],
  place: IPlace
): [number, number] {
  const [from, to] = [
    place.top - OVERSCAN,
    place.top + place.height + OVERSCAN
  ];
  let first = 0;
  let above = 0;
  while (first < heights.length - 1 && above + heights[first] <= from) {
    above += heights[first++];
  }
  let last = first;
  while (last < heights.length && above < to) {
    above += heights[last++];
  }
  return [first, last];
}
