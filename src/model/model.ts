/**
 * The model: all state of the browser. Views are functions of it; only messages of the stream change it.
 */

import { DisposableDelegate, IDisposable } from '@lumino/disposable';
import { ISignal, Signal } from '@lumino/signaling';

import { Api, ApiError, IServerSettings, ServerMessage, Stream } from '../api';
import { TERMINAL_STATES } from './events';
import { foldCluster, foldJob } from './fold';
import { Pace } from './pace';
import type { Cursor, IClusterView, IJobSummary, IJobView } from './views';

/** Retry delay until the first request succeeds; afterwards the stream has its own back-off. */
const RETRY_MS = 5000;
/** Topics that are not a job. */
const GENERAL: ReadonlySet<string> = new Set(['cluster', 'jobs', 'connection']);
/** How many views of unwatched jobs are kept, so that watching one again needs no snapshot. */
const RETIRED_VIEWS = 24;

/** `absent`: the server lacks this extension, or has not enabled it. */
export type Connection = 'connecting' | 'online' | 'offline' | 'absent';

/** Topics that changed: `cluster`, `jobs`, `connection`, or a job's id. */
export type Changed = ReadonlySet<string>;

/** Whether the lists leave a job out: one that runs is shown all the same. */
function isArchived(job: IJobSummary): boolean {
  return job.labels.archived && TERMINAL_STATES.has(job.state);
}

export class HyperpodModel implements IDisposable {
  constructor(api: Api, stream?: Stream) {
    this.api = api;
    this._stream =
      stream ??
      new Stream({
        open: () => api.openSocket(),
        cursor: topic => this.cursor(topic)
      });
    this._stream.received.connect(this._onMessage, this);
    this._stream.stateChanged.connect(this._onStream, this);
  }

  readonly api: Api;

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  get changed(): ISignal<this, Changed> {
    return this._changed;
  }

  /** Emitted for changes of the cluster only. */
  get clusterChanged(): ISignal<this, void> {
    return this._clusterChanged;
  }

  get connection(): Connection {
    return this._connection;
  }

  /** Null until the server has told. */
  get settings(): IServerSettings | null {
    return this._settings;
  }

  /** Null until the server has told. */
  get cluster(): IClusterView | null {
    return this._cluster;
  }

  /** Whether the list of jobs has arrived. */
  get jobsKnown(): boolean {
    return this._summaries !== null;
  }

  /** Newest first. A watched job is as new as its last event, the others as the server's list. */
  get jobs(): IJobSummary[] {
    return [...(this._summaries ?? []), ...this._older].map(
      summary => this._watched(summary.id) ?? summary
    );
  }

  /** How many older jobs the server has. */
  get olderJobs(): number {
    return Math.max(0, this._olderCount - this._older.length);
  }

  /** Add older jobs to the list. Rejects with ApiError. */
  async loadOlder(): Promise<void> {
    if (this._before && !this._loading) {
      this._loading = true;
      try {
        let found: IJobSummary[];
        do {
          found = await this._nextPage();
        } while (found.length > 0 && !this._addOlder(found));
      } finally {
        this._loading = false;
      }
      this._tell('jobs');
    }
  }

  get activeJobs(): IJobSummary[] {
    return this.jobs.filter(job => !TERMINAL_STATES.has(job.state));
  }

  /** The whole view of a job that is watched, null until it has arrived. */
  job(id: string): IJobView | null {
    return this._views.get(id) ?? null;
  }

  /** The summary of a job, followed or not. */
  summary(id: string): IJobSummary | null {
    return (
      this._watched(id) ??
      this._summaries?.find(job => job.id === id) ??
      this._views.get(id) ??
      this._older.find(job => job.id === id) ??
      null
    );
  }

  /** Why the server cannot follow a topic, in its own words; null where it can. */
  problem(topic: string): string | null {
    return this._problems.get(topic) ?? null;
  }

  /** This client's position in a topic: writer to last sequence number. */
  cursor(topic: string): Cursor | undefined {
    return topic === 'cluster'
      ? this._cluster?.seen
      : this._views.get(topic)?.seen;
  }

  /** Read the server's settings, then follow the cluster and the list of jobs. */
  async connect(): Promise<void> {
    window.clearTimeout(this._retry);
    this._setConnection('connecting');
    if (await this._readSettings()) {
      this._stream.watch('cluster');
      this._stream.watch('jobs');
      this._topics.forEach((_, topic) => this._stream.watch(topic));
      this._started = true;
    } else if (!this._isDisposed && this._connection === 'offline') {
      this._retry = window.setTimeout(() => void this.connect(), RETRY_MS);
    }
  }

  /** Redraw everything at once, because of a change outside the model: a person has chosen something, and looks. */
  refresh(): void {
    if (!this._isDisposed) {
      const changed = new Set(['connection']);
      this._dirty.delete('connection');
      this._pace.begin(changed, performance.now());
      this._changed.emit(changed);
    }
  }

  /** Follow a job until the result is disposed. */
  watch(id: string): IDisposable {
    const count = this._topics.get(id) ?? 0;
    this._topics.set(id, count + 1);
    if (count === 0 && this._started) {
      this._stream.watch(id);
    }
    return new DisposableDelegate(() => this._unwatch(id));
  }

  dispose(): void {
    if (this._isDisposed) {
      return;
    }
    this._isDisposed = true;
    window.clearTimeout(this._timer);
    window.clearTimeout(this._retry);
    this._stream.dispose();
    Signal.clearData(this);
  }

  /** The view of a job, unless it is an old one that nobody watches any more. */
  private _watched(id: string): IJobView | undefined {
    return this._topics.has(id) ? this._views.get(id) : undefined;
  }

  private _unwatch(id: string): void {
    const count = (this._topics.get(id) ?? 1) - 1;
    if (count > 0) {
      this._topics.set(id, count);
      return;
    }
    this._topics.delete(id);
    this._problems.delete(id);
    if (!this._isDisposed) {
      this._stream.unwatch(id);
    }
    this._retire();
  }

  private async _nextPage(): Promise<IJobSummary[]> {
    const { jobs } = await this.api.jobsBefore(this._pagesEnd ?? this._before);
    this._pagesEnd = jobs.at(-1)?.id ?? this._pagesEnd;
    return jobs;
  }

  /** Returns whether a page has anything to show: all of its jobs may be in the archive. */
  private _addOlder(page: readonly IJobSummary[]): boolean {
    const known = new Set(this.jobs.map(job => job.id));
    const added = page.filter(job => !known.has(job.id) && !isArchived(job));
    this._older.push(...added);
    return added.length > 0;
  }

  /** A job that was unknown may exist by now. */
  private _askAgain(): void {
    for (const job of this._summaries ?? []) {
      if (this._problems.has(job.id) && this._topics.has(job.id)) {
        this._problems.delete(job.id);
        this._stream.watch(job.id);
      }
    }
  }

  /** Forget the oldest views that nobody watches. */
  private _retire(): void {
    const idle = [...this._views.keys()].filter(id => !this._topics.has(id));
    for (const id of idle.slice(0, Math.max(0, idle.length - RETIRED_VIEWS))) {
      this._views.delete(id);
    }
  }

  private async _readSettings(): Promise<boolean> {
    try {
      this._settings = await this.api.settings();
      return true;
    } catch (error) {
      const status = error instanceof ApiError ? error.status : 0;
      this._setConnection(
        status === 404 || status === 403 ? 'absent' : 'offline'
      );
      return false;
    }
  }

  private _onStream(): void {
    const state = this._stream.state;
    if (state === 'waiting') {
      this._setConnection('offline');
    } else if (state === 'open') {
      // A restarted server may have other settings.
      if (this._connection === 'offline') {
        void this._readSettings().then(() => this._tell('connection'));
      }
      this._setConnection('online');
    }
  }

  private _onMessage(_: Stream, message: ServerMessage): void {
    switch (message.type) {
      case 'jobs':
        this._summaries = message.jobs;
        this._olderCount = message.older;
        this._before = message.before;
        this._forgetPages();
        this._askAgain();
        this._tell('jobs');
        break;
      case 'jobs.changed':
        this._change(message);
        this._askAgain();
        this._tell('jobs');
        break;
      case 'snapshot':
        if (message.topic === 'cluster') {
          this._cluster = message.view as IClusterView;
        } else {
          this._views.delete(message.topic);
          this._views.set(message.topic, message.view as IJobView);
        }
        this._problems.delete(message.topic);
        this._tell(message.topic);
        break;
      case 'events':
        this._fold(message);
        break;
      case 'problem':
        if (message.topic !== undefined) {
          this._problems.set(message.topic, message.text);
          this._noteDeleted(message.topic, message.text);
          this._tell(message.topic);
        }
        break;
    }
  }

  /** A job that was deleted while the connection was away is refused when it is followed again. */
  private _noteDeleted(topic: string, text: string): void {
    const view = this._views.get(topic);
    if (view && text.startsWith(`no job ${topic};`)) {
      view.deleted = true;
    }
  }

  private _change(message: ServerMessage & { type: 'jobs.changed' }): void {
    const jobs = new Map((this._summaries ?? []).map(job => [job.id, job]));
    for (const fields of message.jobs) {
      const known = jobs.get(fields.id);
      jobs.set(fields.id, { ...known, ...fields } as IJobSummary);
    }
    const order = new Set(message.order ?? jobs.keys());
    if (this._pagesEnd !== null && message.older > this._olderCount) {
      // A job that leaves the list, because newer ones came, is the first of the pages.
      const left = [...jobs.values()].filter(
        job => !order.has(job.id) && !job.labels.archived
      );
      this._older.unshift(...left);
    }
    this._summaries = [...order].flatMap(id => jobs.get(id) ?? []);
    const paged = this._older.filter(job => !order.has(job.id));
    const moved = this._older.length - paged.length;
    const fewer = message.older < this._olderCount - moved;
    this._older = paged;
    this._olderCount = message.older;
    this._before = message.before;
    if (fewer || this._older.length > this._olderCount) {
      this._forgetPages();
    }
  }

  /** Some of their jobs may have been deleted, or are in the archive. */
  private _forgetPages(): void {
    this._older = [];
    this._pagesEnd = null;
  }

  private _fold(message: ServerMessage & { type: 'events' }): void {
    const { topic, events } = message;
    const view = this._views.get(topic);
    let news = false;
    for (const event of events) {
      try {
        if (topic === 'cluster' && this._cluster) {
          news = foldCluster(this._cluster, event) || news;
        } else if (view) {
          news = foldJob(view, event) || news;
        }
      } catch {
        // An event of another version: the server leaves it out of its views, too, and logs it.
        news = true;
      }
    }
    if (news) {
      this._problems.delete(topic);
      this._tell(topic);
    }
  }

  private _setConnection(connection: Connection): void {
    if (this._connection !== connection) {
      this._connection = connection;
      this._tell('connection');
    }
  }

  private _tell(topic: string): void {
    if (this._isDisposed) {
      return;
    }
    if (!this._dirty.has(topic)) {
      this._dirty.add(topic);
      this._plan();
    }
  }

  /** Emit when the first topic is due that has changed: one topic's news does not make another one's wait. */
  private _plan(): void {
    const due_ms = Math.min(
      ...[...this._dirty].map(topic => this._pace.due(topic))
    );
    if (due_ms < this._planned_ms) {
      window.clearTimeout(this._timer);
      this._planned_ms = due_ms;
      const pause_ms = Math.max(0, due_ms - performance.now());
      this._timer = window.setTimeout(() => this._emit(), pause_ms);
    }
  }

  private _emit(): void {
    const now_ms = performance.now();
    const limit_ms = Math.max(now_ms, this._planned_ms); // a timer may be a little early
    this._planned_ms = Infinity;
    const due = [...this._dirty].filter(
      topic => this._pace.due(topic) <= limit_ms
    );
    // The panel and a job's page are drawn in tasks of their own, so that neither makes the other's longer.
    const general = due.filter(topic => GENERAL.has(topic));
    const changed = new Set(general.length > 0 ? general : due);
    changed.forEach(topic => this._dirty.delete(topic));
    this._pace.begin(changed, now_ms);
    if (this._dirty.size > 0) {
      this._plan();
    }
    if (changed.size === 0) {
      return; // drawing took so long that its topic has to wait for longer
    }
    this._changed.emit(changed);
    if (changed.has('cluster')) {
      this._clusterChanged.emit();
    }
  }

  private readonly _stream: Stream;
  private readonly _changed = new Signal<this, Changed>(this);
  private readonly _clusterChanged = new Signal<this, void>(this);
  private readonly _views = new Map<string, IJobView>();
  private readonly _problems = new Map<string, string>();
  private readonly _topics = new Map<string, number>();
  private _summaries: IJobSummary[] | null = null;
  private _older: IJobSummary[] = [];
  private _olderCount = 0;
  /** The oldest of the newest jobs: older ones follow it. */
  private _before = '';
  private _pagesEnd: string | null = null;
  private _loading = false;
  private _cluster: IClusterView | null = null;
  private _settings: IServerSettings | null = null;
  private _connection: Connection = 'connecting';
  private readonly _dirty = new Set<string>();
  private _timer = 0;
  /** When the next topic is due. */
  private _planned_ms = Infinity;
  private readonly _pace = new Pace();
  private _retry = 0;
  private _started = false;
  private _isDisposed = false;
}
