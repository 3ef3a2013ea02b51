/** The columns of the table of runs: their names, what they show, and how they sort. Pure. */

import { PathExt } from '@jupyterlab/coreutils';
import type { TranslationBundle } from '@jupyterlab/translation';

import type { IRun } from '../api';
import { stateLabel } from '../components/parts';
import { formatDuration, formatInteger, formatLoss } from '../format';
import { said } from '../said/said';
import { IIndexed, seconds } from './filter';

type Key = number | string | null;

export interface IColumn {
  id: string;
  label: string;
  width: number;
  numeric?: boolean;
  /** By what it sorts; null sorts behind everything, in both directions. */
  key: (run: IRun) => Key;
  text: (run: IRun) => string;
  title?: (run: IRun) => string;
}

const METRIC = 'metric:';
/** Columns of logged values that are there without being chosen. */
const METRICS = 4;

/** All columns; those of logged values by how many runs have them. */
export function columns(
  rows: readonly IIndexed[],
  trans: TranslationBundle
): IColumn[] {
  const text = (
    id: string,
    label: string,
    width: number,
    value: (run: IRun) => string,
    title?: (run: IRun) => string
  ): IColumn => ({
    id,
    label,
    width,
    key: run => value(run).toLowerCase() || null,
    text: value,
    title
  });
  // A column that is there to be written in needs little room while it is empty.
  const has = (any: (run: IRun) => boolean) => rows.some(({ run }) => any(run));
  const number = (
    id: string,
    label: string,
    width: number,
    key: (run: IRun) => number | null,
    format: (value: number, run: IRun) => string
  ): IColumn => ({
    id,
    label,
    width,
    numeric: true,
    key,
    text: run => {
      const value = key(run);
      return value === null ? '' : format(value, run);
    }
  });
  return [
    text('name', trans.__('Name'), 200, run => run.name),
    text(
      'state',
      trans.__('State'),
      104,
      run => stateLabel(run.state, trans),
      run => said(run.reason, trans)
    ),
    text(
      'tags',
      trans.__('Tags'),
      has(run => run.tags.length > 0) ? 150 : 84,
      run => run.tags.join(' ')
    ),
    number('step', trans.__('Steps'), 104, run => run.step || null, stepsText),
    number(
      'loss',
      trans.__('Loss'),
      82,
      run => run.loss,
      loss => formatLoss(loss)
    ),
    ...metricNames(rows).map(name =>
      number(
        METRIC + name,
        name,
        96,
        run => run.metrics[name] ?? null,
        value => formatLoss(value)
      )
    ),
    number(
      'goodput',
      trans.__('Goodput'),
      78,
      run => run.goodput,
      value => `${(100 * value).toFixed(1)} %`
    ),
    number('time', trans.__('Time'), 100, seconds, formatDuration),
    {
      ...number(
        'submitted',
        trans.__('Submitted'),
        124,
        run => run.submitted_s,
        value => moment(value)
      ),
      title: run =>
        run.submitted_s === null
          ? ''
          : new Date(run.submitted_s * 1000).toLocaleString()
    },
    number('nodes', trans.__('Nodes'), 64, run => run.nodes, formatInteger),
    text('sweep', trans.__('Sweep'), 130, run => run.sweep),
    text('backend', trans.__('Backend'), 90, run => run.backend),
    text('queue', trans.__('Queue'), 90, run => run.queue),
    number(
      'priority',
      trans.__('Priority'),
      72,
      run => run.priority || null,
      value => `${value}`
    ),
    number(
      'incidents',
      trans.__('Incidents'),
      80,
      run => run.incidents || null,
      formatInteger
    ),
    text('person', trans.__('Person'), 90, run => run.person),
    text(
      'notebook',
      trans.__('Notebook'),
      150,
      run => PathExt.basename(run.notebook),
      run => run.notebook
    ),
    text(
      'note',
      trans.__('Note'),
      has(run => run.note !== '') ? 200 : 84,
      run => run.note,
      run => run.note
    )
  ];
}

/** The columns that are there first: those in which some run has something. */
export function usual(
  all: readonly IColumn[],
  rows: readonly IIndexed[]
): Set<string> {
  const always = new Set(['name', 'state', 'tags', 'note']);
  let metrics = 0;
  const shown = all.filter(column => {
    if (column.id.startsWith(METRIC)) {
      return ++metrics <= METRICS;
    }
    return (
      always.has(column.id) || rows.some(({ run }) => column.key(run) !== null)
    );
  });
  return new Set(shown.map(column => column.id));
}

/** The names of logged values, those of the most runs first. */
function metricNames(rows: readonly IIndexed[]): string[] {
  const counts = new Map<string, number>();
  for (const { run } of rows) {
    for (const name of Object.keys(run.metrics)) {
      counts.set(name, (counts.get(name) ?? 0) + 1);
    }
  }
  return [...counts.keys()].sort((a, b) => counts.get(b)! - counts.get(a)!);
}

/** Runs by a column; the same ones in the order in which they were submitted, the newest first. */
export function sorted(
  rows: readonly IIndexed[],
  column: IColumn,
  descending: boolean
): IIndexed[] {
  const sign = descending ? -1 : 1;
  const keyed = rows.map(row => ({ row, key: column.key(row.run) }));
  keyed.sort((a, b) => {
    if (a.key === null || b.key === null) {
      return (
        Number(a.key === null) - Number(b.key === null) || newest(a.row, b.row)
      );
    }
    return a.key < b.key ? -sign : a.key > b.key ? sign : newest(a.row, b.row);
  });
  return keyed.map(({ row }) => row);
}

function newest(a: IIndexed, b: IIndexed): number {
  return (b.run.submitted_s ?? 0) - (a.run.submitted_s ?? 0);
}

function stepsText(step: number, run: IRun): string {
  return run.steps && step <= run.steps
    ? `${formatInteger(step)} / ${formatInteger(run.steps)}`
    : formatInteger(step);
}

/** `14:05` today, `26 Nov 14:05` this year, else `26 Nov 2025`. */
export function moment(time_s: number, now = new Date()): string {
  const time = new Date(time_s * 1000);
  const clock = time.toLocaleTimeString([], {
    hour: '2-digit',
    minute: '2-digit',
    hourCycle: 'h23'
  });
  if (time.toDateString() === now.toDateString()) {
    return clock;
  }
  const day = { day: 'numeric', month: 'short' } as const;
  return time.getFullYear() === now.getFullYear()
    ? `${time.toLocaleDateString([], day)} ${clock}`
    : time.toLocaleDateString([], { ...day, year: 'numeric' });
}
