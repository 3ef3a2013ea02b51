/** Parallel coordinates: where a trial crosses each axis, which trials the chosen ranges leave, and who is better. Pure. */

import type { ITrial, ITrialAxis, ITrials, TrialValue } from '../api';
import { field, Range, scaled, ticks } from '../compare/curves';

/** An axis as it is drawn. A word's coordinate is its place, counted from below. */
export interface IUpright {
  /** Of the axis among the others: a parameter may have the metric's name. */
  id: string;
  name: string;
  logarithmic: boolean;
  /** The coordinates at the bottom and at the top. */
  ends: Range;
  /** Where a trial crosses it; null where it has no value. */
  of: (trial: ITrial) => number | null;
  /** From a coordinate to the part of the height, 0 at the bottom. */
  up: (coordinate: number) => number;
  /** The inverse. */
  back: (share: number) => number;
  ticks: readonly { at: number; text: string }[];
  /** Where a range begins or ends that is chosen with keys, from below. */
  stops: readonly number[];
  /** A coordinate in words. */
  said: (coordinate: number) => string;
}

/** The chosen part of some axes, by their ids. */
export type Ranges = ReadonlyMap<string, Range>;

export const METRIC = 'metric';
const MOST_TICKS = 5;
const STEPS = 40;
/** How many colours tell who is better. */
export const GRADES = 5;

export function uprights(found: ITrials): IUpright[] {
  const axes = found.axes.map((axis, at) =>
    upright(axis, `${at}`, trial =>
      Object.hasOwn(trial.values, axis.name)
        ? trial.values[axis.name]
        : undefined
    )
  );
  const metric: ITrialAxis = found.metric_axis ?? {
    kind: 'numbers',
    name: found.metric,
    low: 0,
    high: 1,
    logarithmic: false,
    whole: false,
    at: []
  };
  return [
    ...axes,
    upright(metric, METRIC, trial => trial.counted ?? undefined)
  ];
}

type Value = TrialValue | undefined;

function upright(
  axis: ITrialAxis,
  id: string,
  value: (trial: ITrial) => Value
): IUpright {
  return axis.kind === 'words'
    ? ofWords(axis.name, axis.values, id, value)
    : ofNumbers(axis, id, value);
}

function ofNumbers(
  axis: Extract<ITrialAxis, { kind: 'numbers' }>,
  id: string,
  value: (trial: ITrial) => Value
): IUpright {
  const { name, low, high, logarithmic, whole } = axis;
  const ends: Range = [low, high];
  const up = scaled(ends, logarithmic);
  const back = (share: number) =>
    logarithmic
      ? low * Math.pow(high / low, share)
      : low + share * (high - low);
  const at = (axis.at ?? ticks(ends, MOST_TICKS, logarithmic))
    .filter(number => !whole || Number.isInteger(number))
    .map(number => ({ at: number, text: numberText(number) }));
  const parts = Array.from({ length: STEPS + 1 }, (_, step) => {
    const there = back(step / STEPS);
    return whole ? Math.round(there) : Number(there.toPrecision(4));
  });
  const stops = axis.at?.length ? axis.at : [low, ...parts.slice(1, -1), high];
  return {
    id,
    name,
    logarithmic,
    ends,
    of: trial => {
      const found = value(trial);
      return typeof found === 'number' ? found : null;
    },
    up,
    back,
    ticks: apart(at, up),
    stops: [...new Set(stops)].sort((a, b) => a - b),
    said: numberText
  };
}

/** Words have a place each, the first at the top, as in the report. */
function ofWords(
  name: string,
  values: readonly TrialValue[],
  id: string,
  value: (trial: ITrial) => Value
): IUpright {
  const count = values.length;
  const inset = count < 3 ? 0.5 : 0;
  const ends: Range = [-inset, count - 1 + inset];
  const up = scaled(ends, false);
  const places = new Map(values.map((one, at) => [one, count - 1 - at]));
  const text = (place: number) => `${values[count - 1 - place]}`;
  const stops = values.map((_, place) => place);
  return {
    id,
    name,
    logarithmic: false,
    ends,
    of: trial => {
      const found = value(trial);
      return found === undefined ? null : (places.get(found) ?? null);
    },
    up,
    back: share => ends[0] + share * (ends[1] - ends[0]),
    ticks: apart(
      stops.map(at => ({ at, text: text(at) })),
      up
    ),
    stops,
    said: place => text(Math.max(0, Math.min(count - 1, Math.round(place))))
  };
}

/** The least part of the height between two labels. */
const APART = 0.045;

/** The labels that do not cover each other. */
function apart<T extends { at: number }>(
  all: readonly T[],
  up: (coordinate: number) => number
): T[] {
  let last = -Infinity;
  return [...all]
    .sort((a, b) => a.at - b.at)
    .filter(({ at }) => {
      const fits = up(at) - last >= APART;
      last = fits ? up(at) : last;
      return fits;
    });
}

/** `0.0001`, `1e-5`, `12000`: as the table has them. */
export function numberText(value: number): string {
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-4 || size >= 1e5)
    ? Number(value.toPrecision(3)).toExponential()
    : `${Number(value.toPrecision(4))}`;
}

/** Whether a trial lies within all of the chosen ranges. */
export function passes(
  trial: ITrial,
  axes: readonly IUpright[],
  ranges: Ranges
): boolean {
  return axes.every(axis => {
    const range = ranges.get(axis.id);
    if (range === undefined) {
      return true;
    }
    const at = axis.of(trial);
    return at !== null && range[0] <= at && at <= range[1];
  });
}

/** Job to its grade, 0 for the better ones, of the trials that count. */
export function grades(found: ITrials): Map<string, number> {
  const known = found.trials.filter(trial => trial.counted !== null);
  const sign = found.maximize ? -1 : 1;
  known.sort((a, b) => sign * (a.counted! - b.counted!));
  const last = Math.max(1, known.length - 1);
  return new Map(
    known.map(({ job }, place) => [
      job,
      Math.min(GRADES - 1, Math.floor((place / last) * GRADES))
    ])
  );
}

/** What a state looks like where colours do not tell it; a line without breaks is that of a trial that counts. */
export function dashOf(state: string): string {
  const dashes: Record<string, string> = {
    succeeded: '',
    pruned: '9 4',
    failed: '2 3',
    lost: '2 3',
    stopped: '9 3 2 3'
  };
  return dashes[state] ?? '1 5';
}

/** A smooth line through the points, as in the report. */
export function path(points: readonly (readonly [number, number])[]): string {
  return points
    .map(([x, y], at) => {
      if (at === 0) {
        return `M${x.toFixed(1)} ${y.toFixed(1)}`;
      }
      const [before, high] = points[at - 1];
      const middle = ((before + x) / 2).toFixed(1);
      return `C${middle} ${high.toFixed(1)} ${middle} ${y.toFixed(1)} ${x.toFixed(1)} ${y.toFixed(1)}`;
    })
    .join('');
}

/** How high such a line is at a part of the way from one axis to the next. */
export function heightBetween(from: number, to: number, share: number): number {
  // The share of the way is 1.5 (t - t²) + t³ of the curve's own variable, and grows with it.
  let low = 0;
  let high = 1;
  for (let round = 0; round < 20; round++) {
    const t = (low + high) / 2;
    if (1.5 * (t - t * t) + t ** 3 < share) {
      low = t;
    } else {
      high = t;
    }
  }
  const t = (low + high) / 2;
  return from + (to - from) * (3 * t * t - 2 * t ** 3);
}

/** The stop above or below a coordinate. */
export function stopFrom(
  axis: IUpright,
  coordinate: number,
  by: 1 | -1
): number {
  const stops = axis.stops;
  const near = (axis.ends[1] - axis.ends[0]) * 1e-9;
  return by > 0
    ? (stops.find(stop => stop > coordinate + near) ?? axis.ends[1])
    : ([...stops].reverse().find(stop => stop < coordinate - near) ??
        axis.ends[0]);
}

/** The ranges with another one; one that has all of its axis is none. */
export function withRange(
  ranges: Ranges,
  axis: IUpright,
  range: Range | null
): Ranges {
  const after = new Map(ranges);
  after.delete(axis.id);
  if (range && (range[0] > axis.ends[0] || range[1] < axis.ends[1])) {
    after.set(axis.id, range);
  }
  return after;
}

export type Order = { column: string; descending: boolean };

/** Trials by a column: `trial`, `state`, or the id of an axis; those without a value are the last. */
export function ordered(
  trials: readonly ITrial[],
  axes: readonly IUpright[],
  { column, descending }: Order
): ITrial[] {
  const axis = axes.find(one => one.id === column);
  const key = (trial: ITrial) =>
    column === 'state' ? trial.state : axis ? axis.of(trial) : trial.number;
  const sign = descending ? -1 : 1;
  return [...trials].sort((one, other) => {
    const [a, b] = [key(one), key(other)];
    if (a === null || b === null) {
      return (
        Number(a === null) - Number(b === null) || one.number - other.number
      );
    }
    return a < b ? -sign : a > b ? sign : one.number - other.number;
  });
}

/** The trials as a table. */
export function csv(found: ITrials): string {
  const names = found.axes.map(axis => axis.name);
  const head = ['trial', 'job', 'state', ...names, found.metric].map(field);
  const rows = found.trials.map(trial =>
    [
      trial.number,
      trial.job,
      trial.state,
      ...names.map(name => trial.values[name] ?? ''),
      trial.counted ?? ''
    ]
      .map(value =>
        typeof value === 'number' ? `${value}` : field(`${value}`)
      )
      .join(',')
  );
  return [head.join(','), ...rows].join('\n') + '\n';
}
