/** A line of samples, drawn only where there were some: a node that was away used nothing. */

/** A time without samples is a gap where it is so many times as long as it usually is between two. */
const GAP = 3;

/** Whether a new stroke begins at each of these ascending times. */
export function strokes(times_s: readonly number[]): boolean[] {
  const between = times_s
    .map((time_s, at) => time_s - times_s[at - 1])
    .slice(1);
  const usual = [...between].sort((one, other) => one - other)[
    Math.floor((between.length - 1) / 2)
  ];
  return times_s.map((_, at) => at === 0 || between[at - 1] > GAP * usual);
}
