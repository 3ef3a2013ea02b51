/**
 * The types of all views: the JSON of `core/views.py`. Times are seconds since the Unix epoch.
 */

import type { IFacts, IFinding as IFound, IMember, JobState } from './facts';

/** Writer to the last sequence number folded. */
export type Cursor = Record<string, number>;

/** The members of a generation, by node. */
export interface IGeneration {
  generation: number;
  time_s: number;
  nodes: string[];
  spares: string[];
  reason: string;
}

/** The newest session's own description. */
export type ISession = IFacts['session.opened'];

/** `took_s` counts from the previous stage, for the first from the fault; null where the journal lacks that time. */
export interface IStage {
  stage: string;
  time_s: number;
  took_s: number | null;
  text: string;
}

/**
 * An incident. `started_s` is the time of the fault: its injection, or the last sign of life. Where the journal lacks it (`detection_s` is null), it is the time of detection.
 */
export interface IIncident {
  incident: string | number;
  cause: string;
  node: string | null;
  rank: number | null;
  rung: number | null;
  started_s: number;
  /** From the fault to the first stage. */
  detection_s: number | null;
  resumed_s: number | null;
  /** From the fault to the commit after it: the figure that every face shows. */
  recovery_s: number | null;
  stages: IStage[];
}

export type IOutput = IFacts['output.written'] & { time_s: number };

export interface IDecision {
  time_s: number;
  policy: string;
  reason: string;
}

/** An error of a rank's program; journals of other versions may lack fields. */
export type IUserError = IFacts['user.error'];

/** A step and its loss. */
export type TrendPoint = readonly [number, number | null, ...number[]];

/** `[step, loss, time_s, world_size]` */
/** `[step, Unix time, samples of all steps until then]`. */
export type Commit = [number, number, number];

export type HistoryPoint = [number, number | null, number, number];

/** The newest durable checkpoint; training stood still for `paused_s` of the `took_s` seconds. */
export type ICheckpoint = IFacts['checkpoint.saved'] & { time_s: number };

/** A stage of a replica's start; `took_s` counts from the decision to start it. */
export interface IReplica {
  replica: string;
  node: string;
  stages: { stage: string; took_s: number; time_s: number }[];
}

/** An endpoint that serves a model. */
export interface IDeployment {
  url: string;
  model: string;
  task: string;
  /** Whose loopback the URL names; "" where nobody has said it. */
  host: string;
  loopback: string;
  replicas: IReplica[];
}

/** A member's progress with its present or last load. */
export type ILoad = IFacts['model.loading'] & { time_s: number };

/** The state of a log rule for a rank; `rank` is null for all ranks together. */
export type IRule = IFacts['rule.state'] & { time_s: number };

/** The last step of an earlier session of the cell. */
export interface ISessionEnd {
  number: number;
  step: number;
  loss: number | null;
}

/** What a person has written on a job; `by`: who did so last. */
export interface ILabels {
  tags: string[];
  note: string;
  archived: boolean;
  by: string;
  time_s: number | null;
}

export interface IJobView {
  id: string;
  /** Only where its directory is gone: nothing can be asked about it any more. */
  deleted?: boolean;
  name: string;
  state: JobState;
  reason: string;
  /** Why it gets no more nodes while it runs on fewer than it wants; part of the reason. */
  waits: string;
  /** What its members are at; empty where the journal is of an older version. */
  phase: string;
  backend: string;
  nodes_wanted: number;
  minimum: number;
  maximum: number;
  spares_wanted: number;
  priority: number;
  /** Whose guaranteed nodes it may use; empty for none. */
  queue: string;
  origin: Record<string, string>;
  labels: ILabels;
  submitted_s: number | null;
  started_s: number | null;
  ended_s: number | null;
  generation: number;
  target: number;
  members: IMember[];
  spares: IMember[];
  world_size: number;
  generations: IGeneration[];
  session: ISession | null;
  /** The place of the session in the cell, from 1; 0 before the first one. */
  session_number: number;
  /** How the earlier sessions of the cell ended. */
  sessions: ISessionEnd[];
  step: number;
  loss: number | null;
  /** The median of the wall time from commit to commit, over the last steps. */
  step_time_s: number | null;
  /** Samples committed per second of wall time, over the last steps. */
  samples_per_s: number | null;
  commits: Commit[];
  samples: number;
  redone: number;
  metrics: Record<string, unknown>;
  history: HistoryPoint[];
  history_stride: number;
  incidents: IIncident[];
  decisions: IDecision[];
  warnings: { time_s: number; text: string }[];
  output: IOutput[];
  error: IUserError | null;
  checkpoint: ICheckpoint | null;
  deployment: IDeployment | null;
  loads: ILoad[];
  rules: IRule[];
  digest: string | null;
  /** When each lost member was lost: what it commits later does not count. */
  fenced: Record<string, number>;
  updated_s: number | null;
  seen: Cursor;
}

export type INodeView = IFacts['node.state'] & { since_s: number };

/** The result of a probe. */
export type IFinding = IFound & { time_s: number };

/** The devices of a machine, and those of its type; null where unknown. */
export interface IDevices {
  type?: string;
  kind?: string;
  expected?: number | null;
  found?: number | null;
  busy?: number | null;
  efa_expected?: number | null;
  efa_found?: number | null;
  cpus?: number;
  memory_bytes?: number;
}

/** Health of a node; `action` is the remedy in progress, `watch` where none is needed. */
export interface IHealth {
  action: 'watch' | 'drain' | 'reboot' | 'replace';
  fault: string;
  reason: string;
  labels: Record<string, string>;
  recovery: string;
  devices: IDevices;
  boot: string;
  findings: IFinding[];
  history: IFinding[];
  remedies: { time_s: number; action: string; fault: string; reason: string }[];
  since_s: number | null;
}

/** Since when nobody has used the cluster, and when it ends because of that, or has ended. */
export interface IIdle {
  since_s: number;
  ends_s: number;
}

export interface IClusterView {
  state: string;
  reason: string;
  pid: number | null;
  /** How many nodes each queue is guaranteed. */
  queues: Record<string, number>;
  /** Null while it is used, and where it was stopped. */
  idle: IIdle | null;
  nodes: INodeView[];
  health: Record<string, IHealth>;
  incidents: IIncident[];
  decisions: IDecision[];
  warnings: { time_s: number; text: string }[];
  /** Only while the disk of the store is full: what that means. */
  room?: string;
  updated_s: number | null;
  seen: Cursor;
}

/** The fields of each job in the list of jobs. */
export type IJobSummary = Omit<
  IJobView,
  | 'output'
  | 'history'
  | 'history_stride'
  | 'commits'
  | 'decisions'
  | 'fenced'
  | 'seen'
> & {
  /** Some points of the history; only the server's list has it. */
  trend?: TrendPoint[];
};

/** The view of a job before its first event. */
export function newJobView(id: string): IJobView {
  return {
    id,
    name: '',
    state: 'pending',
    reason: '',
    waits: '',
    phase: '',
    backend: '',
    nodes_wanted: 0,
    minimum: 0,
    maximum: 0,
    spares_wanted: 0,
    priority: 0,
    queue: '',
    origin: {},
    labels: { tags: [], note: '', archived: false, by: '', time_s: null },
    submitted_s: null,
    started_s: null,
    ended_s: null,
    generation: 0,
    target: 0,
    members: [],
    spares: [],
    world_size: 0,
    generations: [],
    session: null,
    session_number: 0,
    sessions: [],
    step: 0,
    loss: null,
    step_time_s: null,
    samples_per_s: null,
    commits: [],
    samples: 0,
    redone: 0,
    metrics: {},
    history: [],
    history_stride: 1,
    incidents: [],
    decisions: [],
    warnings: [],
    output: [],
    error: null,
    checkpoint: null,
    deployment: null,
    loads: [],
    rules: [],
    digest: null,
    fenced: {},
    updated_s: null,
    seen: {}
  };
}

/** The view of a cluster before its first event. */
export function newClusterView(): IClusterView {
  return {
    state: 'stopped',
    reason: '',
    pid: null,
    queues: {},
    idle: null,
    nodes: [],
    health: {},
    incidents: [],
    decisions: [],
    warnings: [],
    updated_s: null,
    seen: {}
  };
}
