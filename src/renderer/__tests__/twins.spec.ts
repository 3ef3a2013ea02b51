import { leaveTwins, showLastTwin } from '../twins';

const HIDDEN = 'jp-Hp-twin';

function area(...jobs: string[]): HTMLElement {
  const node = document.createElement('div');
  node.className = 'jp-OutputArea';
  node.innerHTML = jobs
    .map(
      job =>
        `<div class="jp-OutputArea-child"><div data-job="${job}"></div></div>`
    )
    .join('');
  return node;
}

const cards = (node: HTMLElement) => [
  ...node.querySelectorAll<HTMLElement>('[data-job]')
];
const shown = (node: HTMLElement) =>
  [...node.children].map(child => !child.classList.contains(HIDDEN));

describe('cards of one job in one output area', () => {
  it('are shown once, the last of them', () => {
    const node = area('a', 'b', 'a');
    showLastTwin(cards(node)[2]);
    expect(shown(node)).toEqual([false, true, true]);
  });

  it('come back when the last of them goes', () => {
    const node = area('a', 'a');
    const [, last] = cards(node);
    showLastTwin(last);
    leaveTwins(last);
    expect(shown(node)).toEqual([true, true]);
  });

  it('of other output areas are left alone', () => {
    const node = area('a', 'a');
    node.children[0].append(area('a'));
    showLastTwin(node.querySelector<HTMLElement>('.jp-OutputArea [data-job]')!);
    const inner = node.querySelector<HTMLElement>('.jp-OutputArea')!;
    expect(shown(inner)).toEqual([true]);
    expect(shown(node)).toEqual([false, true]);
  });

  it('outside an output area are left alone', () => {
    const alone = document.createElement('div');
    alone.dataset.job = 'a';
    expect(() => showLastTwin(alone)).not.toThrow();
  });
});
