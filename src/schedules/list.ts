/** The schedules: asked for while somebody looks, now and then, and when a job comes or the cluster changes. */

import type { IDisposable } from '@lumino/disposable';
import { Poll } from '@lumino/polling';
import { ISignal, Signal } from '@lumino/signaling';

import { ISchedules, messageOf } from '../api';
import type { HyperpodModel } from '../model/model';

const EVERY_MS = 10_000;

export class ScheduleList implements IDisposable {
  constructor(private readonly _model: HyperpodModel) {
    this._poll = new Poll({
      auto: false,
      factory: () => this.refresh(),
      frequency: { interval: EVERY_MS, backoff: false },
      name: 'jupyter_hyperpod:schedules',
      standby: () => document.hidden || !this._looks
    });
    _model.changed.connect(this._onModel, this);
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  get isDisposed(): boolean {
    return this._isDisposed;
  }

  /** Null until the server has answered. */
  get found(): ISchedules | null {
    return this._found;
  }

  /** Why they cannot be had, in words; empty where they can. */
  get problem(): string {
    return this._problem;
  }

  /** Ask while somebody looks. */
  look(on: boolean): void {
    this._looks = on;
    void (on ? this._poll.refresh() : this._poll.stop());
  }

  /** Ask now. An answer that a later question has overtaken is not shown. */
  async refresh(): Promise<void> {
    const turn = ++this._turn;
    let found: ISchedules | null = null;
    let problem = '';
    try {
      found = await this._model.api.schedules();
    } catch (error) {
      problem = messageOf(error);
    }
    if (turn === this._turn && !this._isDisposed) {
      this._found = found ?? this._found;
      this._problem = problem;
      this._changed.emit();
    }
  }

  dispose(): void {
    if (!this._isDisposed) {
      this._isDisposed = true;
      this._model.changed.disconnect(this._onModel, this);
      this._poll.dispose();
      Signal.clearData(this);
    }
  }

  private _onModel(): void {
    const { jobs, cluster, connection } = this._model;
    const state = `${jobs[0]?.id} ${cluster?.state} ${connection}`;
    if (state !== this._state) {
      this._state = state;
      if (this._looks) {
        void this._poll.refresh();
      }
    }
  }

  private readonly _poll: Poll;
  private readonly _changed = new Signal<this, void>(this);
  private _found: ISchedules | null = null;
  private _problem = '';
  private _state = '';
  private _turn = 0;
  private _looks = false;
  private _isDisposed = false;
}
