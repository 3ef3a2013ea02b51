import * as React from 'react';

import { useShared } from '../components/context';
import type { IClusterView, INodeView } from '../model/views';
import { NodeRole, partsOf, roleLabel, roleOf, ROLES } from '../nodes';
import { Elsewhere } from './elsewhere';
import {
  ALL,
  filtered,
  grouped,
  Grouping,
  INodeFilter,
  NameOrder,
  RoleAt,
  typeOf,
  useOf
} from './filters';
import { NodeDetail } from './node';
import { NAMED, NodeGrid } from './nodes';

/** What a person has chosen of the nodes. */
export interface INodeChoice {
  selected: string | null;
  filter: INodeFilter;
  grouping: Grouping;
}

export const NOTHING_CHOSEN: INodeChoice = {
  selected: null,
  filter: ALL,
  grouping: 'none'
};

/** All nodes, by what they do, filtered and grouped, and details of the selected one. */
export function Nodes(props: {
  cluster: IClusterView;
  choice: INodeChoice;
  onChoice: React.Dispatch<React.SetStateAction<INodeChoice>>;
}): JSX.Element {
  const { cluster, onChoice } = props;
  const { selected, filter, grouping } = props.choice;
  const { model, trans } = useShared();
  const jobs = model.activeJobs;
  const parts = partsOf(jobs);
  const names = new Map(jobs.map(job => [job.id, job.name]));
  const choose = React.useCallback(
    (fields: Partial<INodeChoice>) =>
      onChoice(before => ({ ...before, ...fields })),
    [onChoice]
  );
  const setFilter = (filter: INodeFilter) => choose({ filter });
  const onSelect = React.useCallback(
    (selected: string) => choose({ selected }),
    [choose]
  );
  const order = React.useRef(new NameOrder());
  const nodes = order.current.of(cluster.nodes);
  const chosen = nodes.find(node => node.node === selected);
  const many = nodes.length > NAMED;
  const nameOf = (id: string) => names.get(id) ?? model.summary(id)?.name ?? '';
  const roleAt = (node: INodeView) => roleOf(node, parts.get(node.node));
  const shown = filtered(nodes, filter, roleAt, cluster, nameOf);
  const labels: Record<Exclude<Grouping, 'none'>, (key: string) => string> = {
    state: key => roleLabel(key, trans),
    job: key => nameOf(key) || key || trans.__('without a job'),
    type: key => key || trans.__('unknown instance type')
  };
  const by = many ? grouping : 'none';
  const groups = grouped(shown, by, roleAt, cluster).map(group => ({
    ...group,
    label: by === 'none' ? '' : labels[by](group.key)
  }));
  const others = Object.keys(cluster.health).length - nodes.length;
  const starting = cluster.state === 'starting';
  return (
    <>
      {nodes.length === 0 ? (
        <p className="jp-Hp-quiet">
          {starting
            ? trans.__('Nodes are starting…')
            : trans.__('No local nodes: the first local job brings them.')}
        </p>
      ) : (
        <Summary
          nodes={nodes}
          roleAt={roleAt}
          cluster={cluster}
          filter={filter}
          onFilter={setFilter}
        />
      )}
      {(many || others > NAMED || filter.text !== '') && (
        <NodeChoice
          filter={filter}
          onFilter={setFilter}
          grouping={many ? grouping : null}
          onGrouping={grouping => choose({ grouping })}
          typed={nodes.some(node => typeOf(node.node, cluster) !== '')}
        />
      )}
      {shown.length > 0 && (
        <NodeGrid
          groups={groups}
          parts={parts}
          selected={selected}
          onSelect={onSelect}
        />
      )}
      {shown.length < nodes.length && (
        <p className="jp-Hp-small">
          {trans.__('%1 of %2 nodes', shown.length, nodes.length)}
        </p>
      )}
      {chosen && (
        <NodeDetail node={chosen} role={roleAt(chosen)} cluster={cluster} />
      )}
      <Elsewhere cluster={cluster} text={filter.text} />
    </>
  );
}

/** The number of nodes by present role, each a filter; and how much of them is allocated. */
function Summary(props: {
  nodes: readonly INodeView[];
  roleAt: RoleAt;
  cluster: IClusterView;
  filter: INodeFilter;
  onFilter: (filter: INodeFilter) => void;
}): JSX.Element {
  const { nodes, roleAt, cluster, filter, onFilter } = props;
  const { trans } = useShared();
  const counts = new Map<NodeRole, number>();
  for (const node of nodes) {
    const role = roleAt(node);
    counts.set(role, (counts.get(role) ?? 0) + 1);
  }
  const turn = (role: NodeRole) => {
    const roles = new Set(filter.roles);
    if (!roles.delete(role)) {
      roles.add(role);
    }
    onFilter({ ...filter, roles });
  };
  const use = useOf(nodes, roleAt, cluster);
  return (
    <>
      <div className="jp-Hp-summary">
        <span className="jp-Hp-strong">
          {trans._n('%1 node', '%1 nodes', nodes.length)}
        </span>
        <span className="jp-Hp-tallies">
          {ROLES.filter(role => counts.has(role) || filter.roles.has(role)).map(
            role => (
              <button
                key={role}
                type="button"
                className="jp-Hp-tally"
                aria-pressed={filter.roles.has(role)}
                title={trans.__('Show only these nodes, or all again')}
                onClick={() => turn(role)}
              >
                <span className="jp-Hp-dot" data-state={role} aria-hidden />
                {counts.get(role) ?? 0} {roleLabel(role, trans)}
              </button>
            )
          )}
        </span>
      </div>
      {use.used > 0 && (
        <div className="jp-Hp-row jp-Hp-use">
          <div
            className="jp-Hp-space"
            role="meter"
            aria-label={trans.__('Nodes allocated to jobs')}
            aria-valuemin={0}
            aria-valuemax={use.slots}
            aria-valuenow={use.used}
          >
            <div style={{ width: `${(use.used / use.slots) * 100}%` }} />
          </div>
          <span
            className="jp-Hp-small"
            title={trans.__(
              'A node is allocated while a job has it. It is at work while it trains or answers requests.'
            )}
          >
            {trans.__(
              '%1 of %2 allocated, %3 at work',
              use.used,
              use.slots,
              use.working
            )}
            {use.devices > 0 &&
              trans.__(
                '; %1 of %2 devices compute',
                use.computing,
                use.devices
              )}
          </span>
        </div>
      )}
    </>
  );
}

/** Words to look for, and how nodes are grouped; no `grouping` where there is nothing to group. */
function NodeChoice(props: {
  filter: INodeFilter;
  onFilter: (filter: INodeFilter) => void;
  grouping: Grouping | null;
  onGrouping: (grouping: Grouping) => void;
  typed: boolean;
}): JSX.Element {
  const { filter, onFilter, grouping, onGrouping, typed } = props;
  const { trans } = useShared();
  return (
    <div className="jp-Hp-row jp-Hp-nodechoice" role="search">
      <input
        type="search"
        className="jp-Hp-filter"
        value={filter.text}
        onChange={event => onFilter({ ...filter, text: event.target.value })}
        aria-label={trans.__('Filter nodes')}
        placeholder={trans.__('Filter: node, job, instance type')}
      />
      {grouping !== null && (
        <select
          className="jp-Hp-select"
          value={grouping}
          onChange={event => onGrouping(event.target.value as Grouping)}
          aria-label={trans.__('Group nodes')}
        >
          <option value="none">{trans.__('No groups')}</option>
          <option value="state">{trans.__('By state')}</option>
          <option value="job">{trans.__('By job')}</option>
          {typed && <option value="type">{trans.__('By type')}</option>}
        </select>
      )}
    </div>
  );
}
