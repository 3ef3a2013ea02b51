/** Times and rules of schedules in words. Pure. */

import type { TranslationBundle } from '@jupyterlab/translation';

import type { ISchedule } from '../api';
import { formatClockwork } from '../format';

/** A time as clocks of a zone show it, such as `Fri, 27 Nov, 06:30`; a zone that this browser lacks is left out. */
export function timeIn(zone: string, time_s: number): string {
  const time = new Date(time_s * 1000);
  const parts: Intl.DateTimeFormatOptions = {
    weekday: 'short',
    day: 'numeric',
    month: 'short',
    hour: '2-digit',
    minute: '2-digit',
    hourCycle: 'h23'
  };
  try {
    return time.toLocaleString([], { ...parts, timeZone: zone });
  } catch {
    return time.toLocaleString([], { ...parts, timeZoneName: 'short' });
  }
}

/** How long a time is away: `in 2 d 3 h`, `in 42 s`. */
export function until(
  time_s: number,
  now_s: number,
  trans: TranslationBundle
): string {
  const left_s = time_s - now_s;
  if (left_s <= 0) {
    return trans.__('now');
  }
  const hours = Math.floor(left_s / 3600);
  return hours < 48
    ? trans.__('in %1', formatClockwork(left_s))
    : trans.__('in %1 days', Math.floor(hours / 24));
}

/** What a schedule does about times that were missed or come too early. */
export function rules(schedule: ISchedule, trans: TranslationBundle): string {
  const words = [
    schedule.catch_up === 'none'
      ? trans.__('Missed times are left out')
      : trans.__('One run makes up for missed times'),
    schedule.overlap === 'allow'
      ? trans.__('a run begins although the last one goes on')
      : trans.__('a time is left out while the last run goes on')
  ];
  if (schedule.keep_runs) {
    words.push(
      trans._n(
        'the newest %1 run that has ended is kept',
        'the newest %1 runs that have ended are kept',
        schedule.keep_runs
      )
    );
  }
  return words.join('; ');
}
