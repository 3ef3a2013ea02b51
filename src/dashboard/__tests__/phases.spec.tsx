import { nullTranslator } from '@jupyterlab/translation';
import * as React from 'react';

import { draw, find, host } from '../../__tests__/page';
import type { IResources } from '../../api';
import type { HistoryPoint } from '../../model/views';
import {
  partsOf,
  PhasesOf,
  samplesOf,
  stepsIn,
  tellParts,
  within
} from '../phases';

const trans = nullTranslator.load('jupyter_hyperpod');

/** Of a node that computed half of the time, then less and less. */
function used(width_s: number, times_s: number[]): IResources {
  const column = (first: number) => times_s.map((_, at) => first + at);
  return {
    start_s: 1000,
    times_s,
    width_s,
    phases: {
      'node-1': {
        compute: times_s.map((_, at) => 500 - 100 * at),
        exchange: column(100),
        waits: column(200),
        steps: column(5)
      }
    }
  } as unknown as IResources;
}

it('samples begin where the ones before ended', () => {
  const found = samplesOf(used(1, [2, 4, 60]), 'node-1');
  expect(found.map(one => [one.from_s, one.to_s])).toEqual([
    [1001, 1002],
    [1002, 1004],
    [1050, 1060]
  ]);
  expect(found[0].parts.rest).toBeCloseTo(0.2);
  expect(samplesOf(used(1, [2]), 'node-2')).toEqual([]);
  expect(samplesOf(null, 'node-1')).toEqual([]);
});

it('wide places follow one another', () => {
  const found = samplesOf(used(40, [15, 55]), 'node-1');
  expect(found.map(one => [one.from_s, one.to_s])).toEqual([
    [990, 1030],
    [1030, 1070]
  ]);
});

it('nothing is told of a time without steps or samples', () => {
  const none = used(1, [2, 4]);
  const zeros = [null, 0];
  none.phases = {
    'node-1': { compute: zeros, exchange: zeros, waits: zeros, steps: zeros }
  };
  expect(samplesOf(none, 'node-1')).toEqual([]);
});

it('the parts of a stretch of time are weighed by time', () => {
  const samples = samplesOf(used(1, [2, 4]), 'node-1');
  const parts = partsOf(samples, 1001.5, 1002.5)!;
  expect(parts.computes).toBeCloseTo(0.45);
  expect(partsOf(samples, 1100, 1200)).toBeNull();
  expect(tellParts(parts, trans)).toBe(
    'computes 45 %, exchanges 10 %, waits for the slowest 20 %, the rest of a step 25 %'
  );
});

const history = (...steps: number[]) =>
  steps.map((step): HistoryPoint => [step, 1, 1000 + step, 2]);

it('single steps are known where none was left out', () => {
  expect(stepsIn(history(1, 2, 3, 4), 1001.5, 1003)).toEqual([
    [1001, 1002],
    [1002, 1003]
  ]);
  expect(stepsIn(history(1, 2, 4, 6), 1001.5, 1003)).toEqual([]);
  const many = history(...Array.from({ length: 500 }, (_, at) => at + 1));
  expect(stepsIn(many, 1000, 2000)).toEqual([]);
});

it('are heights from afar, and lengths in the order of a step close up', () => {
  const samples = [
    {
      from_s: 1000,
      to_s: 1010,
      parts: { computes: 0.5, exchanges: 0.25, waiting: 0.125, rest: 0.125 }
    }
  ];
  const paths = () =>
    Object.fromEntries(
      [...host.querySelectorAll<SVGElement>('path')].map(path => [
        path.dataset.role,
        path.getAttribute('d')
      ])
    );
  const range = { from_s: 1000, to_s: 1020 };
  draw(<PhasesOf samples={samples} history={[]} {...range} />);
  expect(paths()).toEqual({
    rest: 'M0.000 0.000H50.000V0.125H0.000Z',
    waiting: 'M0.000 0.125H50.000V0.250H0.000Z',
    exchanges: 'M0.000 0.250H50.000V0.500H0.000Z',
    computes: 'M0.000 0.500H50.000V1.000H0.000Z'
  });
  draw(<PhasesOf samples={samples} history={history(0, 8)} {...range} />);
  expect(paths().exchanges).toBe('M0.000 0.250H50.000V0.500H0.000Z');
  draw(<PhasesOf samples={samples} history={history(0, 1)} {...range} />);
  expect(paths()).toEqual({
    computes: 'M0.000 0.000H2.500V1.000H0.000Z',
    waiting: 'M2.500 0.000H3.125V1.000H2.500Z',
    exchanges: 'M3.125 0.000H4.375V1.000H3.125Z',
    rest: 'M4.375 0.000H5.000V1.000H4.375Z'
  });
  expect(find('svg').getAttribute('aria-hidden')).toBe('true');
});

it('a node that was a member for half of a sample was in steps in that half', () => {
  const sample = {
    from_s: 1000,
    to_s: 1010,
    parts: { computes: 0.25, exchanges: 0.125, waiting: 0, rest: 0.625 }
  };
  expect(within([sample], [{ from_s: 1005, to_s: 1100 }])).toEqual([
    {
      from_s: 1005,
      to_s: 1010,
      parts: { computes: 0.5, exchanges: 0.25, waiting: 0, rest: 0.25 }
    }
  ]);
  const [short] = within([sample], [{ from_s: 1009, to_s: 1100 }]);
  expect(short.parts.computes).toBeCloseTo(2 / 3);
  expect(short.parts.rest).toBeCloseTo(0);
  expect(within([sample], [{ from_s: 1010, to_s: 1100 }])).toEqual([]);
});
