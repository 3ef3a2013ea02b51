import * as React from 'react';
import { act } from 'react';

import { click, draw, fill, find, host, shared } from '../../__tests__/page';
import type { Api, IComparison } from '../../api';
import { Comparison } from '../comparison';

/** What the server answers: the first run is compared with each other. */
function answer(jobs: string[]): IComparison {
  const [first, ...others] = jobs;
  return {
    jobs,
    runs: jobs.map(id => ({
      id,
      name: id.slice(0, 1),
      state: 'succeeded',
      tags: [],
      sentence: '',
      source_difference: []
    })),
    identity: others.map(other => ({
      jobs: [first, other],
      sentence: `${first} and ${other} are the same`,
      sessions: {}
    })),
    differences: {},
    equal: {},
    metrics: {},
    curves: {},
    times_s: {},
    environments: true
  };
}

const IDS = ['a-1', 'b-1', 'c-1'];
const told = () =>
  [...host.querySelectorAll('.jp-Hp-identity li')].map(one => one.textContent);

async function show(
  ids: string[],
  compareJobs = async (jobs: string[]) => answer(jobs)
): Promise<void> {
  const api = { compareJobs } as unknown as Api;
  draw(<Comparison ids={ids} />, shared({ api }));
  await act(async () => undefined);
}

it('compares the others with the run that a person chooses', async () => {
  await show(IDS);
  expect(told()[0]).toBe('a-1 and b-1 are the same.');
  await click('[aria-label="Draw b-1"]');
  const choice = find('label select') as HTMLSelectElement;
  expect(choice.labels![0].textContent).toContain('Compare the others with');
  fill(choice, 'c-1');
  await act(async () => undefined);
  expect(told()).toEqual([
    'c-1 and a-1 are the same.',
    'c-1 and b-1 are the same.'
  ]);
  const hidden = host.querySelectorAll('.jp-Hp-swatch[aria-pressed=false]');
  expect([...hidden].map(one => one.getAttribute('aria-label'))).toEqual([
    'Draw b-1'
  ]);
});

it('shows what was chosen last, whichever answer comes last', async () => {
  const slow: Record<string, () => void> = {};
  await show(IDS, jobs =>
    jobs[0] === 'b-1'
      ? new Promise(resolve => (slow.b = () => resolve(answer(jobs))))
      : Promise.resolve(answer(jobs))
  );
  const choice = find('label select');
  fill(choice, 'b-1');
  fill(choice, 'c-1');
  await act(async () => undefined);
  await act(async () => slow.b());
  expect(told()[0]).toBe('c-1 and a-1 are the same.');
});

it('leaves no choice between two runs', async () => {
  await show(IDS.slice(0, 2));
  expect(host.querySelector('label select')).toBeNull();
});
