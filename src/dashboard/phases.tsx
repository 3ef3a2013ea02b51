/** What the time of a member's steps was: computing, exchanging, waiting for the slowest, and the rest. */

import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { IResources } from '../api';
import type { HistoryPoint } from '../model/views';

/** The usual time of a sample, of which a place of time may have several. */
const SAMPLE_S = 10;
const FIRST_S = 1;
/** Up to so many steps on the axis are drawn one by one. */
const MOST_STEPS = 80;
const WHOLE = 1000;

export const PHASES = ['computes', 'exchanges', 'waiting', 'rest'] as const;
export type Phase = (typeof PHASES)[number];
/** The parts of a time, which are 1 together. */
export type Parts = Record<Phase, number>;

export interface ISample {
  from_s: number;
  to_s: number;
  parts: Parts;
}

/** The words of the legend. */
export function phaseWords(trans: TranslationBundle): Record<Phase, string> {
  return {
    computes: trans.__('computes'),
    exchanges: trans.__('exchanges'),
    waiting: trans.__('waits for the slowest'),
    rest: trans.__('the rest of a step')
  };
}

/** The samples of a node in which it was in steps, in the order of time. */
export function samplesOf(
  used: IResources | null | undefined,
  node: string
): ISample[] {
  const phases =
    used?.phases && Object.hasOwn(used.phases, node) ? used.phases[node] : null;
  if (!used || !phases) {
    return [];
  }
  const { start_s, times_s, width_s = 1 } = used;
  const found: ISample[] = [];
  let last: number | null = null;
  times_s.forEach((time_s, at) => {
    const { compute, exchange, waits } = phases;
    if (compute[at] === null) {
      return;
    }
    // A wide place is full of samples; else it has the end of one, which began where the one before ended.
    const took_s =
      width_s > SAMPLE_S
        ? width_s
        : Math.min(SAMPLE_S, last === null ? FIRST_S : time_s - last);
    last = time_s;
    const parts = [compute, exchange, waits].map(one => (one[at] ?? 0) / WHOLE);
    const sum = parts.reduce((a, b) => a + b);
    if (sum > 0) {
      const to_s =
        start_s + time_s + (width_s > SAMPLE_S ? (width_s - SAMPLE_S) / 2 : 0);
      const [computes, exchanges, waiting] = parts;
      const rest = Math.max(0, 1 - sum);
      found.push({
        from_s: to_s - took_s,
        to_s,
        parts: { computes, exchanges, waiting, rest }
      });
    }
  });
  return found;
}

/** The samples of all nodes that have some. */
export function allSamples(
  used: IResources | null | undefined
): Map<string, ISample[]> {
  return new Map(
    Object.keys(used?.phases ?? {})
      .map((node): [string, ISample[]] => [node, samplesOf(used, node)])
      .filter(([, samples]) => samples.length > 0)
  );
}

/** Of samples what is in these spans. A node that had no member for a part of a sample was in steps in the other part. */
export function within(
  samples: readonly ISample[],
  spans: readonly { from_s: number; to_s: number }[]
): ISample[] {
  return samples.flatMap(one => {
    const kept = spans
      .map(span => ({
        from_s: Math.max(span.from_s, one.from_s),
        to_s: Math.min(span.to_s, one.to_s)
      }))
      .filter(({ from_s, to_s }) => from_s < to_s);
    const all = kept.reduce((sum, { from_s, to_s }) => sum + to_s - from_s, 0);
    const spent = 1 - one.parts.rest;
    const more = Math.min((one.to_s - one.from_s) / all, 1 / spent);
    const parts = {
      computes: one.parts.computes * more,
      exchanges: one.parts.exchanges * more,
      waiting: one.parts.waiting * more,
      rest: Math.max(0, 1 - spent * more)
    };
    return kept.map(stretch => ({ ...stretch, parts }));
  });
}

/** The parts of a stretch of time, as far as it was sampled; null where it was not. */
export function partsOf(
  samples: readonly ISample[],
  from_s: number,
  to_s: number
): Parts | null {
  const sums: Parts = { computes: 0, exchanges: 0, waiting: 0, rest: 0 };
  let all = 0;
  for (const sample of samples) {
    const shared =
      Math.min(to_s, sample.to_s) - Math.max(from_s, sample.from_s);
    if (shared > 0) {
      all += shared;
      PHASES.forEach(phase => (sums[phase] += sample.parts[phase] * shared));
    }
  }
  if (all === 0) {
    return null;
  }
  PHASES.forEach(phase => (sums[phase] /= all));
  return sums;
}

/** The parts in words. */
export function tellParts(parts: Parts, trans: TranslationBundle): string {
  const words = phaseWords(trans);
  return PHASES.map(
    phase => `${words[phase]} ${Math.round(100 * parts[phase])} %`
  ).join(', ');
}

/** Steps that follow one another in a history, where all that are in this time are known and there are few. */
export function stepsIn(
  history: readonly HistoryPoint[],
  from_s: number,
  to_s: number
): [number, number][] {
  const found: [number, number][] = [];
  for (let at = 1; at < history.length; at++) {
    const [before, , begin_s] = history[at - 1];
    const [step, , end_s] = history[at];
    if (end_s > from_s && begin_s < to_s) {
      if (step !== before + 1 || found.length >= MOST_STEPS) {
        return [];
      }
      found.push([begin_s, end_s]);
    }
  }
  return found;
}

/**
 * The parts over a lane: as heights from above for a time that has many steps, as lengths in the order of a step where
 * single steps can be seen. What was not sampled stays in the colour of training.
 */
export function PhasesOf(props: {
  samples: readonly ISample[];
  history: readonly HistoryPoint[];
  from_s: number;
  to_s: number;
}): JSX.Element | null {
  const { samples, from_s, to_s } = props;
  const seen = samples.filter(one => one.to_s > from_s && one.from_s < to_s);
  if (seen.length === 0) {
    return null;
  }
  const x = (time_s: number) =>
    ((Math.max(from_s, Math.min(to_s, time_s)) - from_s) / (to_s - from_s)) *
    100;
  const paths: Partial<Record<Phase, string>> = {};
  const draw = (
    phase: Phase,
    [begin_s, end_s]: [number, number],
    [top, bottom]: [number, number]
  ) => {
    const [left, right] = [x(begin_s), x(end_s)];
    if (right > left && bottom > top) {
      const box = `M${left.toFixed(3)} ${top.toFixed(3)}H${right.toFixed(3)}V${bottom.toFixed(3)}H${left.toFixed(3)}Z`;
      paths[phase] = (paths[phase] ?? '') + box;
    }
  };
  const steps = stepsIn(props.history, from_s, to_s);
  for (const [begin_s, end_s] of steps) {
    const middle_s = (begin_s + end_s) / 2;
    const sample = seen.find(
      one => one.from_s <= middle_s && middle_s < one.to_s
    );
    if (sample) {
      let at_s = begin_s;
      for (const phase of [
        'computes',
        'waiting',
        'exchanges',
        'rest'
      ] as const) {
        const until_s = at_s + sample.parts[phase] * (end_s - begin_s);
        draw(phase, [at_s, until_s], [0, 1]);
        at_s = until_s;
      }
    }
  }
  for (const one of steps.length > 0 ? [] : seen) {
    let top = 0;
    for (const phase of ['rest', 'waiting', 'exchanges', 'computes'] as const) {
      draw(phase, [one.from_s, one.to_s], [top, top + one.parts[phase]]);
      top += one.parts[phase];
    }
  }
  return (
    <svg
      className="jp-Hp-phases"
      viewBox="0 0 100 1"
      preserveAspectRatio="none"
      aria-hidden
    >
      {Object.entries(paths).map(([phase, path]) => (
        <path key={phase} data-role={phase} d={path} />
      ))}
    </svg>
  );
}
