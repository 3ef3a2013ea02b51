/** Times as a person writes them, in this browser's time zone, which may be another one than the server's. */

const CLOCK = /^(\d{1,2}):(\d{2})(?::(\d{2}))?$/;
const DATE = /^\d{4}-\d{2}-\d{2}([T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?)?$/;

/**
 * A moment that the server takes for the same one, wherever it is; what is no time of this zone stays as it is written.
 *
 * `15:00` is the last one before `now`, or the first one after `since`.
 */
export function absolute(text: string, now: Date, since?: string): string {
  const clock = CLOCK.exec(text);
  if (clock !== null) {
    return onClock(clock.slice(1), now, since)?.toISOString() ?? text;
  }
  if (DATE.test(text)) {
    const day = text.length === 10 ? `${text}T00:00` : text.replace(' ', 'T');
    const moment = new Date(day);
    return Number.isNaN(moment.getTime()) ? text : moment.toISOString();
  }
  return text;
}

function onClock(
  parts: (string | undefined)[],
  now: Date,
  since?: string
): Date | null {
  const [hour, minute, second] = parts.map(part => Number(part ?? 0));
  if (hour > 23 || minute > 59 || second > 59) {
    return null;
  }
  const moment = new Date(now);
  moment.setHours(hour, minute, second, 0);
  if (moment > now) {
    moment.setDate(moment.getDate() - 1);
  }
  const begin = since === undefined ? NaN : Date.parse(since);
  if (moment.getTime() < begin) {
    moment.setDate(moment.getDate() + 1);
  }
  return moment;
}
