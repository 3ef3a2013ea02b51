import type { IComparison } from '../../api';
import {
  csv,
  heights,
  IView,
  lines,
  nearest,
  scaled,
  sideBySide,
  smoothed,
  span,
  ticks
} from '../curves';

const VIEW: IView = {
  axis: 'step',
  logarithmic: false,
  smoothing: 0,
  range: null
};

const FOUND = {
  jobs: ['a-1', 'b-2'],
  curves: {
    loss: [
      [
        [1, 4, 4, 4],
        [2, 1, 3, 2],
        [4, -1, 1, 1]
      ],
      [[2, 2, 2, 2]]
    ],
    '=evil, "name"': [[], [[1, 1, 1, 1]]]
  },
  times_s: {
    loss: [[0.5, 1, 2], [8]],
    '=evil, "name"': [[], [1]]
  }
} as unknown as IComparison;

it('curves go by step or by time, and a logarithmic scale has none below 0', () => {
  const all = lines(FOUND, 'loss', VIEW, new Set());
  expect(all.map(line => line.points.map(point => point.x))).toEqual([
    [1, 2, 4],
    [2]
  ]);
  const byTime = lines(FOUND, 'loss', { ...VIEW, axis: 'time' }, new Set([0]));
  expect(byTime.map(line => [line.run, line.points[0].x])).toEqual([[1, 8]]);
  const log = lines(FOUND, 'loss', { ...VIEW, logarithmic: true }, new Set());
  expect(log[0].points.map(point => point.x)).toEqual([1, 2]);
  expect(span(all)).toEqual([1, 4]);
  expect(nearest(all[0], 2.9, [1, 4])).toBe(1);
  expect(nearest(all[1], 2.9, [3, 4])).toBe(-1);
});

it('smoothing begins at the first value and follows the rest', () => {
  const points = [4, 2, 2, 2].map((y, x) => ({ x, y, low: y, high: y }));
  expect(smoothed(points, 0)).toEqual([4, 2, 2, 2]);
  const smooth = smoothed(points, 0.5);
  expect(smooth[0]).toBe(4);
  expect(smooth[1]).toBeCloseTo(8 / 3);
  expect(smooth[3]).toBeGreaterThan(2);
});

it('the scale shows all values in the range, and round numbers', () => {
  const all = lines(FOUND, 'loss', VIEW, new Set());
  const [low, high] = heights(all, [1, 4], false, false);
  expect(low).toBeLessThan(-1);
  expect(high).toBeGreaterThan(4);
  expect(heights(all, [4, 5], false, false)[1]).toBeLessThan(2);
  expect(heights([], [0, 1], true, false)).toEqual([0.1, 1]);
  expect(ticks([0, 400], 4)).toEqual([0, 100, 200, 300, 400]);
  expect(ticks([0.01, 100], 6, true)).toEqual([0.01, 0.1, 1, 10, 100]);
  expect(ticks([1.2, 1.3], 4).length).toBeGreaterThan(2);
  expect(scaled([1, 100], true)(10)).toBeCloseTo(0.5);
});

it('values are saved as a table that no spreadsheet takes for formulas', () => {
  expect(csv(FOUND).split('\n')).toEqual([
    'run,metric,step,seconds,value,lowest,highest',
    'a-1,loss,1,0.5,4,4,4',
    'a-1,loss,2,1,2,1,3',
    'a-1,loss,4,2,1,-1,1',
    'b-2,loss,2,8,2,2,2',
    'b-2,"\'=evil, ""name""",1,1,1,1,1',
    ''
  ]);
});

it('a unified diff is shown side by side', () => {
  const diff = [
    '--- a-1',
    '+++ b-2',
    '@@ -1,3 +1,4 @@',
    ' same',
    '-old',
    '+new',
    '+more',
    ' end'
  ];
  expect(sideBySide(diff)).toEqual([
    { left: '@@ -1,3 +1,4 @@', right: null, kind: 'place' },
    { left: 'same', right: 'same', kind: 'same' },
    { left: 'old', right: 'new', kind: 'changed' },
    { left: null, right: 'more', kind: 'changed' },
    { left: 'end', right: 'end', kind: 'same' }
  ]);
});
