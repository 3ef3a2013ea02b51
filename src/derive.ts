/** Values computed from a view for display: pure functions. */

import type { IOutputPiece } from './api';
import { TERMINAL_STATES } from './model/events';
import type {
  HistoryPoint,
  IIncident,
  IJobSummary,
  IJobView,
  IOutput,
  IUserError,
  TrendPoint
} from './model/views';

/** Steps in all, or null where the number is unknown: the cell may begin further loops than its first. */
function total(job: IJobSummary): number | null {
  const planned = job.session?.total_steps;
  return planned && job.step <= planned ? planned : null;
}

/** Fraction of the steps that are done, or null where the total is unknown. */
export function progress(job: IJobSummary): number | null {
  const steps = total(job);
  return steps ? job.step / steps : null;
}

/** Why a job failed, once: the program's own error, else the reason; null for one that did not fail. */
export function failureOf(job: IJobSummary): string | null {
  const { error, state, reason } = job;
  if (error !== null) {
    return error.message ? `${error.type}: ${error.message}` : error.type;
  }
  return state === 'failed' ? reason || null : null;
}

/** Whether a notebook was the job and is stored with it, so that it can be had with its outputs. */
export function hasNotebook(job: IJobSummary): boolean {
  return !!job.origin.notebook_digest;
}

/** The present loading of all members of a job together. */
export interface ILoading {
  fraction: number;
  bytes_per_s: number;
  /** Seconds until the last of them is done; null before the first bytes. */
  remaining_s: number | null;
}

/** A job's progress of loading its model; null where no member loads. */
export function loading(job: IJobSummary): ILoading | null {
  const active = job.loads.filter(load => load.state === 'loading');
  if (!active.length || TERMINAL_STATES.has(job.state)) {
    return null;
  }
  const { url } = active[active.length - 1];
  let done = 0;
  let total = 0;
  for (const load of job.loads) {
    if (load.url === url && load.state !== 'failed') {
      done += load.bytes_done;
      total += load.bytes_total;
    }
  }
  const rates = active.map(load =>
    load.elapsed_s ? load.bytes_done / load.elapsed_s : 0
  );
  return {
    fraction: done / Math.max(1, total),
    bytes_per_s: rates.reduce((sum, rate) => sum + rate, 0),
    remaining_s: rates.every(rate => rate > 0)
      ? Math.max(
          ...active.map(
            (load, at) => (load.bytes_total - load.bytes_done) / rates[at]
          )
        )
      : null
  };
}

/** The state of a deployment, from its gateway's last report. */
export interface ITraffic {
  ready: number;
  target: number;
  queued: number;
  requestsPerS: number;
  /** Latency over the last seconds; null without requests. */
  medianS: number | null;
  p99S: number | null;
  answered: number;
  failed: number;
  /** Loaded fraction of the weights; null while none are being loaded. */
  loaded: number | null;
}

/** The state of a deployment; null for a training job. */
export function traffic(job: IJobSummary): ITraffic | null {
  if (job.deployment === null) {
    return null;
  }
  const number = (name: string): number => {
    const value = job.metrics[name];
    return typeof value === 'number' ? value : 0;
  };
  const ended = TERMINAL_STATES.has(job.state);
  const requestsPerS = ended ? 0 : number('requests_per_s');
  const asked = requestsPerS > 0;
  const bytes = number('loading_bytes');
  return {
    ready: ended ? 0 : job.world_size,
    target: number('target') || job.target,
    queued: ended ? 0 : number('queued'),
    requestsPerS,
    medianS: asked ? number('p50_s') : null,
    p99S: asked ? number('p99_s') : null,
    answered: number('answered'),
    failed: number('failed'),
    loaded: bytes && !ended ? number('loaded_bytes') / bytes : null
  };
}

/** Seconds until the last step, where the steps that are left take as long as the last ones did. */
export function remaining(job: IJobView): number | null {
  const steps = total(job);
  if (!steps || job.commits.length < 2 || TERMINAL_STATES.has(job.state)) {
    return null;
  }
  const [first, first_s] = job.commits[0];
  const [last, last_s] = job.commits[job.commits.length - 1];
  return last_s > first_s
    ? ((steps - job.step) * (last_s - first_s)) / (last - first)
    : null;
}

/** Seconds the job has run; null before it has begun. */
export function elapsed(job: IJobSummary, now_s: number): number | null {
  if (job.started_s === null) {
    return null;
  }
  return Math.max(0, (job.ended_s ?? now_s) - job.started_s);
}

/** Points of the small curve in the list of jobs; as many as the server's list has. */
const TREND_POINTS = 24;

/** The small curve of a job, the same whether it is followed or only listed: the twin of `trend_of` in the server. */
export function trendOf(
  job: IJobSummary & Partial<IJobView>
): readonly TrendPoint[] {
  const { history } = job;
  if (history === undefined) {
    return job.trend ?? [];
  }
  const count = Math.min(history.length, TREND_POINTS);
  return Array.from(
    { length: count },
    (_, at) =>
      history[Math.floor((at * (history.length - 1)) / Math.max(1, count - 1))]
  );
}

/** The step at which something happened, from the history; null where unknown. */
export function stepAt(
  history: readonly HistoryPoint[],
  time_s: number
): number | null {
  let low = 0;
  let high = history.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (history[middle][2] <= time_s) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  if (low === history.length) {
    return low ? history[low - 1][0] : null;
  }
  if (low === 0) {
    return history[0][0];
  }
  return (history[low - 1][0] + history[low][0]) / 2;
}

/** Seconds from the fault to the commit after it, or to `now_s` while there is none. */
export function incidentDuration(incident: IIncident, now_s: number): number {
  return incident.recovery_s ?? Math.max(0, now_s - incident.started_s);
}

/** Whether a node was lost in an incident: stragglers and skipped steps cost no member. */
function lost(incident: IIncident): boolean {
  const went = incident.stages.map(stage => stage.stage);
  return (
    incident.cause !== 'straggler' &&
    (incident.resumed_s === null ||
      went.includes('fenced') ||
      went.includes('replaced'))
  );
}

/** One line of output, joined from its pieces. */
export interface ILine {
  key: string;
  rank: number | null;
  node: string;
  stream: string;
  text: string;
}

// Colours and cursor movements of terminals.
const ESCAPES = /\u001b\[[0-9;?]*[ -/]*[@-~]/g;

/** The plain text of output for a terminal. */
export function stripEscapes(text: string): string {
  return text.replace(ESCAPES, '');
}

/** Lines of a traceback that belong together: a call with its source, or the text between calls. */
export interface IFrame {
  lines: string[];
  /** It is in the person's own cell or file. */
  cell: boolean;
  /** It is the line of the cell that the error came from. */
  raised: boolean;
}

const CALL = /^\s*File "(.*)", line (\d+)/;
/** A cell: one that was run, or one of a notebook that was submitted. */
const OWN = /^Cell In\[|^<cell|\.ipynb, cell \d+$/;

/** The traceback of an error, call by call; journals of other versions may hold it as one text. */
export function frames(error: IUserError): IFrame[] {
  const told: unknown = error.traceback ?? [];
  const lines = (Array.isArray(told) ? told : [told]).flatMap(text =>
    stripEscapes(String(text)).replace(/\n$/, '').split('\n')
  );
  const files = lines.map(line => CALL.exec(line)?.[1]).filter(Boolean);
  // Frames above the user's own code are left out, so that the user's code comes first.
  const known = files.filter(file => OWN.test(file!));
  const own = new Set(known.length ? known : files.slice(0, 1));
  const found: IFrame[] = [];
  const numbers: number[] = [];
  for (const line of lines) {
    const call = CALL.exec(line);
    const last = found[found.length - 1];
    if (call) {
      found.push({ lines: [line], cell: own.has(call[1]), raised: false });
      numbers.push(Number(call[2]));
    } else if (last && numbers[found.length - 1] && /^ {4}/.test(line)) {
      last.lines.push(line);
    } else if (last && !numbers[found.length - 1]) {
      last.lines.push(line);
    } else {
      found.push({ lines: [line], cell: false, raised: false });
      numbers.push(0);
    }
  }
  const calls = found.map((frame, at) => (frame.cell ? at : -1));
  const exact = calls.filter(at => at >= 0 && numbers[at] === error.line);
  const at = Math.max(-1, ...(exact.length ? exact : calls));
  if (at >= 0) {
    found[at].raised = true;
  }
  return found;
}

/** Live pieces have no places: each gets a number, which its lines keep when older pieces fall away. */
const numbers = new WeakMap<object, number>();
let pieceCount = 0;

function numberOf(piece: object): number {
  const known = numbers.get(piece) ?? ++pieceCount;
  numbers.set(piece, known);
  return known;
}

/** Lines of the output in the order in which they began; a carriage return overwrites its line. */
export function outputLines(
  output: readonly (
    | (IOutput & { place?: undefined; offset?: undefined })
    | (IOutputPiece & { member?: undefined; offset?: number })
  )[]
): ILine[] {
  const lines: ILine[] = [];
  const open = new Map<string, ILine>();
  for (const one of output) {
    const { member, node, rank, stream, text, place, offset = 0 } = one;
    const named = place ?? numberOf(one);
    const key = `${member ?? `${node}\n${rank}`}\n${stream}`;
    const pieces = stripEscapes(text).split('\n');
    pieces.forEach((piece, index) => {
      const line = open.get(key);
      if (line) {
        line.text += piece;
      } else if (piece || index < pieces.length - 1) {
        const name = `${named} ${offset + index}`;
        const begun = { key: name, rank, node, stream, text: piece };
        lines.push(begun);
        open.set(key, begun);
      }
      if (index < pieces.length - 1) {
        open.delete(key);
      }
    });
  }
  for (const line of lines) {
    line.text = line.text.replace(/\r+$/, '').replace(/^.*\r/, '');
  }
  return lines;
}

/** The ranks with output, in order. */
export function ranksOf(lines: readonly ILine[]): number[] {
  const ranks = new Set(lines.map(line => line.rank));
  return [...ranks]
    .filter((rank): rank is number => rank !== null)
    .sort((a, b) => a - b);
}

/** A stretch of time that a node spent in one role. */
export interface ISpan {
  node: string;
  role: 'member' | 'spare' | 'lost';
  from_s: number;
  to_s: number;
}

/** One lane per node: member, spare, or lost. */
export interface ILane {
  node: string;
  spans: ISpan[];
}

/** The lanes of all nodes, in the order of their names. */
export function lanes(job: IJobSummary, now_s: number): ILane[] {
  const end = job.ended_s ?? now_s;
  const byNode = new Map<string, ISpan[]>();
  job.generations.forEach((generation, index) => {
    const next = job.generations[index + 1];
    const to_s = next ? next.time_s : end;
    const add = (node: string, role: ISpan['role']) =>
      extend(byNode, { node, role, from_s: generation.time_s, to_s });
    generation.nodes.forEach(node => add(node, 'member'));
    generation.spares
      .filter(node => !generation.nodes.includes(node))
      .forEach(node => add(node, 'spare'));
  });
  for (const incident of job.incidents) {
    if (incident.node !== null && lost(incident)) {
      const over_s = incident.resumed_s ?? end;
      lose(byNode, incident.node, incident.started_s, over_s);
    }
  }
  return [...byNode]
    .map(([node, spans]) => ({ node, spans }))
    .sort((a, b) => byName(a.node, b.node));
}

/** Made once: `localeCompare` with options takes ten times as long, and thousands of nodes are sorted per update. */
const NAMES = new Intl.Collator(undefined, { numeric: true });

/** Names with their numbers in order: node-2 before node-10. */
export function byName(a: string, b: string): number {
  return NAMES.compare(a, b);
}

function extend(byNode: Map<string, ISpan[]>, span: ISpan): void {
  const spans = byNode.get(span.node) ?? [];
  const last = spans[spans.length - 1];
  if (last && last.role === span.role && last.to_s === span.from_s) {
    last.to_s = span.to_s;
  } else {
    spans.push(span);
  }
  byNode.set(span.node, spans);
}

/** End a node's span at its loss, and mark it lost until it appears again or the incident is over. */
function lose(
  byNode: Map<string, ISpan[]>,
  node: string,
  from_s: number,
  over_s: number
): void {
  const spans = byNode.get(node);
  const struck = spans?.find(
    span => span.role !== 'lost' && span.from_s <= from_s && from_s < span.to_s
  );
  if (!spans || !struck) {
    return;
  }
  const next = spans.find(span => span.from_s > from_s);
  struck.to_s = from_s;
  const back_s = Math.min(next?.from_s ?? over_s, over_s);
  spans.splice(spans.indexOf(struck) + 1, 0, {
    node,
    role: 'lost',
    from_s,
    to_s: back_s
  });
}
