/** The present role of a node and its possible remedies: pure functions of the views. */

import type { TranslationBundle } from '@jupyterlab/translation';

import { labelOf, oncePer } from './format';
import { TERMINAL_STATES } from './model/events';
import type { IClusterView, IJobSummary, INodeView } from './model/views';

/** The present role of a node, which may differ from its role at the start. */
export type NodeRole =
  | 'training'
  | 'answering'
  | 'standby'
  | 'joining'
  | 'free'
  | 'starting'
  | 'restarting'
  | 'drained'
  | 'partitioned'
  | 'lost'
  | 'stopped';

/** The remedies that a person may request for a node. */
export type NodeAction = 'heal' | 'drain' | 'resume' | 'reboot' | 'replace';

/** The order of roles in a summary. */
export const ROLES: readonly NodeRole[] = [
  'training',
  'answering',
  'standby',
  'joining',
  'free',
  'starting',
  'restarting',
  'drained',
  'partitioned',
  'lost',
  'stopped'
];

/** The roles of nodes in running jobs: a spare that replaced a member trains, and the replaced node stands by. */
export function partsOf(jobs: readonly IJobSummary[]): Map<string, NodeRole> {
  const parts = new Map<string, NodeRole>();
  for (const job of jobs) {
    if (TERMINAL_STATES.has(job.state)) {
      continue;
    }
    for (const { node } of job.spares) {
      if (node && !parts.has(node)) {
        parts.set(node, 'standby');
      }
    }
    for (const { node } of job.members) {
      if (node) {
        parts.set(node, job.deployment ? 'answering' : 'training');
      }
    }
  }
  return parts;
}

/** The role of one node, from the roles in its jobs. */
export function roleOf(node: INodeView, part: NodeRole | undefined): NodeRole {
  switch (node.state) {
    case 'busy':
      return part ?? 'joining';
    case 'idle':
      return node.spare ? 'standby' : 'free';
    case 'starting':
      return node.incarnation > 1 ? 'restarting' : 'starting';
    default:
      return node.state;
  }
}

/** The word for a role; unknown roles of a newer server are shown unchanged. */
export function roleLabel(role: string, trans: TranslationBundle): string {
  return labelOf(roleLabels(trans), role);
}

const roleLabels = oncePer((trans): Record<NodeRole, string> => ({
  training: trans.__('training'),
  answering: trans.__('answering'),
  standby: trans.__('spare'),
  joining: trans.__('joining'),
  free: trans.__('free'),
  starting: trans.__('starting'),
  restarting: trans.__('restarting'),
  drained: trans.__('drained'),
  partitioned: trans.__('cut off'),
  lost: trans.__('lost'),
  stopped: trans.__('stopped')
}));

/** The sensible remedies for a node in its present state, the most needed first. */
export function actionsAt(
  name: string,
  cluster: IClusterView
): readonly NodeAction[] {
  const node = cluster.nodes.find(known => known.node === name);
  const health = Object.hasOwn(cluster.health, name)
    ? cluster.health[name]
    : undefined;
  const given = (health?.action ?? 'watch') !== 'watch';
  const remedies: NodeAction[] = given ? ['resume'] : ['drain', 'reboot'];
  switch (node?.state) {
    case undefined: // a node of a scheduler
      return given ? ['resume'] : ['drain', 'reboot', 'replace'];
    case 'partitioned':
      return ['heal', ...remedies];
    case 'drained':
      return ['resume'];
    case 'idle':
    case 'busy':
      return remedies;
    default:
      return []; // it returns by itself
  }
}
