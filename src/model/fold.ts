/**
 * Folds of events into views, the twin of `core/views.py`: golden journals keep the two equal.
 *
 * Folding is idempotent (an event already seen changes nothing) and monotonic (an older generation
 * never regresses a newer view). Views are folded in place: the model owns them.
 */

import { EventKind, IEvent, IEventOf, TERMINAL_STATES } from './events';
import { foldStage } from './incidents';
import { COMMITS_KEPT, stepTime, throughput } from './throughput';
import type {
  IClusterView,
  IFinding,
  IHealth,
  IJobView,
  INodeView,
  IOutput,
  IRule
} from './views';

export const HISTORY_POINTS = 512;
export const OUTPUT_LINES = 400;
/** Unicode characters that long pieces of output take together; the newest is kept whole. */
export const OUTPUT_CHARACTERS = 1 << 18;
export const DECISIONS_KEPT = 50;
export const GENERATIONS_KEPT = 200;
/** Names in all generations together; the newest generation is kept whole. */
export const GENERATION_NODES_KEPT = 4096;
export const WARNINGS_KEPT = 20;
/** Seconds within which a sentence that several ranks say counts once. */
export const SAME_WARNING_S = 60;
export const FENCED_KEPT = 200;
export const REPLICAS_KEPT = 50;
export const LOADS_KEPT = 64;
export const FINDINGS_KEPT = 50;
export const RULES_KEPT = 256;
export const SESSIONS_KEPT = 100;
export const TAGS_KEPT = 20;

/** The effect of each kind of event on a view; the compiler checks its data against Python's table of events. */
type Handlers<V> = { [K in EventKind]?: (view: V, event: IEventOf<K>) => void };

/** Fold an event of a job's journal; returns whether it was new. */
export function foldJob(view: IJobView, event: IEvent): boolean {
  return apply(view, event, JOB_HANDLERS);
}

/** Fold an event of the cluster's journal; returns whether it was new. */
export function foldCluster(view: IClusterView, event: IEvent): boolean {
  return apply(view, event, CLUSTER_HANDLERS);
}

function apply<V extends IJobView | IClusterView>(
  view: V,
  event: IEvent,
  handlers: Handlers<V>
): boolean {
  const seen = Object.hasOwn(view.seen, event.writer)
    ? view.seen[event.writer]
    : 0;
  if (event.seq <= seen) {
    return false;
  }
  view.seen[event.writer] = event.seq;
  if (Object.hasOwn(handlers, event.kind)) {
    const handle = handlers[event.kind] as (view: V, event: IEvent) => void;
    handle(view, event);
  }
  view.updated_s = Math.max(view.updated_s || event.time_s, event.time_s);
  return true;
}

/** Whether a worker wrote `event` after it was lost. */
function isFenced(view: IJobView, event: IEvent): boolean {
  const name = event.writer.replace(/\.[^.]*$/, '');
  const member = name.replace(/^worker-/, '');
  return (
    name.startsWith('worker-') &&
    Object.hasOwn(view.fenced, member) &&
    event.time_s > view.fenced[member]
  );
}

/** Keep only the newest `count` entries. */
function keepLast(list: unknown[], count: number): void {
  if (list.length > count) {
    list.splice(0, list.length - count);
  }
}

/** Forget the oldest generations where all together name too many nodes. */
function boundNames(generations: IJobView['generations']): void {
  let names = 0;
  for (let kept = 0; kept < generations.length; kept++) {
    const formed = generations[generations.length - 1 - kept];
    names += formed.nodes.length + formed.spares.length;
    if (kept > 0 && names > GENERATION_NODES_KEPT) {
      keepLast(generations, kept);
      return;
    }
  }
}

/** Append a piece of output, and keep only the newest: `OUTPUT_LINES` of them, and of long ones fewer. */
function appendOutput(list: IOutput[], record: IOutput): void {
  list.push(record);
  keepLast(list, OUTPUT_LINES);
  if (characters(record) * OUTPUT_LINES <= OUTPUT_CHARACTERS) {
    return; // pieces as short as this one cannot be too long together
  }
  let size = 0;
  for (let kept = 0; kept < list.length; kept++) {
    size += characters(list[list.length - 1 - kept]);
    if (kept > 0 && size > OUTPUT_CHARACTERS) {
      keepLast(list, kept);
      return;
    }
  }
}

/** As Python counts them: a pair of surrogates is one. */
function characters({ text }: IOutput): number {
  if (typeof text !== 'string') {
    return 0;
  }
  const pairs = text.match(/[\uD800-\uDBFF][\uDC00-\uDFFF]/g);
  return text.length - (pairs?.length ?? 0);
}

/** Begin to show a session of the cell: its steps and losses; of an earlier one its end is kept. */
function enterSession(view: IJobView, number: number): void {
  if (number <= view.session_number) {
    return;
  }
  if (view.step) {
    view.sessions.push({
      number: view.session_number,
      step: view.step,
      loss: view.loss
    });
    keepLast(view.sessions, SESSIONS_KEPT);
  }
  view.session_number = number;
  view.step = 0;
  view.loss = null;
  view.step_time_s = null;
  view.samples_per_s = null;
  view.commits = [];
  view.history = [];
  view.history_stride = 1;
}

/** Say in the reason why a job that runs has fewer nodes than it wants; `newest`: why its members are others now. */
function explain(view: IJobView, newest = ''): void {
  const complete = newest !== '' && view.world_size >= view.target;
  if (complete || TERMINAL_STATES.has(view.state)) {
    view.waits = '';
  }
  if (view.state !== 'running') {
    return;
  }
  const missing = view.target - view.world_size;
  if (view.waits && view.world_size && missing > 0) {
    const nodes = `${view.world_size.toLocaleString('en-US')} node${view.world_size === 1 ? '' : 's'}`;
    view.reason = `runs on ${nodes} and waits for ${missing.toLocaleString('en-US')} more: ${view.waits}`;
  } else if (newest) {
    view.reason = newest;
  }
}

/** Folds for kinds of both journals. */
const SHARED_HANDLERS: Handlers<IJobView | IClusterView> = {
  'incident.stage': (view, event) => {
    foldStage(view.incidents, event);
  },

  'decision.made': (view, event) => {
    view.decisions.push({
      time_s: event.time_s,
      policy: event.data.policy,
      reason: event.data.reason
    });
    keepLast(view.decisions, DECISIONS_KEPT);
    if (event.data.policy === 'capacity' && 'waits' in view) {
      view.waits = event.data.reason;
      if (view.state === 'pending') {
        view.reason = event.data.reason;
      }
      explain(view);
    }
  },

  'warning.raised': (view, event) => {
    const { time_s } = event;
    const { text } = event.data;
    const isSaid = view.warnings.some(
      warning =>
        warning.text === text &&
        Math.abs(time_s - warning.time_s) <= SAME_WARNING_S
    );
    if (!isSaid) {
      view.warnings.push({ time_s, text });
      keepLast(view.warnings, WARNINGS_KEPT);
    }
  }
};

const JOB_HANDLERS: Handlers<IJobView> = {
  ...SHARED_HANDLERS,
  'job.submitted': (view, event) => {
    const spec = event.data.spec;
    const elastic = spec.elastic;
    view.name = spec.name;
    view.backend = spec.backend;
    view.nodes_wanted = spec.nodes;
    view.target = view.target || spec.nodes;
    view.minimum = spec.serve?.minimum ?? (elastic ? elastic.minimum : 1);
    view.maximum = elastic ? elastic.maximum : spec.nodes;
    view.spares_wanted = spec.spares ?? 0;
    view.priority = spec.priority ?? 0;
    view.queue = spec.queue ?? '';
    view.origin = { ...(spec.origin ?? {}) };
    view.submitted_s = event.time_s;
  },

  'job.labelled': (view, event) => {
    const { add, remove, by } = event.data;
    const { tags, note, archived } = view.labels;
    const kept = tags.filter(
      tag => !remove.includes(tag) && !add.includes(tag)
    );
    view.labels = {
      tags: [...kept, ...add].slice(-TAGS_KEPT),
      note: event.data.note ?? note,
      archived: event.data.archived ?? archived,
      by,
      time_s: event.time_s
    };
  },

  'job.state': (view, event) => {
    if (TERMINAL_STATES.has(view.state)) {
      return;
    }
    view.state = event.data.state;
    view.reason = event.data.reason;
    if (view.state === 'running' && view.started_s === null) {
      view.started_s = event.time_s;
    }
    if (view.state === 'succeeded') {
      view.error = null;
    }
    if (TERMINAL_STATES.has(view.state)) {
      view.ended_s = event.time_s;
    }
    explain(view);
  },

  'phase.changed': (view, event) => {
    view.phase = event.data.phase;
  },

  'generation.formed': (view, event) => {
    const data = event.data;
    if (data.generation < view.generation) {
      return;
    }
    if (data.generation > view.generation) {
      view.error = null; // the job continues: the loss of a member had caused this error
    }
    if (data.generation && !view.generation) {
      view.waits = ''; // that was about the first nodes
    }
    view.generation = data.generation;
    view.target = data.target;
    view.members = data.members.map(member => ({ ...member }));
    view.spares = data.spares.map(spare => ({ ...spare }));
    view.world_size = data.members.length;
    explain(view, data.reason);
    const present = new Set(
      [...view.members, ...view.spares].map(one => one.member)
    );
    view.loads = view.loads.filter(
      load => load.state !== 'loading' || present.has(load.member)
    );
    view.generations.push({
      generation: data.generation,
      time_s: event.time_s,
      nodes: data.members.map(member => member.node ?? ''),
      spares: data.spares.map(spare => spare.node ?? ''),
      reason: data.reason
    });
    keepLast(view.generations, GENERATIONS_KEPT);
    boundNames(view.generations);
  },

  'member.lost': (view, event) => {
    view.fenced[event.data.member] = event.time_s;
    view.loads = view.loads.filter(load => load.member !== event.data.member);
    for (const member of Object.keys(view.fenced).slice(0, -FENCED_KEPT)) {
      delete view.fenced[member];
    }
  },

  'session.opened': (view, event) => {
    const number = event.data.number ?? 1;
    if (number < view.session_number) {
      return; // a cell that was started again goes through its earlier sessions
    }
    view.session = { ...event.data };
    enterSession(view, number);
  },

  'session.closed': (view, event) => {
    view.digest = event.data.digest;
  },

  'step.committed': (view, event) => {
    const data = event.data;
    const number = data.session ?? 1;
    if (number < view.session_number || isFenced(view, event)) {
      return;
    }
    enterSession(view, number);
    if (data.step <= view.step) {
      return;
    }
    view.step = data.step;
    view.loss = data.loss;
    view.samples += data.samples;
    view.commits.push([data.step, event.time_s, view.samples]);
    keepLast(view.commits, COMMITS_KEPT);
    view.step_time_s = stepTime(view.commits);
    view.samples_per_s = throughput(view.commits);
    if (data.micro_batches !== undefined && view.session) {
      view.session = {
        ...view.session,
        global_batch: data.micro_batches * view.session.micro_batch,
        micro_batches: data.micro_batches
      };
    }
    view.redone += data.redone;
    if (data.step % view.history_stride === 0 || data.step === 1) {
      view.history.push([data.step, data.loss, event.time_s, data.world_size]);
    }
    if (view.history.length > HISTORY_POINTS) {
      view.history_stride *= 2;
      view.history = view.history.filter(
        point => point[0] % view.history_stride === 0 || point[0] === 1
      );
    }
  },

  'checkpoint.saved': (view, event) => {
    if (view.checkpoint !== null && event.time_s < view.checkpoint.time_s) {
      return;
    }
    const { step, path, bytes, took_s, paused_s } = event.data;
    view.checkpoint = {
      step,
      path,
      bytes,
      took_s,
      paused_s,
      time_s: event.time_s
    };
  },

  'model.loading': (view, event) => {
    if (isFenced(view, event)) {
      return;
    }
    const load = { ...event.data, time_s: event.time_s };
    const at = view.loads.findIndex(known => known.member === load.member);
    if (at >= 0) {
      view.loads[at] = load;
      return;
    }
    view.loads.push(load);
    keepLast(view.loads, LOADS_KEPT);
  },

  'deployment.opened': (view, event) => {
    const { url, model, task, host = '', loopback = '' } = event.data;
    const replicas = view.deployment?.replicas ?? [];
    view.deployment = { url, model, task, host, loopback, replicas };
  },

  'replica.stage': (view, event) => {
    const { replica: name, node, stage, took_s } = event.data;
    view.deployment ??= {
      url: '',
      model: '',
      task: '',
      host: '',
      loopback: '',
      replicas: []
    };
    const replicas = view.deployment.replicas;
    let replica = replicas.find(known => known.replica === name);
    if (replica === undefined) {
      replica = { replica: name, node, stages: [] };
      replicas.push(replica);
      keepLast(replicas, REPLICAS_KEPT);
    }
    replica.stages.push({ stage, took_s, time_s: event.time_s });
  },

  'metric.logged': (view, event) => {
    Object.assign(view.metrics, event.data.values);
  },

  'output.written': (view, event) => {
    const { member, node, rank, stream, text } = event.data;
    if (event.data.begins !== undefined) {
      return;
    }
    appendOutput(view.output, {
      member,
      node,
      rank,
      stream,
      text,
      time_s: event.time_s
    });
  },

  'rule.state': (view, event) => {
    const record: IRule = { ...event.data, time_s: event.time_s };
    const at = view.rules.findIndex(
      rule => rule.rule === record.rule && rule.rank === record.rank
    );
    if (at < 0) {
      view.rules.push(record);
      keepLast(view.rules, RULES_KEPT);
    } else {
      view.rules[at] = record;
    }
  },

  'user.error': (view, event) => {
    if (view.error === null) {
      view.error = { ...event.data };
    }
  }
};

const CLUSTER_HANDLERS: Handlers<IClusterView> = {
  ...SHARED_HANDLERS,
  'cluster.state': (view, event) => {
    view.state = event.data.state;
    view.reason = event.data.reason;
    view.pid = event.data.pid;
    view.queues = { ...(event.data.queues ?? view.queues) };
    if (view.state !== 'running') {
      const since_s = view.idle?.since_s ?? event.time_s;
      view.idle = event.data.idle ? { since_s, ends_s: event.time_s } : null;
    }
    if (view.state === 'stopped') {
      for (const node of view.nodes) {
        delete view.health[node.node];
      }
    }
    if (view.state === 'starting' || view.state === 'stopped') {
      view.nodes = [];
    }
  },

  'cluster.idle': (view, event) => {
    const { since_s, ends_s } = event.data;
    view.idle =
      since_s === null || ends_s === null ? null : { since_s, ends_s };
  },

  'node.state': (view, event) => {
    const record: INodeView = { ...event.data, since_s: event.time_s };
    const at = placeOf(view.nodes, record.node);
    if (at === undefined) {
      view.nodes.push(record);
      return;
    }
    const before = view.nodes[at];
    if (before.state === record.state) {
      record.since_s = before.since_s;
    }
    record.node = before.node; // one string per node: equal strings that are the same one compare fastest
    view.nodes[at] = record;
  },

  'node.findings': (view, event) => {
    const fresh: IFinding[] = event.data.findings.map(finding => ({
      ...finding,
      time_s: event.time_s
    }));
    const probes = new Set(fresh.map(finding => finding.probe));
    for (const node of event.data.nodes) {
      const health = healthOf(view, node);
      health.findings = health.findings
        .filter(finding => !probes.has(finding.probe))
        .concat(fresh);
      health.history.push(
        ...fresh.filter(finding => finding.outcome === 'fail')
      );
      keepLast(health.history, FINDINGS_KEPT);
    }
  },

  'node.health': (view, event) => {
    const { node, action, fault, reason } = event.data;
    const { labels, recovery, devices, boot } = event.data;
    const health = healthOf(view, node);
    if (action !== health.action) {
      health.since_s = event.time_s;
      health.remedies.push({ time_s: event.time_s, action, fault, reason });
      keepLast(health.remedies, FINDINGS_KEPT);
    }
    Object.assign(health, { action, fault, reason });
    Object.assign(health, { labels, recovery });
    // only the machine itself knows them
    health.devices = Object.keys(devices).length ? devices : health.devices;
    health.boot = boot || health.boot;
  }
};

/** The index of each node by name: a search through ten thousand nodes per event took longer. A list only grows at its end. */
const places = new WeakMap<readonly INodeView[], Map<string, number>>();

function placeOf(
  nodes: readonly INodeView[],
  name: string
): number | undefined {
  let known = places.get(nodes);
  if (known === undefined) {
    known = new Map();
    places.set(nodes, known);
  }
  for (let at = known.size; at < nodes.length; at++) {
    known.set(nodes[at].node, at);
  }
  return known.get(name);
}

function healthOf(view: IClusterView, node: string): IHealth {
  if (!Object.hasOwn(view.health, node)) {
    view.health[node] = {
      action: 'watch',
      fault: '',
      reason: '',
      labels: {},
      recovery: 'Automatic',
      devices: {},
      boot: '',
      findings: [],
      history: [],
      remedies: [],
      since_s: null
    };
  }
  return view.health[node];
}
