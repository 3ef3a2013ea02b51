/** The actions behind all buttons and commands: dialogs, requests, and error messages. */

import { Dialog, Notification, showDialog } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';

import { Api, FaultTarget, ISharing, TrialsOf } from './api';
import { ScaleBody } from './components/scale';
import { isSure } from './components/sure';
import { namedJob } from './format';
import type { Fault } from './model/events';
import type { HyperpodModel } from './model/model';
import type { IJobSummary } from './model/views';
import type { NodeAction } from './nodes';
import { tellRefusal } from './refusals';
import type { Kept } from './run/choice';
import { said } from './said/said';

/** Settings of the browser; the server has its own. */
export interface IPreferences {
  /** The state of the switch "Break something". */
  allowFaults: boolean;
  nodes: number;
  spares: number;
  finishedJobs: number;
  /** What was chosen last for a job of a notebook's cells. */
  run: Kept;
}

export const DEFAULTS: IPreferences = {
  allowFaults: false,
  nodes: 4,
  spares: 1,
  finishedJobs: 20,
  run: {}
};

/** How long a remedy can be undone where it is told. */
const UNDO_MS = 10_000;

export class Actions {
  constructor(
    private readonly _model: HyperpodModel,
    private readonly _trans: TranslationBundle,
    private readonly _show: {
      job: (id: string) => void;
      files: (mount: string) => void;
      runs: () => void;
      schedules: () => void;
      executed: (id: string) => Promise<void>;
      comparison: (ids: string[]) => void;
      trials: (of: TrialsOf) => void;
      example: () => Promise<void>;
    }
  ) {}

  preferences: IPreferences = DEFAULTS;

  /** Runs the cell of a job again; null where there are no notebooks. */
  rerunner: ((job: IJobSummary, near: Node | null) => Promise<void>) | null =
    null;

  /** Stores a preference beyond this page; the settings plugin sets it. */
  keep:
    | ((name: keyof IPreferences, value: boolean | Kept) => Promise<void>)
    | null = null;

  /** Whether buttons that inject faults are shown: by the user's switch, unless the server forbids it. */
  get faultsAllowed(): boolean {
    return this.preferences.allowFaults && !this.faultsForbidden;
  }

  /** Whether the server's administrator has switched faults off. */
  get faultsForbidden(): boolean {
    return this._model.settings?.allow_faults === false;
  }

  /** Turn the switch "Break something". */
  async breakSomething(on: boolean): Promise<void> {
    this.preferences = { ...this.preferences, allowFaults: on };
    this._model.refresh();
    try {
      await this.keep?.('allowFaults', on);
    } catch (error) {
      tellRefusal(error, this._trans);
    }
  }

  /** Offer this choice the next time that cells run on a cluster. */
  async remember(run: Kept): Promise<void> {
    this.preferences = { ...this.preferences, run };
    this._model.refresh();
    try {
      await this.keep?.('run', run);
    } catch (error) {
      tellRefusal(error, this._trans);
    }
  }

  /** A notebook with the first cell to run. */
  async openExample(): Promise<void> {
    try {
      await this._show.example();
    } catch (error) {
      tellRefusal(error, this._trans);
    }
  }

  /** Ask for a remedy at a node: one that ends processes after a question, another one with a way back. */
  async remedy(node: string, action: NodeAction): Promise<void> {
    if (action === 'heal') {
      await this._ask(api => api.healNode(node));
    } else if (await this._wants(node, action)) {
      await this._ask(async api => {
        const answer = await api.askNode(node, action);
        const undo = {
          label: this._trans.__('Undo'),
          callback: () => void this.remedy(node, 'resume')
        };
        const actions = action === 'drain' ? [undo] : [];
        Notification.info(said(answer.said, this._trans), {
          autoClose: UNDO_MS,
          actions
        });
      });
    }
  }

  private async _wants(node: string, action: NodeAction): Promise<boolean> {
    const jobs =
      this._model.cluster?.nodes.find(known => known.node === node)?.jobs ?? [];
    const body = jobs.length
      ? this._trans._n(
          '%1 job leaves it first, at the end of a step.',
          '%1 jobs leave it first, at the end of a step.',
          jobs.length
        )
      : this._trans.__('No job of this cluster is on it.');
    switch (action) {
      case 'reboot':
        return isSure(
          this._trans.__('Reboot %1?', node),
          body,
          this._trans.__('Reboot')
        );
      case 'replace':
        return isSure(
          this._trans.__('Replace %1?', node),
          body,
          this._trans.__('Replace')
        );
      default:
        return true;
    }
  }

  /** Whether a job came from a cell, and cells can run here. */
  canRerun(job: IJobSummary): boolean {
    return this.rerunner !== null && !!job.origin.cell_id;
  }

  /** Run the cell of a job again: the cell whose output contains `near`, else the cell that the job came from. */
  async rerun(job: IJobSummary, near: Node | null): Promise<void> {
    await this.rerunner?.(job, near);
  }

  openJob(id: string): void {
    this._show.job(id);
  }

  /** The table of all jobs. */
  openRuns(): void {
    this._show.runs();
  }

  /** What runs at times of the clock. */
  openSchedules(): void {
    this._show.schedules();
  }

  /** Write the notebook of a job with its outputs beside the one that was submitted, and open it. */
  async openExecuted(id: string): Promise<void> {
    try {
      await this._show.executed(id);
    } catch (error) {
      tellRefusal(error, this._trans);
    }
  }

  /** Curves and differences of some jobs side by side; the first is compared with each other. */
  compareRuns(ids: string[]): void {
    this._show.comparison(ids);
  }

  /** A sweep, or some jobs, in parallel coordinates. */
  openTrials(of: TrialsOf): void {
    this._show.trials(of);
  }

  /** Show the files of a mount, where there is a file browser. */
  showFiles(mount: string): void {
    this._show.files(mount);
  }

  /** Ask where else a job is to run, and submit it there. */
  async promote(id: string, name: string, backend: string): Promise<void> {
    const { promote } = await import('./promote/dialog');
    const shared = { model: this._model, actions: this, trans: this._trans };
    try {
      const promoted = await promote(shared, { id, name, backend });
      if (promoted) {
        this.openJob(promoted);
      }
    } catch (error) {
      tellRefusal(error, this._trans);
    }
  }

  /** Ask with whom the jobs of the store are to be shared. */
  async share(before: ISharing): Promise<void> {
    const { share } = await import('./sharing/dialog');
    const shared = { model: this._model, actions: this, trans: this._trans };
    try {
      await share(shared, before);
    } catch (error) {
      tellRefusal(error, this._trans);
    }
  }

  /** `again`: as it was when it ended by itself. */
  async startCluster(again = false): Promise<void> {
    const { nodes, spares } = this.preferences;
    await this._ask(api => api.startCluster(again ? {} : { nodes, spares }));
  }

  /** Let an idle cluster go on. */
  async keepCluster(): Promise<void> {
    await this._ask(api => api.keepCluster());
  }

  async stopCluster(): Promise<void> {
    const active = this._model.activeJobs.length;
    const sure = await isSure(
      this._trans.__('Stop the cluster?'),
      active
        ? this._trans._n(
            '%1 job is running on it and will be stopped.',
            '%1 jobs are running on it and will be stopped.',
            active
          )
        : this._trans.__('No job is running on it.'),
      this._trans.__('Stop the cluster')
    );
    if (sure) {
      await this._ask(api => api.stopCluster());
    }
  }

  async stopJob(id: string): Promise<void> {
    const serves = (this._model.summary(id)?.deployment ?? null) !== null;
    const sure = await isSure(
      this._trans.__('Stop %1?', this._name(id)),
      serves
        ? this._trans.__(
            'Requests in progress are answered; after that its address does not answer.'
          )
        : this._trans.__(
            'It ends at the next step. A stopped job cannot be continued.'
          ),
      serves
        ? this._trans.__('Stop the deployment')
        : this._trans.__('Stop the job')
    );
    if (sure) {
      await this.stopJobNow(id);
    }
  }

  async stopJobNow(id: string): Promise<void> {
    await this._ask(api => api.stopJob(id, 'asked for in JupyterLab'));
  }

  async scaleJob(id: string): Promise<void> {
    const job = this._model.summary(id);
    if (job === null) {
      return;
    }
    const result = await showDialog({
      title: this._trans.__('Scale %1', namedJob(job)),
      body: new ScaleBody(job, this._trans),
      buttons: [
        Dialog.cancelButton(),
        Dialog.okButton({ label: this._trans.__('Scale') })
      ],
      focusNodeSelector: 'input'
    });
    if (result.button.accept && typeof result.value === 'number') {
      const target = result.value;
      await this._ask(api => api.scaleJob(id, target));
    }
  }

  async injectFault(
    id: string,
    fault: Fault,
    target: FaultTarget
  ): Promise<void> {
    await this._ask(api => api.injectFault(id, fault, target));
  }

  /** The report of a job; empty where the server refuses it, which is shown. */
  async report(id: string): Promise<string> {
    let page = '';
    await this._ask(async api => {
      page = await api.report(id);
    });
    return page;
  }

  private _name(id: string): string {
    return namedJob(this._model.summary(id) ?? { id, name: '' });
  }

  /** Make a request; a refusal is shown in the server's words. */
  private async _ask(request: (api: Api) => Promise<unknown>): Promise<void> {
    try {
      await request(this._model.api);
    } catch (error) {
      tellRefusal(error, this._trans);
    }
  }
}
