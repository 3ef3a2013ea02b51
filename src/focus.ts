/** Finds and keeps the place of the keyboard: where the element that has it goes away, what is nearest to it gets it. */

import { DisposableDelegate, IDisposable } from '@lumino/disposable';

const FOCUSABLE =
  'button:not(:disabled), [href], input:not(:disabled), select:not(:disabled), summary, [tabindex="0"]';

/** A box around the element, and how many others one could focus come before it there. */
interface IPlace {
  box: HTMLElement;
  before: number;
}

/**
 * Keep the focus within `host`. Without this, a button that goes away, because what it offers is not possible any more,
 * sends the keyboard back to the beginning of the page.
 */
export function keepFocus(host: HTMLElement): IDisposable {
  let last: HTMLElement | null = null;
  let places: IPlace[] = [];

  const onFocus = (event: FocusEvent) => {
    last = event.target as HTMLElement;
    places = [];
    // A table that draws only what is on the screen looks after its own rows.
    if (last.closest('[role=grid]')) {
      last = null;
      return;
    }
    for (
      let box = last.parentElement;
      box && host.contains(box);
      box = box.parentElement
    ) {
      places.push({ box, before: focusable(box).indexOf(last) });
    }
  };
  const onBlur = (event: FocusEvent) => {
    const left = event.target;
    // Some browsers say so of an element that goes away, too: that is known a moment later.
    queueMicrotask(() => {
      if (last === left && last?.isConnected && !last.matches(':disabled')) {
        last = null;
      }
    });
  };
  const onChange = () => {
    const active = document.activeElement ?? document.body;
    if (
      last === null ||
      (last.isConnected && !last.matches(':disabled')) ||
      ![document.body, last].includes(active as HTMLElement)
    ) {
      return;
    }
    last = null;
    for (const { box, before } of places) {
      const found = host.contains(box) ? focusable(box) : [];
      if (found.length > 0) {
        const at = Math.max(0, Math.min(before, found.length - 1));
        found[at].focus({ preventScroll: true });
        return;
      }
    }
  };
  const observer = new MutationObserver(onChange);
  observer.observe(host, {
    childList: true,
    subtree: true,
    attributeFilter: ['disabled']
  });
  host.addEventListener('focusin', onFocus);
  host.addEventListener('focusout', onBlur);
  return new DisposableDelegate(() => {
    observer.disconnect();
    host.removeEventListener('focusin', onFocus);
    host.removeEventListener('focusout', onBlur);
  });
}

/**
 * Bring the keyboard into `host`, where it is not there: to the first element that takes it, else to `host` itself. The
 * palette gives the keyboard to the main area after the command: this is done once that has happened.
 */
export async function takeFocus(host: HTMLElement): Promise<void> {
  await new Promise(resolve => setTimeout(resolve));
  if (host.contains(document.activeElement)) {
    return;
  }
  const [first] = focusable(host);
  if (!first) {
    host.tabIndex = -1; // it may be focused from here; Tab does not stop there
  }
  (first ?? host).focus();
}

function focusable(box: HTMLElement): HTMLElement[] {
  return [...box.querySelectorAll<HTMLElement>(FOCUSABLE)];
}
