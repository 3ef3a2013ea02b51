import * as React from 'react';
import { act } from 'react';

import type { Api, ITrials } from '../../api';
import { click, draw, find, host, shared } from '../../__tests__/page';
import { Trials } from '../source';
import { TrialsView } from '../view';
import { found, trial } from './given';

(globalThis as any).ResizeObserver = class {
  observe(): void {}
  disconnect(): void {}
};

/** The view of what a server answers, and what it was asked. */
async function look(answer: ITrials | Error) {
  const asked: unknown[][] = [];
  const opened: string[] = [];
  const api = {
    trials: async (...words: unknown[]) => {
      asked.push(words);
      if (answer instanceof Error) {
        throw answer;
      }
      return answer;
    }
  } as unknown as Api;
  const given = shared({ api }, { openJob: job => opened.push(job) });
  const source = new Trials(given.model, { sweep: 'first-abcdefgh' });
  draw(<TrialsView source={source} />, given);
  await act(() => source.refresh());
  return { source, asked, opened };
}

const rows = () =>
  [...host.querySelectorAll('tbody tr')].map(
    row => row.querySelector('button')!.textContent
  );

it('draws a line and a row for each trial, and opens the best one', async () => {
  const { opened } = await look(found());
  expect(host.querySelectorAll('.jp-Hp-trial')).toHaveLength(4);
  expect(find('.jp-Hp-trial[data-best]').dataset.grade).toBe('0');
  const pruned = find('.jp-Hp-trial:not([data-grade])');
  expect(pruned.getAttribute('stroke-dasharray')).toBe('9 4');
  expect(rows()).toEqual(['trial 3', 'trial 2', 'trial 1', 'trial 4']);
  expect(find('.jp-Hp-trialslegend').textContent).toContain('Pruned');
  await click('.jp-Hp-button[data-primary]');
  expect(opened).toEqual(['first-3-abcdefgh']);
});

it('leaves lines and rows by keys at an axis', async () => {
  await look(found());
  const handle = find('[aria-label="kind, from"]');
  const press = (key: string) =>
    act(() => {
      handle.dispatchEvent(
        new KeyboardEvent('keydown', { key, bubbles: true })
      );
    });
  press('ArrowUp');
  press('ArrowUp');
  expect(handle.getAttribute('aria-valuetext')).toBe('adam');
  expect(rows()).toEqual(['trial 3', 'trial 1']);
  expect(host.querySelectorAll('.jp-Hp-trial[data-out]')).toHaveLength(2);
  expect(find('[role="status"]').textContent).toBe('2 of 4 trials');
  press('Escape');
  expect(rows()).toHaveLength(4);
});

it('shows the line of the row that has the focus', async () => {
  await look(found());
  act(() => find('tbody tr button').focus());
  expect(find('.jp-Hp-readouts').textContent).toContain('trial 3 · Succeeded');
  expect(host.querySelector('.jp-Hp-shown')).not.toBeNull();
});

it('calls the best value the best so far only while trials run', async () => {
  const words = () => find('.jp-Hp-trialshead .jp-Hp-quiet').textContent;
  await look(found({ live: true }));
  expect(words()).toContain('The best accuracy so far: 0.9');
  act(() => draw(<></>));
  await look(found());
  expect(words()).toContain('The best accuracy: 0.9');
});

it('says how far a sweep is that goes on', async () => {
  const going = trial(2, { lr: 0.01, kind: 'sgd' }, null, { state: 'running' });
  await look(
    found({ live: true, best: '', metric_axis: null, trials: [going] })
  );
  expect(find('[role="status"]').textContent).toBe(
    '1 of 4 trials so far · 0 have ended'
  );
  expect(find('.jp-Hp-button[data-primary]').hasAttribute('disabled')).toBe(
    true
  );
});

it('shows the first rows of many trials, and the others when asked', async () => {
  const many = Array.from({ length: 200 }, (_, at) =>
    trial(at + 1, { lr: 0.01, kind: 'sgd' }, at)
  );
  await look(found({ trials: many, wanted: 200 }));
  expect(host.querySelectorAll('.jp-Hp-trial')).toHaveLength(200);
  expect(rows()).toHaveLength(60);
  const more = [...host.querySelectorAll('button')].find(
    button => button.textContent === 'Show 140 more trials'
  )!;
  await act(async () => more.click());
  expect(rows()).toHaveLength(200);
});

it('judges jobs that are no sweep by what is chosen', async () => {
  const { asked } = await look(
    found({ sweep: false, id: '', metrics: ['loss', 'accuracy'] })
  );
  await click('input[type="checkbox"]');
  expect(asked.at(-1)).toEqual([
    { sweep: 'first-abcdefgh' },
    { metric: 'accuracy', maximize: false }
  ]);
});

it('says why there is nothing to see', async () => {
  await look(new Error('no sweep'));
  expect(find('.jp-Hp-banner').textContent).toContain('no sweep');
});
