/**
 * All requests to the server: REST for actions, one websocket for events. No other file makes requests.
 */

import { URLExt } from '@jupyterlab/coreutils';
import { Contents, ServerConnection } from '@jupyterlab/services';
import { IDisposable } from '@lumino/disposable';
import { ISignal, Signal } from '@lumino/signaling';

import { Fault, IEvent, isEvent } from './model/events';
import type {
  Cursor,
  IClusterView,
  IJobSummary,
  IJobView
} from './model/views';

/** The path of the server extension below the server's base URL. */
export const ROOT = 'jupyter_hyperpod/api/v1';
const FIRST_DELAY_MS = 500;
const LONGEST_DELAY_MS = 30_000;
// The server closes a socket so after some minutes, and checks anew who connects.
const SIGN_IN_AGAIN = 4000;

/** The version and the settings of this server. */
export interface IServerSettings {
  version: string;
  store: string;
  /** Directory of the notebooks; empty where they are not files. */
  root: string;
  allow_faults: boolean;
}

/** A mount and its health; `state` is ready, remote, detached, hangs or broken. */
export interface IMount {
  name: string;
  driver: string;
  source: string;
  notebook_path: string;
  read_only: boolean;
  state: string;
  reason: string;
  total_bytes: number | null;
  free_bytes: number | null;
}

/** What jobs can run on; `states` counts a scheduler's nodes by its own words for their states. */
export interface IBackend {
  name: string;
  title: string;
  /** Its nodes are those of the cluster's view. */
  owns_nodes: boolean;
  /** Why nothing can be submitted to it from here; empty where it can. */
  missing: string;
  /** Why its scheduler does not answer; empty where it does. */
  problem: string;
  states: Record<string, number>;
}

/** A cluster that jobs can be sent to. */
export interface IStanding {
  backend: string;
  title: string;
  /** What a kubeconfig calls it; empty where there is only one. */
  context: string;
  /** A job goes there that names no context. */
  usual: boolean;
  /** Its nodes are those of the cluster's view. */
  owns_nodes: boolean;
  /** Its scheduler has been asked. */
  asked: boolean;
  problem: string;
  states: Record<string, number>;
}

/** The request of a plan: times in seconds, `rate` in failures per instance-hour. */
export interface IPlanRequest {
  instances: number;
  rate: number;
  manual_s: number;
  automatic_s: number;
  checkpoint_cost_s: number;
  gpu_hours: number;
  price: number;
  convention: string;
  simulate?: boolean;
}

/** A table; a header with a leading '>' aligns its column to the right. */
export interface ISheet {
  headers: string[];
  rows: { text: string; tone: string }[][];
}

/** A plan with its text and its picture (SVG), from the server. */
export interface IPlan {
  plan: { title: string[]; lines: string[] };
  sheets: ISheet[];
  picture: string;
}

/** A row of the table of runs; `code` names its source, `steps` is the planned number. */
export interface IRun {
  id: string;
  name: string;
  person: string;
  notebook: string;
  state: string;
  reason: string;
  priority: number;
  queue: string;
  backend: string;
  nodes: number;
  step: number;
  steps: number | null;
  loss: number | null;
  metrics: Record<string, number>;
  incidents: number;
  goodput: number | null;
  submitted_s: number | null;
  started_s: number | null;
  ended_s: number | null;
  tags: string[];
  note: string;
  archived: boolean;
  code: string;
  /** The sweep of which it is a trial; empty for a job that is none. */
  sweep: string;
  parameters: Record<string, string>;
}

/** Whose the store is, with whom it is shared, and what who asks may do. */
export interface ISharing {
  store: string;
  owner: string;
  /** The group that reads; empty where the store is private. */
  read: string;
  /** The group that operates; empty: the owner alone. */
  operate: string;
  /** Those of the server's user, for the owner. */
  groups: string[];
  /** What keeps members out, in sentences. */
  notes: string[];
  role: 'owner' | 'operate' | 'read';
  person: string;
}

/** One axis of parallel coordinates: numbers from `low` to `high`, or words with a place each. */
export type ITrialAxis =
  | {
      kind: 'numbers';
      name: string;
      low: number;
      high: number;
      logarithmic: boolean;
      whole: boolean;
      /** The only numbers that there are, where they are few. */
      at: number[] | null;
    }
  | { kind: 'words'; name: string; values: TrialValue[] };

export type TrialValue = string | number | boolean | null;

/** A trial of a sweep, or a job as if it were one. */
export interface ITrial {
  number: number;
  job: string;
  name: string;
  values: Record<string, TrialValue>;
  /** The same as people read it. */
  told: Record<string, string>;
  state: string;
  step: number;
  value_text: string;
  /** The value by which it can be the best; null before it has succeeded. */
  counted: number | null;
  reason: string;
}

/** The trials of a sweep, or some jobs, with their axes. */
export interface ITrials {
  /** That of the sweep; empty for jobs. */
  id: string;
  sweep: boolean;
  sentence: string;
  metric: string;
  maximize: boolean;
  metrics: string[];
  wanted: number;
  live: boolean;
  axes: ITrialAxis[];
  /** Null before a value counts. */
  metric_axis: ITrialAxis | null;
  /** The job of the best trial; empty where there is none. */
  best: string;
  trials: ITrial[];
}

/** What is drawn in parallel coordinates: a sweep, or some jobs. */
export type TrialsOf = { sweep: string } | { jobs: readonly string[] };

/** By what jobs are judged. */
export interface IJudged {
  metric: string;
  maximize: boolean;
}

/** The rows that have changed since an earlier answer; all of them with `whole`. */
export interface IRuns {
  instance: string;
  version: number;
  whole: boolean;
  rows: IRun[];
  gone: string[];
  /** Jobs that later answers will add. */
  unread: number;
  /** Rows whose goodput is not known yet. */
  unfinished: number;
}

/** What the server knows of one of the compared jobs. */
export interface IComparedRun {
  id: string;
  name: string;
  state: string;
  tags: string[];
  /** What happened to it. */
  sentence: string;
  /** From the first job's source to this one's, as lines of a unified diff. */
  source_difference: string[];
}

/** Some jobs side by side; the first is compared with each other. */
export interface IComparison {
  jobs: string[];
  runs: IComparedRun[];
  identity: {
    jobs: [string, string];
    sentence: string;
    sessions: Record<
      string,
      { verdict: string; step: number | null; differs_at: number | null }
    >;
  }[];
  /** code, parameters, environment, packages: name to the value of each job. */
  differences: Record<string, Record<string, string[]>>;
  /** How many names of each part are equal, in words. */
  equal: Record<string, string>;
  metrics: Record<string, string[]>;
  /** Name to a curve of each job: step, lowest, highest, last. */
  curves: Record<string, [number, number, number, number][][]>;
  times_s: Record<string, number[][]>;
  /** Whether environments are compared. */
  environments: boolean;
}

/** Where the time of a job's nodes went, and its curves, which are as those of a comparison. */
export interface IAccount extends Pick<
  IComparison,
  'jobs' | 'curves' | 'times_s'
> {
  sentence: string;
  /** Null before the first step. */
  goodput: number | null;
  /** Node-seconds in committed steps, and of spares. */
  useful: number;
  spare: number;
  /** Some steps are known only together with others: what was lost between them counts as useful. */
  thinned: boolean;
  /** The most first. */
  lost: { cause: string; node_seconds: number }[];
}

/** A quantity of what nodes use: percent, bytes, or bytes per second. */
export type Quantity =
  'cpu' | 'memory' | 'gpu' | 'gpu_memory' | 'received' | 'sent';

/** What the processes of a job have used on each node. */
export interface IResources {
  /** How many nodes have said it, and how many of them are in no line. */
  nodes: number;
  left_out: number;
  /** The lines are the lowest, the median and the highest of all nodes at each time. */
  many: boolean;
  /** Nodes, or what stands for many. */
  lines: string[];
  /** From which `times_s` count. */
  start_s: number;
  times_s: number[];
  /** The values of each line. */
  curves: Partial<Record<Quantity, (number | null)[][]>>;
  /** By node, in percent. */
  sparks: Record<string, { cpu?: (number | null)[]; gpu?: (number | null)[] }>;
  /** Of a place of time. */
  width_s?: number;
  /**
   * By node: the steps that ended by each time, and its parts of a thousand in which the member computed, exchanged, and
   * waited in the exchange for the slowest.
   */
  phases?: Record<
    string,
    Record<'compute' | 'exchange' | 'waits' | 'steps', (number | null)[]>
  >;
  /** The most that a node may use; 0 where that is not known. */
  limits: Record<'cores' | 'limit' | 'gpus' | 'gpu_limit', number>;
}

/** What came of one time of a schedule; without a job, `said` gives the reason. */
export interface IScheduledRun {
  due_s: number;
  job: string;
  /** Of the job; empty where it is not there, or no longer. */
  state: string;
  said: string;
  /** Somebody asked for it. */
  asked: boolean;
}

/** What runs at times of the clock. `words` says what `cron` means, in the time zone `zone`. */
export interface ISchedule {
  name: string;
  cron: string;
  zone: string;
  words: string;
  paused: boolean;
  /** Null where it is paused, or has no further time. */
  next_s: number | null;
  filename: string;
  backend: string;
  created_s: number;
  by: string;
  catch_up: string;
  overlap: string;
  /** How many of its jobs that have ended are kept; 0 for all. */
  keep_runs: number;
  /** The newest at the end. */
  runs: IScheduledRun[];
}

export interface ISchedules {
  schedules: ISchedule[];
  /** What is wrong, in sentences. */
  notes: string[];
}

export type ScheduleAction = 'pause' | 'resume' | 'run' | 'delete';

/** The notebook of a job with its outputs. */
export interface IExecuted {
  id: string;
  /** Path of the notebook that was submitted; empty where it is not known. */
  origin: string;
  notebook: {
    metadata: {
      hyperpod: {
        state: string;
        cells: number;
        cells_begun: number;
        /** The cell that runs; null where none does. */
        running_cell: number | null;
        /** What is not certain of some cells, in sentences. */
        notes: string[];
      };
    };
  };
}

/** What is chosen for a promotion; what is left out stays as it was. */
export interface IPromotionChoice {
  backend: string;
  nodes?: number;
  elastic?: string;
  name?: string;
  queue?: string;
  slurm?: Record<string, string>;
}

/** Something that is not as in the earlier job; `asks`: nobody chose it. */
export interface IPromotionChange {
  part: string;
  name: string;
  then: string;
  now: string;
  change: string;
  asks: boolean;
}

/** What would be submitted to another backend. */
export interface IPromotion {
  job: string;
  backend: string;
  code: string;
  nodes: number;
  elastic: string;
  name: string;
  queue: string;
  options: Record<string, string>;
  sentence: string;
  changes: IPromotionChange[];
  asks: number;
}

/** A change of what people write on jobs. */
export interface ILabelling {
  add?: string[];
  remove?: string[];
  note?: string;
  archived?: boolean;
}

/** The target of a fault. */
export type FaultTarget =
  | { rank: number }
  | { node: string }
  | { target: 'coordinator' | 'supervisor' };

/** A message of the stream; topics are `cluster` and job ids. */
export type ServerMessage =
  | { type: 'snapshot'; topic: string; view: IClusterView | IJobView }
  | { type: 'events'; topic: string; events: IEvent[] }
  | { type: 'jobs'; jobs: IJobSummary[]; older: number; before: string }
  | {
      type: 'jobs.changed';
      /** The id and the changed fields of each job; all fields where it is new. */
      jobs: (Pick<IJobSummary, 'id'> & Partial<IJobSummary>)[];
      /** The ids of the list, where it has other ids than before. */
      order?: string[];
      older: number;
      /** The job behind which the older ones begin; empty where there are none. */
      before: string;
    }
  | { type: 'problem'; text: string; topic?: string };

/** What one rank printed at once; with `notice`, that output was dropped there. */
export interface IOutputPiece {
  time_s: number;
  node: string;
  rank: number | null;
  stream: string;
  text: string;
  notice: boolean;
  /** For the `after` and `before` of a query. */
  place: string;
}

/** A part of a job's output, in the order of time. */
export interface IOutputPage {
  pieces: IOutputPiece[];
  after: string;
  /** Where older output ends; empty where there is none. */
  before: string;
  more: boolean;
}

/** A request that the server refused; show `message` and `hint` unchanged. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    message: string,
    readonly hint: string = ''
  ) {
    super(message);
    this.name = 'ApiError';
  }
}

/** What an error says: the server's sentence, or that of the browser. */
export function messageOf(error: unknown): string {
  return error instanceof ApiError ? error.message : `${error}`;
}

/** Requests to the server extension. Every method rejects with ApiError. */
export class Api {
  constructor(readonly connection: ServerConnection.ISettings) {}

  settings(): Promise<IServerSettings> {
    return this._request('settings');
  }

  async mounts(): Promise<IMount[]> {
    const found = await this._request<{ mounts: IMount[] }>('mounts');
    return found.mounts;
  }

  async backends(): Promise<IBackend[]> {
    const found = await this._request<{ backends: IBackend[] }>('backends');
    return found.backends;
  }

  /** The clusters that jobs can be sent to; with a `context` only that one, which is asked. */
  async clusters(context = ''): Promise<IStanding[]> {
    const query = context && `?context=${encodeURIComponent(context)}`;
    const found = await this._request<{ clusters: IStanding[] }>(
      `clusters${query}`
    );
    return found.clusters;
  }

  /** One page of a mount's directory: the entries behind the name `after`. */
  contentsAfter(path: string, after: string): Promise<Contents.IModel> {
    const query = `after=${encodeURIComponent(after)}`;
    return this._request(`contents/${URLExt.encodeParts(path)}?${query}`);
  }

  plan(request: IPlanRequest): Promise<IPlan> {
    return this._request('plan', request);
  }

  startCluster(options: {
    nodes?: number;
    spares?: number;
  }): Promise<IClusterView> {
    return this._request('cluster/start', options);
  }

  stopCluster(): Promise<IClusterView> {
    return this._request('cluster/stop', {});
  }

  /** Let an idle cluster go on. */
  keepCluster(): Promise<IClusterView> {
    return this._request('cluster/keep', {});
  }

  /** Reconnect a node that is cut off from the network. */
  healNode(node: string): Promise<IClusterView> {
    return this._request('cluster/heal', { node });
  }

  /** Request a remedy for a node, or its return to service; gives the server's sentence. */
  askNode(
    node: string,
    action: 'drain' | 'reboot' | 'replace' | 'resume'
  ): Promise<{ said: string }> {
    return this._request('cluster/node', { node, action });
  }

  /** One page of the jobs that are older than the job `before`, and how many are older still. */
  jobsBefore(before: string): Promise<{ jobs: IJobSummary[]; older: number }> {
    return this._request(`jobs?before=${encodeURIComponent(before)}`);
  }

  /** The rows of the table of runs that have changed since version `since` of an `instance`. */
  runs(since: number, instance: string): Promise<IRuns> {
    return this._request(`runs?since=${since}&instance=${instance}`);
  }

  /** Which sources contain a word, by the names that runs have for them. */
  async sourcesWith(words: string[]): Promise<Record<string, string[]>> {
    const query = words.map(word => `word=${encodeURIComponent(word)}`);
    const answer = await this._request<{ found: Record<string, string[]> }>(
      `runs/sources?${query.join('&')}`
    );
    return answer.found;
  }

  compareJobs(jobs: string[]): Promise<IComparison> {
    const query = jobs.map(job => `job=${encodeURIComponent(job)}`);
    return this._request(`comparison?${query.join('&')}`);
  }

  sharing(): Promise<ISharing> {
    return this._request('sharing');
  }

  /** Share the store with groups, or with nobody where both names are empty. */
  share(read: string, operate: string): Promise<ISharing> {
    return this._request('sharing/change', { read, operate });
  }

  trials(of: TrialsOf, judged: IJudged | null): Promise<ITrials> {
    const query =
      'sweep' in of
        ? [`sweep=${encodeURIComponent(of.sweep)}`]
        : of.jobs.map(job => `job=${encodeURIComponent(job)}`);
    if (judged) {
      query.push(`metric=${encodeURIComponent(judged.metric)}`);
      query.push(`maximize=${Number(judged.maximize)}`);
    }
    return this._request(`trials?${query.join('&')}`);
  }

  /** What a job would be on another backend; submits nothing. */
  planPromotion(id: string, choice: IPromotionChoice): Promise<IPromotion> {
    return this._request(`jobs/${encodeURIComponent(id)}/promotion`, choice);
  }

  /** Submit a job to another backend; gives the new job's id. */
  async promote(
    id: string,
    choice: IPromotionChoice,
    accept: boolean
  ): Promise<string> {
    const answer = await this._request<{ id: string }>(
      `jobs/${encodeURIComponent(id)}/promote`,
      { ...choice, accept }
    );
    return answer.id;
  }

  labelRuns(jobs: string[], change: ILabelling): Promise<unknown> {
    return this._request('runs/labels', { jobs, ...change });
  }

  /** Delete jobs that have ended, all or none; gives the server's sentence. */
  async deleteRuns(jobs: string[]): Promise<string> {
    const answer = await this._request<{ said: string }>('runs/delete', {
      jobs
    });
    return answer.said;
  }

  schedules(): Promise<ISchedules> {
    return this._request('schedules');
  }

  /** Do something with a schedule; gives the id of the job that it runs now, if any. */
  async askSchedule(schedule: string, action: ScheduleAction): Promise<string> {
    const answer = await this._request<{ job: string }>('schedules', {
      schedule,
      action
    });
    return answer.job;
  }

  executed(id: string): Promise<IExecuted> {
    return this._request(`jobs/${encodeURIComponent(id)}/notebook`);
  }

  account(id: string): Promise<IAccount> {
    return this._request(`jobs/${encodeURIComponent(id)}/account`);
  }

  resources(id: string): Promise<IResources> {
    return this._request(`jobs/${encodeURIComponent(id)}/resources`);
  }

  /** The report of a job, as the text of an HTML file. */
  async report(id: string): Promise<string> {
    const answer = await this._request<{ page: string }>(
      `jobs/${encodeURIComponent(id)}/report`
    );
    return answer.page;
  }

  /** A page of what a job's ranks have printed. */
  output(id: string, query: Record<string, string>): Promise<IOutputPage> {
    const asked = new URLSearchParams(query).toString();
    return this._request(`jobs/${encodeURIComponent(id)}/output?${asked}`);
  }

  stopJob(id: string, reason: string): Promise<unknown> {
    return this._request(`jobs/${encodeURIComponent(id)}/stop`, { reason });
  }

  scaleJob(id: string, target: number): Promise<unknown> {
    return this._request(`jobs/${encodeURIComponent(id)}/scale`, { target });
  }

  injectFault(id: string, fault: Fault, target: FaultTarget): Promise<unknown> {
    return this._request(`jobs/${encodeURIComponent(id)}/fault`, {
      fault,
      ...target
    });
  }

  /** Open the websocket once; Stream keeps it open. */
  openSocket(): WebSocket {
    const { wsUrl, token, appendToken, WebSocket: Socket } = this.connection;
    const query =
      appendToken && token ? `?token=${encodeURIComponent(token)}` : '';
    return new Socket(URLExt.join(wsUrl, ROOT, 'stream') + query);
  }

  private async _request<T>(path: string, body?: object): Promise<T> {
    const url = URLExt.join(this.connection.baseUrl, ROOT, path);
    const init =
      body === undefined ? {} : { method: 'POST', body: JSON.stringify(body) };
    let response: Response;
    try {
      response = await ServerConnection.makeRequest(url, init, this.connection);
    } catch (error) {
      throw new ApiError(
        0,
        error instanceof Error ? error.message : `${error}`
      );
    }
    const answer = await response.json().catch(() => null);
    if (!response.ok) {
      throw new ApiError(
        response.status,
        answer?.message || `${response.status} ${response.statusText}`,
        answer?.hint
      );
    }
    return answer as T;
  }
}

/** `waiting`: the connection is lost and will be tried again. */
export type StreamState = 'closed' | 'connecting' | 'open' | 'waiting';

/** The surroundings of a stream; tests pass their own. */
export interface IStreamOptions {
  open: () => WebSocket;
  /** The client's position in a topic; undefined asks for a snapshot. */
  cursor: (topic: string) => Cursor | undefined;
  /** A random number in [0, 1), so that many clients do not reconnect at once. */
  jitter?: () => number;
}

/** Milliseconds to wait before attempt number `attempt` (from 0): doubling, bounded, spread by up to a quarter. */
export function backoffMs(attempt: number, jitter: number): number {
  const delay = Math.min(FIRST_DELAY_MS * 2 ** attempt, LONGEST_DELAY_MS);
  return Math.round(delay * (1 - jitter / 4));
}

/** One websocket that reconnects by itself and resumes from its cursors. */
export class Stream implements IDisposable {
  constructor(options: IStreamOptions) {
    this._options = options;
    window.addEventListener('online', this._retryNow);
  }

  get state(): StreamState {
    return this._state;
  }

  get stateChanged(): ISignal<this, StreamState> {
    return this._stateChanged;
  }

  get received(): ISignal<this, ServerMessage> {
    return this._received;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  /** Follow a topic from the client's position; opens the connection if needed. */
  watch(topic: string): void {
    this._topics.add(topic);
    if (this._state === 'closed') {
      this._connect();
    } else if (this._state === 'open') {
      this._subscribe([topic]);
    }
  }

  unwatch(topic: string): void {
    if (this._topics.delete(topic) && this._state === 'open') {
      this._send({ type: 'unsubscribe', topics: [topic] });
    }
  }

  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isDisposed = true;
    window.removeEventListener('online', this._retryNow);
    window.clearTimeout(this._timer);
    this._drop();
    Signal.clearData(this);
  }

  private _connect(): void {
    window.clearTimeout(this._timer);
    this._drop();
    this._setState('connecting');
    const socket = (this._socket = this._options.open());
    socket.onopen = () => {
      this._setState('open');
      this._subscribe([...this._topics]);
    };
    socket.onmessage = event => this._onMessage(event);
    socket.onclose = event =>
      event.code === SIGN_IN_AGAIN ? this._connect() : this._onClose();
  }

  /** Drop the present socket and ignore its later events. */
  private _drop(): void {
    const socket = this._socket;
    this._socket = null;
    if (socket) {
      socket.onopen = socket.onmessage = socket.onclose = null;
      socket.close();
    }
  }

  private _onMessage(event: MessageEvent): void {
    const message = decode(event.data);
    if (message !== null) {
      this._attempt = 0;
      this._received.emit(message);
    }
  }

  private _onClose(): void {
    this._socket = null;
    const jitter = (this._options.jitter ?? Math.random)();
    const delay = backoffMs(this._attempt++, jitter);
    this._timer = window.setTimeout(() => this._connect(), delay);
    this._setState('waiting');
  }

  private _retryNow = (): void => {
    if (this._state === 'waiting') {
      this._attempt = 0;
      this._connect();
    }
  };

  private _subscribe(watch: string[]): void {
    const cursors: Record<string, Cursor> = {};
    for (const topic of watch) {
      const cursor = this._options.cursor(topic);
      if (cursor !== undefined) {
        cursors[topic] = cursor;
      }
    }
    this._send({ type: 'subscribe', watch, cursors });
  }

  private _send(message: object): void {
    this._socket?.send(JSON.stringify(message));
  }

  private _setState(state: StreamState): void {
    if (this._state !== state) {
      this._state = state;
      this._stateChanged.emit(state);
    }
  }

  private readonly _options: IStreamOptions;
  private readonly _topics = new Set<string>();
  private readonly _stateChanged = new Signal<this, StreamState>(this);
  private readonly _received = new Signal<this, ServerMessage>(this);
  private _socket: WebSocket | null = null;
  private _state: StreamState = 'closed';
  private _attempt = 0;
  private _timer = 0;
  private _isDisposed = false;
}

/** The message in a frame, or null for an unknown one. Incomplete events are left out. */
function decode(frame: unknown): ServerMessage | null {
  let message: any;
  try {
    message = JSON.parse(String(frame));
  } catch {
    return null;
  }
  switch (message?.type) {
    case 'events':
      return Array.isArray(message.events)
        ? { ...message, events: message.events.filter(isEvent) }
        : null;
    case 'jobs':
    case 'jobs.changed':
      return Array.isArray(message.jobs) ? message : null;
    case 'snapshot':
      return typeof message.view === 'object' ? message : null;
    case 'problem':
      return message;
    default:
      return null;
  }
}
