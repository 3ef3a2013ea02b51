/** Written by `python tests/journals/regenerate.py` from `core/vocabulary.py`: change that table instead. */

export type JobState = 'pending' | 'running' | 'recovering' | 'succeeded' | 'failed' | 'stopped';

export type Phase = 'gathering' | 'running script' | 'forming' | 'training' | 'reforming' | 'waiting' | 'adopting' | 'closing' | 'ended';

export type NodeState = 'starting' | 'idle' | 'busy' | 'drained' | 'partitioned' | 'lost' | 'stopped';

export type RuleState = 'WAITING' | 'HEALTHY' | 'SLOW' | 'HANGING' | 'FAULTED';

export type Outcome = 'pass' | 'fail' | 'skipped';

export type LoadState = 'loading' | 'loaded' | 'failed';

export interface IMember {
  member: string;
  node: string;
  rank: number | null;
  pid?: number;
}

export interface IRange {
  minimum: number;
  maximum: number;
}

export interface IServed {
  minimum: number;
}

export interface ISpec {
  name: string;
  cell_digest: string;
  nodes: number;
  elastic: IRange | null;
  backend: string;
  spares?: number;
  priority?: number;
  queue?: string;
  origin?: Record<string, any>;
  serve?: IServed | null;
}

export interface IOrder {
  writer: string;
  seq: number;
}

export interface IFinding {
  probe: string;
  outcome: Outcome;
  severity: string;
  fault: string;
  text: string;
  device: string;
}

/** The data of every kind of event. */
export interface IFacts {
  'job.submitted': {
    id: string;
    spec: ISpec;
  };
  'job.labelled': {
    add: string[];
    remove: string[];
    by: string;
    note?: string;
    archived?: boolean;
  };
  'job.state': {
    state: JobState;
    reason: string;
  };
  'phase.changed': {
    phase: Phase;
    reason: string;
  };
  'member.joined': {
    member: string;
    node: string;
    pid: number;
    host: string;
  };
  'member.ready': {
    member: string;
    node: string;
  };
  'member.lost': {
    member: string;
    node: string;
    rank: number | null;
    cause: string;
    detail: string;
  };
  'generation.formed': {
    generation: number;
    members: IMember[];
    spares: IMember[];
    target: number;
    reason: string;
  };
  'session.opened': {
    total_steps: number | null;
    global_batch: number;
    micro_batch: number;
    micro_batches: number;
    parameters: number;
    state_bytes: number;
    number?: number;
  };
  'incident.stage': {
    incident: number | string;
    stage: string;
    cause: string;
    node: string | null;
    rank: number | null;
    rung: number | null;
    text: string;
    since_s?: number | null;
  };
  'decision.made': {
    policy: string;
    value: any;
    reason: string;
  };
  'fault.injected': {
    fault: string;
    node: string | null;
    rank: number | null;
    member: string | null;
  };
  'command.done': {
    command: IOrder;
    kind: string;
    ok: boolean;
    reason: string;
    by?: string;
  };
  'session.closed': {
    step: number;
    digest: string;
  };
  'checkpoint.loaded': {
    step: number;
    path: string;
    took_s: number;
    session?: number;
    generation?: number;
    asked?: boolean;
  };
  'checkpoint.refused': {
    path: string;
    reason: string;
  };
  'step.committed': {
    step: number;
    generation: number;
    loss: number | null;
    loss_hex: string;
    step_time_s: number;
    samples: number;
    world_size: number;
    redone: number;
    assignment?: any;
    steps?: number;
    micro_batches?: number;
    rate_factor?: number;
    session?: number;
  };
  'metric.logged': {
    step: number;
    values: Record<string, any>;
  };
  'checkpoint.saved': {
    step: number;
    path: string;
    bytes: number;
    took_s: number;
    paused_s: number;
  };
  'model.loading': {
    member: string;
    node: string;
    state: LoadState;
    url: string;
    bytes_done: number;
    bytes_total: number;
    elapsed_s: number;
    first_layer_s: number | null;
  };
  'output.written': {
    member: string;
    node: string;
    rank: number | null;
    stream: string;
    text: string;
    shown?: Record<string, any>;
    session?: number;
    step?: number;
    cell?: number;
    begins?: number;
  };
  'user.error': {
    member: string;
    node: string;
    rank: number | null;
    type: string;
    message: string;
    traceback: string[];
    line?: number | null;
    cell?: number | null;
  };
  'deployment.opened': {
    url: string;
    model: string;
    task: string;
    host?: string;
    loopback?: string;
  };
  'replica.stage': {
    replica: string;
    node: string;
    stage: string;
    took_s: number;
    text: string;
  };
  'warning.raised': {
    text: string;
  };
  'allocation.changed': {
    scheduler: string;
    element: string;
    part: number;
    state: string;
    node: string;
    reason: string;
  };
  'nodes.sampled': {
    nodes: string[];
    values: Record<string, any>;
    every_s: number;
  };
  'cluster.state': {
    state: string;
    reason: string;
    nodes: string[];
    pid: number | null;
    queues?: Record<string, any>;
    idle?: boolean;
  };
  'cluster.idle': {
    since_s: number | null;
    ends_s: number | null;
    reason: string;
  };
  'node.state': {
    node: string;
    state: NodeState;
    reason: string;
    spare: boolean;
    slots: number;
    used: number;
    jobs: string[];
    pid: number | null;
    incarnation: number;
  };
  'node.findings': {
    nodes: string[];
    findings: IFinding[];
  };
  'node.health': {
    node: string;
    action: string;
    fault: string;
    reason: string;
    labels: Record<string, any>;
    recovery: string;
    devices: Record<string, any>;
    boot: string;
  };
  'rule.state': {
    rule: string;
    state: RuleState;
    member: string;
    rank: number | null;
    value: number | null;
    text: string;
  };
}

/** The fields that every kind of event must have. */
export const EVENT_FIELDS = {
  'job.submitted': [
    'id',
    'spec'
  ],
  'job.labelled': [
    'add',
    'remove',
    'by'
  ],
  'job.state': [
    'state',
    'reason'
  ],
  'phase.changed': [
    'phase',
    'reason'
  ],
  'member.joined': [
    'member',
    'node',
    'pid',
    'host'
  ],
  'member.ready': [
    'member',
    'node'
  ],
  'member.lost': [
    'member',
    'node',
    'rank',
    'cause',
    'detail'
  ],
  'generation.formed': [
    'generation',
    'members',
    'spares',
    'target',
    'reason'
  ],
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
  'decision.made': [
    'policy',
    'value',
    'reason'
  ],
  'fault.injected': [
    'fault',
    'node',
    'rank',
    'member'
  ],
  'command.done': [
    'command',
    'kind',
    'ok',
    'reason'
  ],
  'session.closed': [
    'step',
    'digest'
  ],
  'checkpoint.loaded': [
    'step',
    'path',
    'took_s'
  ],
  'checkpoint.refused': [
    'path',
    'reason'
  ],
  'step.committed': [
    'step',
    'generation',
    'loss',
    'loss_hex',
    'step_time_s',
    'samples',
    'world_size',
    'redone'
  ],
  'metric.logged': [
    'step',
    'values'
  ],
  'checkpoint.saved': [
    'step',
    'path',
    'bytes',
    'took_s',
    'paused_s'
  ],
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
  'output.written': [
    'member',
    'node',
    'rank',
    'stream',
    'text'
  ],
  'user.error': [
    'member',
    'node',
    'rank',
    'type',
    'message',
    'traceback'
  ],
  'deployment.opened': [
    'url',
    'model',
    'task'
  ],
  'replica.stage': [
    'replica',
    'node',
    'stage',
    'took_s',
    'text'
  ],
  'warning.raised': [
    'text'
  ],
  'allocation.changed': [
    'scheduler',
    'element',
    'part',
    'state',
    'node',
    'reason'
  ],
  'nodes.sampled': [
    'nodes',
    'values',
    'every_s'
  ],
  'cluster.state': [
    'state',
    'reason',
    'nodes',
    'pid'
  ],
  'cluster.idle': [
    'since_s',
    'ends_s',
    'reason'
  ],
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
  'node.findings': [
    'nodes',
    'findings'
  ],
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
  'rule.state': [
    'rule',
    'state',
    'member',
    'rank',
    'value',
    'text'
  ]
} as const satisfies { [K in keyof IFacts]: readonly (keyof IFacts[K])[] };
