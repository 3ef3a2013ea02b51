/**
 * One card per job and output area.
 *
 * With jupyter-collaboration, JupyterLab adds an output that a kernel has changed to the pages of other people once
 * more, at the end, and removes another one in its place. The notebook itself holds it once.
 */

const AREA = '.jp-OutputArea';
const OUTPUT = '.jp-OutputArea-child';
const HIDDEN = 'jp-Hp-twin';

/** A card goes, or is about to show another job. */
export function leaveTwins(card: HTMLElement): void {
  showLastTwin(card, card);
  card.closest(OUTPUT)?.classList.remove(HIDDEN);
}

/** Show only the last of an area's cards of one job, without the one that is `leaving`. */
export function showLastTwin(
  card: HTMLElement,
  leaving: HTMLElement | null = null
): void {
  const area = card.closest(AREA);
  const job = card.dataset.job;
  if (area === null || !job) {
    return;
  }
  const twins = [...area.querySelectorAll<HTMLElement>('[data-job]')].filter(
    one =>
      one.dataset.job === job && one !== leaving && one.closest(AREA) === area
  );
  twins.forEach((one, place) => {
    const isLast = place === twins.length - 1;
    one.closest(OUTPUT)?.classList.toggle(HIDDEN, !isLast);
  });
}
