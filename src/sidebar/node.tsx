import * as React from 'react';

import { useNow, useShared, useTopics } from '../components/context';
import { FaultButtons } from '../components/faults';
import { StateChip } from '../components/parts';
import { Remedies } from '../components/remedies';
import { formatClockwork } from '../format';
import type { IClusterView, INodeView } from '../model/views';
import { NodeRole, roleLabel } from '../nodes';
import { said } from '../said/said';
import { NodeHealth } from './health';

/** What is known of one node, and what can be done about it. */
export function NodeDetail(props: {
  node: INodeView;
  role: NodeRole;
  cluster: IClusterView;
}): JSX.Element {
  const { node, role, cluster } = props;
  const { trans } = useShared();
  const now_s = useNow(true);
  return (
    <div className="jp-Hp-detail" role="group" aria-label={node.node}>
      <Heard key={node.node} node={node.node} role={role} />
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

/** Tells people who do not see the page that a node's role has changed. The role at first is in the name of its tile. */
function Heard({ node, role }: { node: string; role: NodeRole }): JSX.Element {
  const { trans } = useShared();
  const before = React.useRef(role);
  const news = React.useRef('');
  if (before.current !== role) {
    before.current = role;
    news.current = `${node}: ${roleLabel(role, trans)}`;
  }
  return (
    <span className="jp-Hp-unseen" role="status">
      {news.current}
    </span>
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
