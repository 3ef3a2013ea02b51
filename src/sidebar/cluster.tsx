import { runIcon, stopIcon } from '@jupyterlab/ui-components';
import * as React from 'react';

import { useNow, useShared, useTopics } from '../components/context';
import { FaultButtons } from '../components/faults';
import { Button, Section, StateChip } from '../components/parts';
import { Remedies } from '../components/remedies';
import { byName } from '../derive';
import { formatClockwork } from '../format';
import { breakIcon } from '../icons';
import type { IClusterView, INodeView } from '../model/views';
import { NodeRole, partsOf, roleLabel, roleOf, ROLES } from '../nodes';
import { said } from '../said/said';
import { Elsewhere } from './elsewhere';
import { NodeHealth } from './health';
import { NodeGrid } from './nodes';

/** The cluster's state, its nodes, and details of the selected node. */
export function ClusterSection(): JSX.Element {
  const { model, actions, trans } = useShared();
  useTopics('cluster', 'jobs', 'connection');
  const { cluster } = model;
  const stopped = cluster === null || cluster.state === 'stopped';
  return (
    <Section
      title={trans.__('Cluster')}
      count={
        cluster && (
          <StateChip
            state={cluster.state}
            trans={trans}
            title={said(cluster.reason, trans)}
          />
        )
      }
      actions={
        cluster &&
        !stopped && (
          <>
            <BreakSwitch />
            <Button
              icon={stopIcon}
              title={trans.__('Stop the cluster…')}
              onClick={() => actions.stopCluster()}
            />
          </>
        )
      }
    >
      {cluster === null ? (
        <p className="jp-Hp-quiet">{trans.__('Asking the server…')}</p>
      ) : stopped ? (
        <StartCluster />
      ) : (
        <>
          {cluster.state === 'lost' && <StartCluster lost={cluster.reason} />}
          <Nodes cluster={cluster} />
          <Elsewhere cluster={cluster} />
        </>
      )}
    </Section>
  );
}

/** The switch that shows the buttons for faults. */
function BreakSwitch(): JSX.Element {
  const { actions, trans } = useShared();
  const on = actions.faultsAllowed;
  const sentence = actions.faultsForbidden
    ? trans.__('An administrator of this server has switched faults off.')
    : on
      ? trans.__('It is on: choose a node that has a job, and break it.')
      : trans.__(
          'Shows buttons that kill, hang or cut off a node, to watch its job recover.'
        );
  return (
    <Button
      icon={breakIcon}
      pressed={on}
      disabled={actions.faultsForbidden}
      title={`${trans.__('Break something')}: ${sentence}`}
      onClick={() => actions.breakSomething(!on)}
    />
  );
}

/** The start button and its reason; `lost`: nodes ran, but their supervisor does not answer. */
function StartCluster({ lost }: { lost?: string }): JSX.Element {
  const { actions, trans } = useShared();
  const { nodes, spares } = actions.preferences;
  return (
    <div className="jp-Hp-start">
      <p className="jp-Hp-quiet">
        {(lost && said(lost, trans)) ||
          trans.__(
            'No cluster is running. The first job starts one, or start it here: %1 and %2, as processes of this machine.',
            trans._n('%1 node', '%1 nodes', nodes),
            trans._n('%1 spare', '%1 spares', spares)
          )}
      </p>
      <Button primary icon={runIcon} onClick={() => actions.startCluster()}>
        {trans.__('Start the cluster')}
      </Button>
    </div>
  );
}

function Nodes({ cluster }: { cluster: IClusterView }): JSX.Element {
  const { model, trans } = useShared();
  const parts = partsOf(model.activeJobs);
  const [selected, setSelected] = React.useState<string | null>(null);
  const onSelect = React.useCallback((name: string) => setSelected(name), []);
  const nodes = [...cluster.nodes].sort((a, b) => byName(a.node, b.node));
  const chosen = nodes.find(node => node.node === selected);
  if (nodes.length === 0) {
    const text =
      cluster.state === 'starting'
        ? trans.__('Nodes are starting…')
        : trans.__('No local nodes: the first local job brings them.');
    return <p className="jp-Hp-quiet">{text}</p>;
  }
  return (
    <>
      <Summary nodes={nodes} parts={parts} />
      <NodeGrid
        nodes={nodes}
        parts={parts}
        selected={selected}
        onSelect={onSelect}
      />
      {chosen && (
        <NodeDetail
          node={chosen}
          role={roleOf(chosen, parts.get(chosen.node))}
          cluster={cluster}
        />
      )}
    </>
  );
}

/** The number of nodes by present role. */
function Summary(props: {
  nodes: readonly INodeView[];
  parts: ReadonlyMap<string, NodeRole>;
}): JSX.Element {
  const { nodes, parts } = props;
  const { trans } = useShared();
  const counts = new Map<NodeRole, number>();
  for (const node of nodes) {
    const role = roleOf(node, parts.get(node.node));
    counts.set(role, (counts.get(role) ?? 0) + 1);
  }
  return (
    <div className="jp-Hp-summary">
      <span className="jp-Hp-strong">
        {trans._n('%1 node', '%1 nodes', nodes.length)}
      </span>
      <span className="jp-Hp-tallies">
        {ROLES.filter(role => counts.has(role)).map(role => (
          <span key={role} className="jp-Hp-tally">
            <span className="jp-Hp-dot" data-state={role} aria-hidden />
            {counts.get(role)} {roleLabel(role, trans)}
          </span>
        ))}
      </span>
    </div>
  );
}

function NodeDetail(props: {
  node: INodeView;
  role: NodeRole;
  cluster: IClusterView;
}): JSX.Element {
  const { node, role, cluster } = props;
  const { trans } = useShared();
  const now_s = useNow(true);
  return (
    <div className="jp-Hp-detail" role="group" aria-label={node.node}>
      <span className="jp-Hp-unseen" role="status">
        {`${node.node}: ${roleLabel(role, trans)}`}
      </span>
      <div className="jp-Hp-row">
        <span className="jp-Hp-strong">{node.node}</span>
        <StateChip state={role} label={roleLabel(role, trans)} trans={trans} />
        <span className="jp-Hp-right jp-Hp-small">
          {trans.__(
            'for %1',
            formatClockwork(Math.max(0, now_s - node.since_s))
          )}
        </span>
      </div>
      {node.reason && <p>{said(node.reason, trans)}</p>}
      <dl className="jp-Hp-facts">
        <dt>{trans.__('Slots')}</dt>
        <dd>{`${node.used} / ${node.slots}`}</dd>
        <dt>{trans.__('Process')}</dt>
        <dd>{node.pid ?? '–'}</dd>
        <dt>{trans.__('Restarted')}</dt>
        <dd>
          {node.incarnation > 1
            ? trans._n('%1 time', '%1 times', node.incarnation - 1)
            : trans.__('never')}
        </dd>
      </dl>
      <NodeHealth name={node.node} cluster={cluster} />
      <Remedies name={node.node} cluster={cluster} />
      {node.jobs.map(id => (
        <NodeJob key={id} id={id} node={node} />
      ))}
    </div>
  );
}

function NodeJob({ id, node }: { id: string; node: INodeView }): JSX.Element {
  const { model, actions, trans } = useShared();
  useTopics('jobs', id, 'connection');
  const job = model.summary(id);
  const member = job?.members.find(candidate => candidate.node === node.node);
  const words = {
    kill: trans.__('Kill node'),
    hang: trans.__('Hang node'),
    other: trans.__('Break…')
  };
  return (
    <div className="jp-Hp-row">
      <button
        type="button"
        className="jp-Hp-link"
        onClick={() => actions.openJob(id)}
      >
        {job?.name || id}
      </button>
      {member?.rank !== undefined && (
        <span className="jp-Hp-small">{trans.__('rank %1', member.rank)}</span>
      )}
      <FaultButtons
        job={id}
        target={{ node: node.node }}
        name={node.node}
        words={words}
      />
    </div>
  );
}
