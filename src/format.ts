/** Numbers, durations and bytes as people write them; durations and bytes are the twins of `core/units.py`. */

import type { TranslationBundle } from '@jupyterlab/translation';

/** `12 ms`, `1.5 s`, `3 min 20 s`, `2 h 5 min`. */
export function formatDuration(seconds: number): string {
  if (seconds < 0.9995) {
    return `${Math.round(seconds * 1000)} ms`;
  }
  if (seconds < 59.95) {
    return `${seconds.toFixed(1)} s`;
  }
  const whole = Math.round(seconds);
  const minutes = Math.floor(whole / 60);
  if (minutes < 60) {
    const rest = whole % 60;
    return rest ? `${minutes} min ${rest} s` : `${minutes} min`;
  }
  const hours = Math.floor(minutes / 60);
  const rest = minutes % 60;
  return rest ? `${hours} h ${rest} min` : `${hours} h`;
}

/** A duration that goes on, in whole seconds: `5 s`, `3 min 20 s`. */
export function formatClockwork(seconds: number): string {
  return seconds < 59.5
    ? `${Math.round(seconds)} s`
    : formatDuration(Math.round(seconds));
}

/** Three significant digits, decimal units. */
export function formatBytes(count: number): string {
  let value = count;
  for (const unit of ['B', 'kB', 'MB', 'GB', 'TB']) {
    if (Math.abs(value) < 1000) {
      return unit === 'B'
        ? `${value.toFixed(0)} B`
        : `${threeDigits(value)} ${unit}`;
    }
    value /= 1000;
  }
  return `${threeDigits(value)} PB`;
}

/** `950`, `12.3 k`, `5.24 M`. */
export function formatCount(count: number): string {
  let value = count;
  for (const unit of ['', ' k', ' M', ' G']) {
    if (Math.abs(value) < 1000) {
      return unit === '' && Number.isInteger(value)
        ? `${value}`
        : `${threeDigits(value)}${unit}`;
    }
    value /= 1000;
  }
  return `${threeDigits(value)} T`;
}

/** Whole numbers in groups of three, with a narrow no-break space. */
export function formatInteger(value: number): string {
  return `${Math.round(value)}`.replace(/\B(?=(\d{3})+$)/g, '\u202f');
}

/** Dollars as they are written: `$5.00`, `$25,600,000`; the twin of `core/units.py`. */
export function formatMoney(amount: number): string {
  const digits = amount === 0 || Math.abs(amount) >= 100 ? 0 : 2;
  return amount.toLocaleString('en-US', {
    style: 'currency',
    currency: 'USD',
    minimumFractionDigits: digits,
    maximumFractionDigits: digits
  });
}

/**
 * A loss with as many digits as are read: `2.3145`, `0.00123`, `1.20e-6`. After a step, no number is one that JSON
 * has not: `nan`.
 */
export function formatLoss(loss: number | null, step = 0): string {
  if (loss === null) {
    return step > 0 ? 'nan' : '–';
  }
  const size = Math.abs(loss);
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) {
    return loss.toExponential(2);
  }
  return size >= 100 ? loss.toFixed(1) : loss.toFixed(4);
}

/** `14:05:09` in the reader's time zone. */
export function formatClock(time_s: number): string {
  return new Date(time_s * 1000).toLocaleTimeString([], {
    hour: '2-digit',
    minute: '2-digit',
    second: '2-digit',
    hourCycle: 'h23'
  });
}

function threeDigits(value: number): string {
  return `${Number(value.toPrecision(3))}`;
}

/** The label of a word of the server; words of a newer server are shown as they are. */
export function labelOf(
  labels: Readonly<Record<string, string>>,
  word: string
): string {
  return Object.hasOwn(labels, word) ? labels[word] : word;
}

/** `make`, called once per translation: thousands of rows and tiles ask for the same words. */
export function oncePer<T>(
  make: (trans: TranslationBundle) => T
): (trans: TranslationBundle) => T {
  const made = new WeakMap<TranslationBundle, T>();
  return trans => {
    let found = made.get(trans);
    if (found === undefined) {
      found = make(trans);
      made.set(trans, found);
    }
    return found;
  };
}

/** What tells two jobs of one name apart: the end of an id. */
export function shortId(id: string): string {
  return id.slice(id.lastIndexOf('-') + 1);
}

/** A job in a question: `train (z4ba4hm7)`. */
export function namedJob(job: { id: string; name: string }): string {
  return job.name ? `${job.name} (${shortId(job.id)})` : job.id;
}
