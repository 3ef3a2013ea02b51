/** The trials of a sweep, or some jobs: asked for while somebody looks, more often while any of them goes on. */

import type { IDisposable } from '@lumino/disposable';
import { ISignal, Signal } from '@lumino/signaling';

import { IJudged, ITrials, messageOf, TrialsOf } from '../api';
import type { HyperpodModel } from '../model/model';

const BUSY_MS = 1500;
const CALM_MS = 10_000;

export class Trials implements IDisposable {
  constructor(
    private readonly _model: HyperpodModel,
    private readonly _of: TrialsOf
  ) {}

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  /** Another object after each change; null before the server has answered. */
  get found(): ITrials | null {
    return this._found;
  }

  /** Why they cannot be had, in words; empty where they can. */
  get problem(): string {
    return this._problem;
  }

  /** Judge jobs by another value. */
  judge(by: IJudged): void {
    this._judged = by;
    void this.refresh();
  }

  look(on: boolean): void {
    this._looks = on;
    window.clearTimeout(this._timer);
    if (on) {
      void this.refresh();
    }
  }

  async refresh(): Promise<void> {
    window.clearTimeout(this._timer);
    const asked = ++this._asked;
    let problem = '';
    let found = this._found;
    try {
      found = await this._model.api.trials(this._of, this._judged);
    } catch (error) {
      problem = messageOf(error);
    }
    if (asked !== this._asked || this._isDisposed) {
      return; // somebody has asked anew
    }
    const text = JSON.stringify(found);
    if (text !== this._text || problem !== this._problem) {
      this._text = text;
      this._found = found;
      this._problem = problem;
      this._changed.emit();
    }
    if (this._looks) {
      const pause_ms = found?.live && !problem ? BUSY_MS : CALM_MS;
      this._timer = window.setTimeout(() => void this.refresh(), pause_ms);
    }
  }

  dispose(): void {
    this._isDisposed = true;
    window.clearTimeout(this._timer);
    Signal.clearData(this);
  }

  private readonly _changed = new Signal<this, void>(this);
  private _found: ITrials | null = null;
  private _judged: IJudged | null = null;
  private _text = 'null';
  private _problem = '';
  private _asked = 0;
  private _looks = false;
  private _timer = 0;
  private _isDisposed = false;
}
