/** What other extensions of JupyterLab may use: the token, and what stands behind it. Described in docs/plugin-api.md. */

import { Token } from '@lumino/coreutils';
import type { IDisposable } from '@lumino/disposable';
import type { ISignal } from '@lumino/signaling';

/** A job in the list of jobs. Times are seconds since the Unix epoch. */
export interface IHyperpodJob {
  readonly id: string;
  readonly name: string;
  readonly state:
    'pending' | 'running' | 'recovering' | 'succeeded' | 'failed' | 'stopped';
  /** Why it is in that state; empty where there is nothing to say. */
  readonly reason: string;
  readonly backend: string;
  /** From where it was submitted, such as `cell_id`. */
  readonly origin: Readonly<Record<string, string>>;
  readonly submitted_s: number | null;
  readonly started_s: number | null;
  readonly ended_s: number | null;
  /** The newest step that counts, and its loss. */
  readonly step: number;
  readonly loss: number | null;
  /** Wall time from commit to commit, the median of the last steps. */
  readonly step_time_s: number | null;
  /** How many members train. */
  readonly world_size: number;
}

/** A job that is followed. */
export interface IHyperpodJobView extends IHyperpodJob {
  /** `[step, loss, time_s, world_size]`, thinned where there are many. */
  readonly history: readonly (readonly [
    number,
    number | null,
    number,
    number
  ])[];
}

/** The nodes of this store's cluster. */
export interface IHyperpodCluster {
  readonly state: string;
  readonly reason: string;
  readonly nodes: readonly { readonly node: string; readonly state: string }[];
}

/** What is known now. Read it again when `changed` names the topic; change nothing in it. */
export interface IHyperpodModel {
  /** Topics that changed: `cluster`, `jobs`, `connection`, or a job's id. At most some twenty times a second. */
  readonly changed: ISignal<unknown, ReadonlySet<string>>;
  /** `absent`: the server lacks this extension, or has not enabled it. */
  readonly connection: 'connecting' | 'online' | 'offline' | 'absent';
  /** Null until the server has told. */
  readonly cluster: IHyperpodCluster | null;
  /** Whether the list of jobs has arrived. */
  readonly jobsKnown: boolean;
  /** Newest first; old ones may be missing. */
  readonly jobs: readonly IHyperpodJob[];
  /** Those that have not ended. */
  readonly activeJobs: readonly IHyperpodJob[];
  /** A job of the list; null where it is unknown. */
  summary(id: string): IHyperpodJob | null;
  /** Follow a job until the result is disposed. */
  watch(id: string): IDisposable;
  /** A job that is followed; null until it has arrived. */
  job(id: string): IHyperpodJobView | null;
}

/** What can be asked for. A refusal is shown to the user, in the server's words. */
export interface IHyperpodActions {
  openJob(id: string): void;
  openRuns(): void;
  /** Side by side; the first is compared with each other. */
  compareRuns(ids: string[]): void;
  /** Start a cluster of as many nodes as the user's settings say. */
  startCluster(): Promise<void>;
  /** Ask the user, then stop the cluster and its jobs. */
  stopCluster(): Promise<void>;
  /** Ask the user, then stop the job. */
  stopJob(id: string): Promise<void>;
  /** Ask the user for how many nodes, then scale the job. */
  scaleJob(id: string): Promise<void>;
}

export interface IHyperpod {
  readonly model: IHyperpodModel;
  readonly actions: IHyperpodActions;
}

/** The token by which an extension requires the state of the cluster and of the training jobs. */
export const IHyperpod = new Token<IHyperpod>(
  'jupyter_hyperpod:IHyperpod',
  'The state of the cluster and of the training jobs, and what can be asked of them.'
);
