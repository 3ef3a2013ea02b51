/**
 * Facts that the server sends, twin of `core/events.py`: one Event is identified by `(writer, seq)`.
 */

import { EVENT_FIELDS, IFacts, JobState } from './facts';

export type EventKind = keyof IFacts;

/** One fact of a kind; `time_s` is seconds since the Unix epoch on the writer's clock. */
export interface IEventOf<K extends EventKind> {
  writer: string;
  seq: number;
  time_s: number;
  kind: K;
  data: IFacts[K];
}

/** One fact of any kind. */
export type IEvent = { [K in EventKind]: IEventOf<K> }[EventKind];

export type Aim = 'rank' | 'node' | 'coordinator' | 'supervisor';

/** A kind of fault that can be injected: its possible targets and its effect. */
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

/** The faults with the target `aim`, in the order of the table. */
export function faultsOf(aim: Aim): Fault[] {
  return (Object.keys(FAULTS) as Fault[]).filter(fault =>
    (FAULTS[fault].aims as readonly Aim[]).includes(aim)
  );
}

export const TERMINAL_STATES: ReadonlySet<string> = new Set<JobState>([
  'succeeded',
  'failed',
  'stopped'
]);

/** Whether a value from outside is a complete event of a known kind. */
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
    EVENT_FIELDS[kind].every(field => field in data)
  );
}
