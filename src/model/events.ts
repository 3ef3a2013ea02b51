/**
 * Facts that the server sends, twin of `core/events.py`: one Event is identified by `(writer, seq)`.
 */

/** Kind to the fields that must be present in `data`. */
export const EVENT_FIELDS = {
  'job.submitted': ['id', 'spec'],
  'job.state': ['state', 'reason'],
  'member.joined': ['member', 'node', 'pid', 'host'],
  'member.ready': ['member', 'node'],
  'member.lost': ['member', 'node', 'rank', 'cause', 'detail'],
  'generation.formed': ['generation', 'members', 'spares', 'target', 'reason'],
  'session.opened': [
    'total_steps',
    'global_batch',
    'micro_batch',
    'micro_batches',
    'parameters',
    'state_bytes'
  ],
  'incident.stage': [
    'incident',
    'stage',
    'cause',
    'node',
    'rank',
    'rung',
    'text'
  ],
  'decision.made': ['policy', 'value', 'reason'],
  'fault.injected': ['fault', 'node', 'rank', 'member'],
  'command.done': ['command', 'kind', 'ok', 'reason'],
  'session.closed': ['step', 'digest'],
  'checkpoint.loaded': ['step', 'path', 'took_s'],
  'checkpoint.refused': ['path', 'reason'],
  'step.committed': [
    'step',
    'generation',
    'loss',
    'loss_hex',
    'step_time_s',
    'samples',
    'world_size',
    'assignment',
    'redone'
  ],
  'metric.logged': ['step', 'values'],
  'checkpoint.saved': ['step', 'path', 'bytes', 'took_s', 'paused_s'],
  'model.loading': [
    'member',
    'node',
    'state',
    'url',
    'bytes_done',
    'bytes_total',
    'elapsed_s',
    'first_layer_s'
  ],
  'output.written': ['member', 'node', 'rank', 'stream', 'text'],
  'user.error': ['member', 'node', 'rank', 'type', 'message', 'traceback'],
  'deployment.opened': ['url', 'model', 'task'],
  'replica.stage': ['replica', 'node', 'stage', 'took_s', 'text'],
  'warning.raised': ['text'],
  'allocation.changed': [
    'scheduler',
    'element',
    'part',
    'state',
    'node',
    'reason'
  ],
  'cluster.state': ['state', 'reason', 'nodes', 'pid'],
  'node.state': [
    'node',
    'state',
    'reason',
    'spare',
    'slots',
    'used',
    'jobs',
    'pid',
    'incarnation'
  ],
  'node.findings': ['nodes', 'findings'],
  'node.health': [
    'node',
    'action',
    'fault',
    'reason',
    'labels',
    'recovery',
    'devices',
    'boot'
  ],
  'rule.state': ['rule', 'state', 'member', 'rank', 'value', 'text']
} as const satisfies Record<string, readonly string[]>;

export type EventKind = keyof typeof EVENT_FIELDS;

/** One fact; `time_s` is seconds since the Unix epoch on the writer's clock. */
export interface IEvent {
  writer: string;
  seq: number;
  time_s: number;
  kind: string;
  data: Record<string, any>;
}

export type JobState =
  'pending' | 'running' | 'recovering' | 'succeeded' | 'failed' | 'stopped';

export type NodeState =
  'starting' | 'idle' | 'busy' | 'drained' | 'lost' | 'stopped';

export type Aim = 'rank' | 'node' | 'coordinator' | 'supervisor';

/** A kind of fault that can be injected: whom it may be aimed at, and what it does. */
export interface IFaultClass {
  aims: readonly Aim[];
  sentence: string;
}

const EVERYBODY: readonly Aim[] = ['rank', 'node', 'coordinator', 'supervisor'];

export const FAULTS = {
  kill: {
    aims: EVERYBODY,
    sentence:
      'SIGKILL: the process, or every process of the node, is gone at once'
  },
  hang: {
    aims: EVERYBODY,
    sentence: 'SIGSTOP: it stays, but does nothing and answers nobody'
  },
  throttle: {
    aims: ['rank'],
    sentence: 'it gets only a part of its CPU time for a while: a straggler'
  },
  partition: {
    aims: ['node'],
    sentence: 'the node goes on, but its network reaches nobody'
  },
  preempt: {
    aims: ['rank', 'node'],
    sentence:
      "SIGUSR1: the node is to be given back within the job's grace time"
  },
  nan: {
    aims: ['rank'],
    sentence:
      'the loss of its next micro-batch, and so the gradient, is not a number'
  },
  spike: {
    aims: ['rank'],
    sentence:
      'the loss of its next micro-batch, and so the gradient, is a thousandfold'
  },
  'flip-gradient': {
    aims: ['rank'],
    sentence: "one random bit of its next micro-batch's gradient is flipped"
  },
  'flip-parameter': {
    aims: ['rank'],
    sentence: 'one random bit of its parameters is flipped'
  },
  'flip-optimizer': {
    aims: ['rank'],
    sentence: "one random bit of its optimizer's state is flipped"
  },
  exception: {
    aims: ['rank'],
    sentence:
      'the cell raises an exception there: an error of the program, not retried'
  }
} as const satisfies Record<string, IFaultClass>;

export type Fault = keyof typeof FAULTS;

/** The faults that may be aimed at `aim`, in the order of the table. */
export function faultsOf(aim: Aim): Fault[] {
  return (Object.keys(FAULTS) as Fault[]).filter(fault =>
    (FAULTS[fault].aims as readonly Aim[]).includes(aim)
  );
}

export const TERMINAL_STATES: ReadonlySet<string> = new Set([
  'succeeded',
  'failed',
  'stopped'
]);

/** Whether a value from outside is a whole, known event. */
export function isEvent(value: unknown): value is IEvent {
  const event = value as IEvent;
  if (typeof event !== 'object' || event === null) {
    return false;
  }
  const { writer, seq, time_s, kind, data } = event;
  return (
    typeof writer === 'string' &&
    Number.isInteger(seq) &&
    seq > 0 &&
    typeof time_s === 'number' &&
    Object.hasOwn(EVENT_FIELDS, kind) &&
    typeof data === 'object' &&
    data !== null &&
    !Array.isArray(data) &&
    EVENT_FIELDS[kind as EventKind].every(field => field in data)
  );
}
