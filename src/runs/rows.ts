/** The rows of the table: asked for while somebody looks, and kept up to date by what has changed. */

import type { IDisposable } from '@lumino/disposable';
import { ISignal, Signal } from '@lumino/signaling';

import { messageOf } from '../api';
import type { Changed, HyperpodModel } from '../model/model';
import { IIndexed, index, Sources } from './filter';

/** Between two requests while jobs change, and while nothing is known to change. */
const BUSY_MS = 1500;
const CALM_MS = 10_000;
const SOURCE_REST_MS = 250;

export class Rows implements IDisposable {
  constructor(private readonly _model: HyperpodModel) {
    _model.changed.connect(this._onModel, this);
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  /** All rows; another array after each change. */
  get all(): readonly IIndexed[] {
    return this._all;
  }

  /** Whether the server has answered. */
  get known(): boolean {
    return this._instance !== '';
  }

  /** Jobs that the server has not read yet. */
  get unread(): number {
    return this._unread;
  }

  /** Why the rows cannot be had, in words; empty where they can. */
  get problem(): string {
    return this._problem;
  }

  /** What is known of words in sources. */
  get sources(): Sources {
    return this._sources;
  }

  /** Ask while somebody looks. */
  look(on: boolean): void {
    this._looks = on;
    if (on) {
      void this.refresh();
    } else {
      window.clearTimeout(this._timer);
      this._due = Infinity;
    }
  }

  /** Ask for what has changed. */
  async refresh(): Promise<void> {
    if (this._asking || this._isDisposed) {
      this._again = this._asking;
      return;
    }
    window.clearTimeout(this._timer);
    this._due = Infinity;
    this._asking = true;
    let more = false;
    try {
      const found = await this._model.api.runs(this._version, this._instance);
      if (found.whole) {
        this._rows.clear();
      }
      for (const run of found.rows) {
        this._rows.set(run.id, index(run));
        if (!this._codes.has(run.code)) {
          this._codes.add(run.code);
          this._searched.clear(); // it may contain what was looked for
        }
      }
      found.gone.forEach(id => this._rows.delete(id));
      const first = !this.known;
      this._version = found.version;
      this._instance = found.instance;
      more = found.unread > 0 || found.unfinished > 0;
      const changes =
        first ||
        found.whole ||
        found.rows.length + found.gone.length > 0 ||
        this._unread !== found.unread ||
        this._problem !== '';
      this._unread = found.unread;
      this._problem = '';
      if (changes) {
        this._all = [...this._rows.values()];
        this._changed.emit();
      }
    } catch (error) {
      this._problem = messageOf(error);
      this._changed.emit();
    } finally {
      this._asking = false;
    }
    if (this._again || (more && this._looks && !this._problem)) {
      this._again = false;
      await this.refresh();
    } else {
      this._wait(this._model.activeJobs.length ? BUSY_MS : CALM_MS);
    }
  }

  /** Have words looked for in sources, once each until a new source comes. */
  search(words: string[]): void {
    const unknown = words.filter(word => !this._searched.has(word));
    window.clearTimeout(this._searching);
    if (unknown.length) {
      this._searching = window.setTimeout(
        () => void this._search(unknown),
        SOURCE_REST_MS
      );
    }
  }

  dispose(): void {
    if (!this._isDisposed) {
      this._isDisposed = true;
      window.clearTimeout(this._timer);
      window.clearTimeout(this._searching);
      this._model.changed.disconnect(this._onModel, this);
      Signal.clearData(this);
    }
  }

  private async _search(words: string[]): Promise<void> {
    words.forEach(word => this._searched.add(word));
    try {
      const found = await this._model.api.sourcesWith(words);
      const known = new Map(this._sources);
      for (const [word, codes] of Object.entries(found)) {
        known.set(word, new Set(codes));
      }
      this._sources = known;
      this._changed.emit();
    } catch {
      words.forEach(word => this._searched.delete(word));
    }
  }

  /** Ask after a pause, or sooner where that was planned. */
  private _wait(pause_ms: number): void {
    const due = Date.now() + pause_ms;
    if (this._looks && !this._isDisposed && !(this._due <= due)) {
      window.clearTimeout(this._timer);
      this._due = due;
      this._timer = window.setTimeout(() => void this.refresh(), pause_ms);
    }
  }

  private _onModel(_: HyperpodModel, changed: Changed): void {
    if (changed.has('jobs') || changed.has('connection')) {
      this._wait(BUSY_MS);
    }
  }

  private readonly _changed = new Signal<this, void>(this);
  private readonly _rows = new Map<string, IIndexed>();
  private _all: readonly IIndexed[] = [];
  private _sources: Sources = new Map();
  private readonly _codes = new Set<string>();
  private readonly _searched = new Set<string>();
  private _due = Infinity;
  private _version = 0;
  private _instance = '';
  private _unread = 0;
  private _problem = '';
  private _looks = false;
  private _asking = false;
  private _again = false;
  private _timer = 0;
  private _searching = 0;
  private _isDisposed = false;
}
