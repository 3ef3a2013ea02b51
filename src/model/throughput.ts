/** How fast a job trains, as a person experiences it; the twin of `rate` and `step_time` in `core/kept.py`. */

import type { Commit } from './views';

/** The last steps, from which the step time and the throughput are computed. */
export const COMMITS_KEPT = 16;

/** Samples committed per second of wall time from the first commit to the last; null where no time passed. */
export function throughput(commits: readonly Commit[]): number | null {
  const [, first_s, before] = commits[0];
  const [, last_s, after] = commits[commits.length - 1];
  return last_s > first_s ? (after - before) / (last_s - first_s) : null;
}

/** The median of the wall time from commit to commit, in seconds; null before the second commit. */
export function stepTime(commits: readonly Commit[]): number | null {
  const times: number[] = [];
  for (let at = 1; at < commits.length; at++) {
    const [step, time_s] = commits[at - 1];
    times.push((commits[at][1] - time_s) / (commits[at][0] - step));
  }
  times.sort((a, b) => a - b);
  return times.length ? Math.max(0, times[times.length >> 1]) : null;
}
