import {
  csv,
  dashOf,
  grades,
  heightBetween,
  METRIC,
  numberText,
  ordered,
  passes,
  stopFrom,
  uprights,
  withRange
} from '../axes';
import { found, trial } from './given';

describe('the axes of parallel coordinates', () => {
  it('are logarithmic where the sweep says so, and give words a place each', () => {
    const [rate, kind, metric] = uprights(found());
    const trials = found().trials;
    expect(trials.map(one => rate.up(rate.of(one)!))).toEqual([
      0, 0.5, 1, 0.75
    ]);
    expect(rate.back(0.5)).toBeCloseTo(0.01);
    expect(trials.map(one => kind.up(kind.of(one)!))).toEqual([1, 0.5, 1, 0]);
    expect(kind.ticks.map(({ text }) => text)).toEqual(['null', 'sgd', 'adam']);
    expect(kind.said(1.2)).toBe('sgd');
    expect(trials.map(metric.of)).toEqual([0.5, 0.7, 0.9, null]);
    expect(metric.id).toBe(METRIC);
  });

  it('have no place for a value that a trial has not', () => {
    const [rate, kind] = uprights(found());
    expect(rate.of(trial(5, {}, 1))).toBeNull();
    expect(kind.of(trial(5, { kind: 'lion' }, 1))).toBeNull();
    const early = uprights(found({ metric_axis: null }));
    expect(early[2].ticks).toEqual([]);
  });

  it('show only the whole numbers of a range of them', () => {
    const layers = { kind: 'numbers', name: 'layers' } as const;
    const axis = { ...layers, low: 1, high: 4, logarithmic: false };
    const [upright] = uprights(
      found({ axes: [{ ...axis, whole: true, at: null }] })
    );
    expect(upright.ticks.map(({ at }) => at)).toEqual([1, 2, 3, 4]);
    expect(upright.stops).toEqual([1, 2, 3, 4]);
  });
});

describe('ranges', () => {
  it('leave the trials that lie within all of them', () => {
    const axes = uprights(found());
    const left = (ranges: Map<string, readonly [number, number]>) =>
      found()
        .trials.filter(one => passes(one, axes, ranges))
        .map(({ number }) => number);
    expect(left(new Map())).toEqual([1, 2, 3, 4]);
    expect(left(new Map([['0', [1e-3, 1]]]))).toEqual([2, 3, 4]);
    expect(
      left(
        new Map([
          ['0', [1e-3, 1]],
          [METRIC, [0.5, 0.9]]
        ])
      )
    ).toEqual([2, 3]);
  });

  it('are none where they have all of the axis', () => {
    const [rate] = uprights(found());
    const chosen = withRange(new Map(), rate, [1e-3, 1]);
    expect([...chosen]).toEqual([['0', [1e-3, 1]]]);
    expect(withRange(chosen, rate, [1e-4, 1]).size).toBe(0);
    expect(withRange(chosen, rate, null).size).toBe(0);
  });

  it('end at the next stop, of words at the next word', () => {
    const [rate, kind] = uprights(found());
    expect(stopFrom(kind, 2, -1)).toBe(1);
    expect(stopFrom(kind, 2, 1)).toBe(2);
    expect(stopFrom(rate, 1e-4, 1)).toBeGreaterThan(1e-4);
    expect(stopFrom(rate, 1, 1)).toBe(1);
  });
});

describe('lines', () => {
  it('have the grade of their place among those that count', () => {
    const given = found();
    expect([...grades(given)].map(([job, grade]) => [job[6], grade])).toEqual([
      ['3', 0],
      ['2', 2],
      ['1', 4]
    ]);
    const small = grades({ ...given, maximize: false });
    expect(small.get('first-1-abcdefgh')).toBe(0);
  });

  it('have breaks where the trial does not count', () => {
    expect(dashOf('succeeded')).toBe('');
    const dashes = ['pruned', 'failed', 'stopped', 'running'].map(dashOf);
    expect(new Set(dashes).size).toBe(4);
    expect(dashes).not.toContain('');
  });

  it('are found where they are drawn between two axes', () => {
    expect(heightBetween(10, 30, 0)).toBeCloseTo(10, 1);
    expect(heightBetween(10, 30, 0.5)).toBeCloseTo(20, 1);
    expect(heightBetween(10, 30, 1)).toBeCloseTo(30, 1);
  });
});

test('the table has those without a value last, in both directions', () => {
  const axes = uprights(found());
  const numbers = (descending: boolean) =>
    ordered(found().trials, axes, { column: METRIC, descending }).map(
      ({ number }) => number
    );
  expect(numbers(true)).toEqual([3, 2, 1, 4]);
  expect(numbers(false)).toEqual([1, 2, 3, 4]);
});

test('a file of the trials has no formula for a spreadsheet', () => {
  const text = csv(
    found({ trials: [trial(1, { lr: 1, kind: '=1+1' }, -0.5)] })
  );
  expect(text).toBe(
    "trial,job,state,lr,kind,accuracy\n1,first-1-abcdefgh,succeeded,1,'=1+1,-0.5\n"
  );
});

it('writes numbers as the table does', () => {
  expect([1e-5, 1e-4, 1e-3, 0.01, 1e5].map(numberText)).toEqual([
    '1e-5',
    '0.0001',
    '0.001',
    '0.01',
    '1e+5'
  ]);
});
