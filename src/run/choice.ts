/** Decisions of the form: what it offers first, what is wrong with a choice, and what the cluster has for it. Pure. */

import type { IClusterView } from '../model/views';
import { IChoice, NOTHING, read } from './line';

/** What is offered again the next time: nothing that belongs to one cell, and nothing that may be secret. */
const KEPT = [
  'backend',
  'nodes',
  'elastic',
  'priority',
  'spares',
  'queue',
  'python',
  'detach',
  'slurm'
] as const;

export type Kept = Partial<Pick<IChoice, (typeof KEPT)[number]>>;

export function kept(choice: IChoice): Kept {
  return Object.fromEntries(KEPT.map(name => [name, choice[name]])) as Kept;
}

/** The choice to begin with: the cell's own line, else what was chosen last, else the usual number of nodes. */
export function initial(line: string, last: Kept, nodes: number): IChoice {
  const own = line ? read(line) : null;
  if (own) {
    return own;
  }
  const known = Object.fromEntries(
    KEPT.filter(
      name =>
        typeof last[name] === typeof NOTHING[name] ||
        (typeof last[name] === 'number' && NOTHING[name] === null)
    ).map(name => [name, last[name]])
  );
  return { ...NOTHING, nodes, ...known };
}

/** The choice as the line has it: the usual backend is not written, and SLURM's options only where it is chosen. */
export function settled(choice: IChoice, usual: string): IChoice {
  const backend = choice.backend || usual;
  return {
    ...choice,
    backend: backend === usual ? '' : backend,
    slurm: backend === 'slurm' ? choice.slurm : {}
  };
}

/** The two numbers of `2:4`; null for another form of a range. */
export function bounds(elastic: string): [number, number] | null {
  const found = /^(\d{1,6}):(\d{1,6})$/.exec(elastic);
  return found ? [Number(found[1]), Number(found[2])] : null;
}

/** The range widened so that `nodes` lies within it. */
export function including(elastic: string, nodes: number): string {
  const range = bounds(elastic);
  return range
    ? `${Math.min(range[0], nodes)}:${Math.max(range[1], nodes)}`
    : elastic;
}

/** The range that is offered first. */
export function offered(nodes: number): string {
  return `${Math.max(1, Math.floor(nodes / 2))}:${Math.max(1, nodes)}`;
}

/** A choice with what a person has just changed. `range` is what the person chose last; a number of nodes widens that. */
export function changed(
  choice: IChoice,
  range: string,
  fields: Partial<IChoice>
): IChoice {
  const after = { ...choice, ...fields };
  if (fields.nodes === undefined || fields.elastic !== undefined) {
    return after;
  }
  return {
    ...after,
    elastic: fields.nodes === null ? range : including(range, fields.nodes)
  };
}

export type Problem =
  'nodes' | 'range' | 'outside' | 'name' | 'priority' | 'spares' | 'python';

/** What is wrong, by field. The magic checks everything again, with more knowledge. `counted`: it needs a number of nodes. */
export function problems(
  choice: IChoice,
  counted = false
): Partial<Record<keyof IChoice, Problem>> {
  const found: Partial<Record<keyof IChoice, Problem>> = {};
  const range = bounds(choice.elastic);
  if (choice.nodes === null ? counted : !within(choice.nodes, 1, 100_000)) {
    found.nodes = 'nodes';
  }
  if (range && (range[0] < 1 || range[0] > range[1])) {
    found.elastic = 'range';
  } else if (
    range &&
    choice.nodes !== null &&
    !within(choice.nodes, ...range)
  ) {
    found.elastic = 'outside';
  }
  if (choice.name && !/^[A-Za-z0-9][A-Za-z0-9_-]{0,39}$/.test(choice.name)) {
    found.name = 'name';
  }
  if (choice.priority !== null && !within(choice.priority, -1000, 1000)) {
    found.priority = 'priority';
  }
  if (choice.spares !== null && !within(choice.spares, 0, 100_000)) {
    found.spares = 'spares';
  }
  if (choice.python && !/^[/~]/.test(choice.python)) {
    found.python = 'python';
  }
  return found;
}

function within(value: number, least: number, most: number): boolean {
  return Number.isInteger(value) && least <= value && value <= most;
}

/** The nodes of the local cluster: those that serve, those of them that are free, and the spares that stand by. */
export interface ICapacity {
  total: number;
  free: number;
  spares: number;
}

/** Null while no cluster runs. */
export function capacity(cluster: IClusterView | null): ICapacity | null {
  if (
    cluster === null ||
    ['stopping', 'stopped', 'lost'].includes(cluster.state)
  ) {
    return null;
  }
  const serving = cluster.nodes.filter(node =>
    ['idle', 'busy', 'starting'].includes(node.state)
  );
  const free = serving.filter(node => node.state !== 'busy');
  return {
    total: serving.filter(node => !node.spare).length,
    free: free.filter(node => !node.spare).length,
    spares: free.filter(node => node.spare).length
  };
}

/** `now`: on all nodes; `fewer`: on less, and grows; `waits`: until nodes are free; `never`: the cluster is too small. */
export type Outlook = 'now' | 'fewer' | 'waits' | 'never';

/** How a job begins. Spares are nodes, too: a job takes them where others are missing. */
export function outlook(choice: IChoice, has: ICapacity): Outlook {
  const range = bounds(choice.elastic);
  const wanted = choice.nodes ?? range?.[1] ?? 1;
  const least = range ? Math.min(range[0], wanted) : wanted;
  const free = has.free + has.spares;
  if (wanted <= free) {
    return 'now';
  }
  if (least <= free) {
    return 'fewer';
  }
  return least <= has.total + has.spares ? 'waits' : 'never';
}

/** The nodes that a cluster needs which is started for this job. */
export function needed(choice: IChoice, usual: number): number {
  const most = bounds(choice.elastic)?.[1] ?? 0;
  return Math.min(64, Math.max(usual, choice.nodes ?? 1, most));
}
