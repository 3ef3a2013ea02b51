/** What the comparison draws: curves by step or time, smoothed, on a scale, and as a table of values. Pure. */

import type { IComparison } from '../api';

/** The curves of some runs. */
export type ICurves = Pick<IComparison, 'jobs' | 'curves' | 'times_s'>;

/** A place of a curve; `low` and `high` where it stands for several steps. */
export interface IPoint {
  x: number;
  y: number;
  low: number;
  high: number;
  /** No line leads here from the point before. */
  apart?: boolean;
}

/** A run's curve; `smooth` has one value for each point. */
export interface ILine {
  run: number;
  points: readonly IPoint[];
  smooth: readonly number[];
}

export type Axis = 'step' | 'time';
export type Range = readonly [number, number];

export interface IView {
  axis: Axis;
  logarithmic: boolean;
  /** From 0, as it is, to almost 1. */
  smoothing: number;
  /** The part of the axis that is shown; null for all of it. */
  range: Range | null;
}

/** All of the curves, as they are. */
export const WHOLE: IView = {
  axis: 'step',
  logarithmic: false,
  smoothing: 0,
  range: null
};

/** The curves of one logged value. */
export function lines(
  found: ICurves,
  name: string,
  view: IView,
  hidden: ReadonlySet<number>
): ILine[] {
  return found.curves[name].flatMap((places, run) => {
    const times = found.times_s[name][run];
    const points = places.map(([step, low, high, last], at) => ({
      x: view.axis === 'step' ? step : times[at],
      y: last,
      low,
      high
    }));
    const drawn = view.logarithmic
      ? points.filter(point => point.low > 0)
      : points;
    return drawn.length === 0 || hidden.has(run)
      ? []
      : [{ run, points: drawn, smooth: smoothed(drawn, view.smoothing) }];
  });
}

/** An exponential average that begins at the first value and is not drawn towards 0. */
export function smoothed(points: readonly IPoint[], weight: number): number[] {
  let sum = 0;
  let weights = 0;
  return points.map(point => {
    sum = sum * weight + point.y * (1 - weight);
    weights = weights * weight + (1 - weight);
    return sum / weights;
  });
}

/** The least and the greatest value of the axis. */
export function span(all: readonly ILine[]): Range {
  let first = Infinity;
  let last = -Infinity;
  for (const { points } of all) {
    first = Math.min(first, points[0].x);
    last = Math.max(last, points[points.length - 1].x);
  }
  return first < last ? [first, last] : [first - 0.5, first + 0.5];
}

/** The least and the greatest of the values between, with some room; powers of ten stay inside a logarithmic scale. */
export function heights(
  all: readonly ILine[],
  [from, to]: Range,
  logarithmic: boolean,
  smooths: boolean
): Range {
  let low = Infinity;
  let high = -Infinity;
  for (const line of all) {
    line.points.forEach((point, at) => {
      if (from <= point.x && point.x <= to) {
        low = Math.min(low, smooths ? line.smooth[at] : point.low);
        high = Math.max(high, smooths ? line.smooth[at] : point.high);
      }
    });
  }
  if (low > high) {
    return logarithmic ? [0.1, 1] : [0, 1];
  }
  if (logarithmic) {
    const room = Math.max(1.05, Math.pow(high / low, 0.05));
    return [low / room, high * room];
  }
  const room = (high - low) * 0.06 || Math.abs(high) * 0.05 || 1;
  return [low >= 0 ? Math.max(0, low - room) : low - room, high + room];
}

/** From a value to its place between 0 and 1. */
export function scaled([low, high]: Range, logarithmic: boolean) {
  const by = logarithmic ? Math.log : (value: number) => value;
  const first = by(low);
  const width = by(high) - first || 1;
  return (value: number) => (by(value) - first) / width;
}

/** Round numbers in a range, about as many as `most`. */
export function ticks(
  [low, high]: Range,
  most: number,
  logarithmic = false
): number[] {
  if (logarithmic && high / low >= 10) {
    const powers: number[] = [];
    for (
      let power = Math.floor(Math.log10(low));
      power <= Math.ceil(Math.log10(high));
      power++
    ) {
      const factors = high / low < 1000 ? [1, 2, 5] : [1];
      powers.push(...factors.map(factor => factor * 10 ** power));
    }
    const inside = powers.filter(value => low <= value && value <= high);
    const every = Math.ceil(inside.length / (most + 2));
    return inside.filter((_, at) => at % every === 0);
  }
  const rough = (high - low) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step =
    power * ([1, 2, 2.5, 5, 10].find(factor => factor * power >= rough) ?? 10);
  const found: number[] = [];
  for (let at = Math.ceil(low / step - 1e-9); at * step <= high; at++) {
    found.push(Number((at * step).toPrecision(12)));
  }
  return found;
}

/** The point of a line that is next to a place on the axis; -1 where it has none in the range. */
export function nearest(line: ILine, x: number, [from, to]: Range): number {
  let best = -1;
  line.points.forEach((point, at) => {
    const closer =
      best < 0 || Math.abs(point.x - x) < Math.abs(line.points[best].x - x);
    if (from <= point.x && point.x <= to && closer) {
      best = at;
    }
  });
  return best;
}

/** All values of all runs, one place a line, with the lowest and the highest of the steps for which it stands. */
export function csv(found: ICurves): string {
  const rows = ['run,metric,step,seconds,value,lowest,highest'];
  for (const [name, curves] of Object.entries(found.curves)) {
    curves.forEach((places, run) => {
      places.forEach(([step, low, high, last], at) => {
        const seconds = found.times_s[name][run][at];
        const values = [step, seconds, last, low, high].join(',');
        rows.push(`${field(found.jobs[run])},${field(name)},${values}`);
      });
    });
  }
  return rows.join('\n') + '\n';
}

/** A field of a CSV file; one that a spreadsheet would take for a formula is told to be text. */
export function field(text: string): string {
  const safe = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replace(/"/g, '""')}"` : safe;
}

/** A row of a difference side by side; null where one side has no such line. */
export interface IDiffRow {
  left: string | null;
  right: string | null;
  kind: 'same' | 'changed' | 'place';
}

/** The lines of a unified diff side by side. */
export function sideBySide(diff: readonly string[]): IDiffRow[] {
  const rows: IDiffRow[] = [];
  let gone: string[] = [];
  let come: string[] = [];
  const flush = () => {
    for (let at = 0; at < Math.max(gone.length, come.length); at++) {
      rows.push({
        left: gone[at] ?? null,
        right: come[at] ?? null,
        kind: 'changed'
      });
    }
    gone = [];
    come = [];
  };
  diff.forEach((line, at) => {
    if (at < 2 && /^(---|\+\+\+) /.test(line)) {
      return;
    }
    const text = line.slice(1);
    if (line.startsWith('-')) {
      gone.push(text);
    } else if (line.startsWith('+')) {
      come.push(text);
    } else {
      flush();
      rows.push(
        line.startsWith(' ')
          ? { left: text, right: text, kind: 'same' }
          : { left: line, right: null, kind: 'place' }
      );
    }
  });
  flush();
  return rows;
}
