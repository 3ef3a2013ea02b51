import type { IRunningSessions } from '@jupyterlab/running';
import type { LabIcon } from '@jupyterlab/ui-components';
import { ISignal, Signal } from '@lumino/signaling';

import type { IShared } from './components/context';
import { placeText, stateLabel } from './components/parts';
import { hyperpodIcon } from './icons';
import type { Changed, HyperpodModel } from './model/model';
import type { IJobSummary } from './model/views';

/** Active jobs in JupyterLab's own panel of what is running. */
export class RunningJobs implements IRunningSessions.IManager {
  constructor(private readonly _shared: IShared) {
    const { model, trans } = _shared;
    this.name = trans.__('Training jobs');
    this.shutdownLabel = trans.__('Stop');
    this.shutdownAllLabel = trans.__('Stop all');
    this.shutdownAllConfirmationText = trans.__(
      'Stop all training jobs? A stopped job cannot be continued.'
    );
    model.changed.connect(this._onChange, this);
  }

  readonly name: string;
  readonly shutdownLabel: string;
  readonly shutdownAllLabel: string;
  readonly shutdownAllConfirmationText: string;

  get runningChanged(): ISignal<this, void> {
    return this._changed;
  }

  running(): IRunningSessions.IRunningItem[] {
    const { actions, trans } = this._shared;
    return this._shared.model.activeJobs.map(job => ({
      open: () => actions.openJob(job.id),
      label: () => job.name || job.id,
      labelTitle: () => job.id,
      detail: () => this._detail(job),
      icon: (): LabIcon => hyperpodIcon,
      shutdown: () => void actions.stopJobNow(job.id),
      context: trans.__('training job')
    }));
  }

  shutdownAll(): void {
    this.running().forEach(item => item.shutdown?.());
  }

  refreshRunning(): void {
    // The model is always up to date.
  }

  private _detail(job: IJobSummary): string {
    const state = stateLabel(job.state, this._shared.trans);
    return job.session
      ? `${state} · ${placeText(job, this._shared.trans)}`
      : state;
  }

  private _onChange(_: HyperpodModel, changed: Changed): void {
    if (changed.has('jobs')) {
      this._changed.emit();
    }
  }

  private readonly _changed = new Signal<this, void>(this);
}
