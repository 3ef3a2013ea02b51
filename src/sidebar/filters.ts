/** Which nodes the panel shows and in which groups, and what waits for them: pure functions of the views. */

import { byName } from '../derive';
import type { IClusterView, IJobSummary, INodeView } from '../model/views';
import { NodeRole, ROLES } from '../nodes';

export type Grouping = 'none' | 'state' | 'job' | 'type';

/** What a person has chosen: words that each node has, and roles of which it has one; none for all. */
export interface INodeFilter {
  text: string;
  roles: ReadonlySet<NodeRole>;
}

export const ALL: INodeFilter = { text: '', roles: new Set() };

/** Nodes by their names. They are sorted where names have come or gone only: nodes change their states far more often. */
export class NameOrder {
  of(nodes: readonly INodeView[]): INodeView[] {
    const same =
      nodes.length === this._names.length &&
      nodes.every((node, at) => node.node === this._names[at]);
    if (!same) {
      this._names = nodes.map(node => node.node);
      this._order = nodes
        .map((_, at) => at)
        .sort((a, b) => byName(this._names[a], this._names[b]));
    }
    return this._order.map(at => nodes[at]);
  }

  private _names: string[] = [];
  private _order: number[] = [];
}

export type RoleAt = (node: INodeView) => NodeRole;

/** The type of a node's machine; empty where no agent has told it. */
export function typeOf(name: string, cluster: IClusterView): string {
  return Object.hasOwn(cluster.health, name)
    ? (cluster.health[name].devices.type ?? '')
    : '';
}

/** Whether each word of `text` is in the name of a node, in its type, or in one of the `names` of its jobs. */
export function hasWords(
  text: string,
  name: string,
  cluster: IClusterView,
  jobs: readonly string[] = []
): boolean {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) {
    return true;
  }
  const known = [name, typeOf(name, cluster), ...jobs].join(' ').toLowerCase();
  return words.every(word => known.includes(word));
}

export function filtered(
  nodes: readonly INodeView[],
  filter: INodeFilter,
  roleAt: RoleAt,
  cluster: IClusterView,
  nameOf: (job: string) => string
): readonly INodeView[] {
  const { text, roles } = filter;
  if (!text.trim() && roles.size === 0) {
    return nodes;
  }
  return nodes.filter(
    node =>
      (roles.size === 0 || roles.has(roleAt(node))) &&
      hasWords(text, node.node, cluster, [
        ...node.jobs,
        ...node.jobs.map(nameOf)
      ])
  );
}

/** Nodes that have the same `key`; an empty one for those without any. */
export interface INodeGroup {
  key: string;
  nodes: readonly INodeView[];
}

/** The nodes in groups: roles in their usual order, anything else by name, and those without it at the end. */
export function grouped(
  nodes: readonly INodeView[],
  grouping: Grouping,
  roleAt: RoleAt,
  cluster: IClusterView
): readonly INodeGroup[] {
  if (grouping === 'none') {
    return [{ key: '', nodes }];
  }
  const keyOf = {
    state: roleAt,
    job: (node: INodeView) => node.jobs[0] ?? '',
    type: (node: INodeView) => typeOf(node.node, cluster)
  }[grouping];
  const groups = new Map<string, INodeView[]>();
  for (const node of nodes) {
    const key = keyOf(node);
    const group = groups.get(key);
    if (group) {
      group.push(node);
    } else {
      groups.set(key, [node]);
    }
  }
  const place = (key: string) => ROLES.indexOf(key as NodeRole);
  return [...groups]
    .map(([key, members]) => ({ key, nodes: members }))
    .sort(
      (a, b) =>
        Number(a.key === '') - Number(b.key === '') ||
        place(a.key) - place(b.key) ||
        byName(a.key, b.key)
    );
}

/** How much of the nodes is allocated to jobs, and on how many a job works now. */
export interface IUse {
  slots: number;
  used: number;
  working: number;
  /** Devices that are there and that compute, where agents count them; the nodes of one machine share its devices. */
  devices: number;
  computing: number;
}

/** States in which a node cannot be allocated. */
const AWAY = new Set(['lost', 'stopped']);

export function useOf(
  nodes: readonly INodeView[],
  roleAt: RoleAt,
  cluster: IClusterView
): IUse {
  const use = { slots: 0, used: 0, working: 0, devices: 0, computing: 0 };
  for (const node of nodes) {
    if (AWAY.has(node.state)) {
      continue;
    }
    const role = roleAt(node);
    use.slots += node.slots;
    use.used += Math.min(node.used, node.slots);
    use.working += Number(role === 'training' || role === 'answering');
  }
  const counted = (name: string) => cluster.health[name].devices;
  for (const { found, busy } of nodes
    .map(node => node.node)
    .filter(name => Object.hasOwn(cluster.health, name))
    .map(counted)) {
    if (typeof found === 'number' && typeof busy === 'number') {
      use.devices = Math.max(use.devices, found);
      use.computing = Math.max(use.computing, busy);
    }
  }
  return use;
}

/** A queue's guaranteed nodes, and those that its jobs hold; `lent`: of the guaranteed ones, others hold so many. */
export interface IQuota {
  queue: string;
  guaranteed: number;
  held: number;
  borrowed: number;
  lent: number;
}

export function quotas(
  cluster: IClusterView,
  jobs: readonly IJobSummary[]
): IQuota[] {
  if (Object.keys(cluster.queues).length === 0) {
    return [];
  }
  const queueOf = new Map(jobs.map(job => [job.id, job.queue]));
  const held = new Map<string, number>();
  let unused = 0; // free, or out of service: nobody has borrowed them
  for (const node of cluster.nodes) {
    if (node.spare) {
      continue;
    }
    unused += Number(node.jobs.length === 0);
    const queue = node.jobs.map(id => queueOf.get(id)).find(Boolean);
    if (queue) {
      held.set(queue, (held.get(queue) ?? 0) + 1);
    }
  }
  const found = Object.entries(cluster.queues)
    .sort(([a], [b]) => byName(a, b))
    .map(([queue, guaranteed]) => ({
      queue,
      guaranteed,
      held: held.get(queue) ?? 0,
      borrowed: Math.max(0, (held.get(queue) ?? 0) - guaranteed),
      lent: 0
    }));
  // Free nodes are anybody's: who lends is known where only one queue has nodes left.
  const lenders = found.filter(one => one.held < one.guaranteed);
  if (lenders.length === 1) {
    const [one] = lenders;
    one.lent = Math.max(0, one.guaranteed - one.held - unused);
  }
  return found;
}

/**
 * The jobs that wait for nodes: those first for which their queue has guaranteed nodes, then higher priorities, among
 * equals the earlier one.
 */
export function waitingJobs(
  jobs: readonly IJobSummary[],
  found: readonly IQuota[]
): IJobSummary[] {
  const own = (job: IJobSummary) => {
    const quota = found.find(one => one.queue === job.queue);
    const least = job.minimum > 1 ? job.minimum : job.nodes_wanted;
    return quota !== undefined && quota.guaranteed - quota.held >= least;
  };
  return jobs
    .filter(job => job.state === 'pending')
    .sort(
      (a, b) =>
        Number(own(b)) - Number(own(a)) ||
        b.priority - a.priority ||
        (a.submitted_s ?? 0) - (b.submitted_s ?? 0) ||
        (a.id < b.id ? -1 : 1)
    );
}
