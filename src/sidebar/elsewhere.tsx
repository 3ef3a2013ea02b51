import * as React from 'react';

import { useShared } from '../components/context';
import { Remedies } from '../components/remedies';
import { byName } from '../derive';
import type { IClusterView } from '../model/views';
import { hasWords } from './filters';
import { NodeHealth, STATUS } from './health';

/** The most nodes shown, faulty ones first; `jupyter hyperpod nodes` shows all. */
const SHOWN = 100;

/** Maps remedies of a scheduler's nodes to the states of local nodes that look alike. */
const COLOURS: Record<string, string> = { watch: 'ready', replace: 'lost' };

/** Nodes of a scheduler, from the events of their health agents. */
export function Elsewhere(props: {
  cluster: IClusterView;
  /** Only nodes with these words. */
  text?: string;
}): JSX.Element | null {
  const { cluster, text = '' } = props;
  const { trans } = useShared();
  const known = Object.keys(cluster.health);
  const local = new Set(known.length ? cluster.nodes.map(one => one.node) : []);
  const calm = (name: string) => cluster.health[name].action === 'watch';
  const names = known
    .filter(name => !local.has(name) && hasWords(text, name, cluster))
    .sort((a, b) => Number(calm(a)) - Number(calm(b)) || byName(a, b));
  if (names.length === 0) {
    return null;
  }
  return (
    <section className="jp-Hp-elsewhere">
      <h3 className="jp-Hp-label">
        {trans._n(
          '%1 node of a scheduler',
          '%1 nodes of a scheduler',
          names.length
        )}
      </h3>
      {names.slice(0, SHOWN).map(name => (
        <Node key={name} name={name} cluster={cluster} />
      ))}
      {names.length > SHOWN && (
        <p className="jp-Hp-small">
          {trans.__('%1 more', names.length - SHOWN)}
        </p>
      )}
    </section>
  );
}

function Node(props: { name: string; cluster: IClusterView }): JSX.Element {
  const { name, cluster } = props;
  const [open, setOpen] = React.useState(false);
  const { action, labels } = cluster.health[name];
  return (
    <details
      data-elsewhere={name}
      onToggle={event => setOpen(event.currentTarget.open)}
    >
      <summary>
        <span
          className="jp-Hp-dot"
          data-state={COLOURS[action] ?? 'drained'}
          aria-hidden
        />
        <span>{name}</span>
        {labels[STATUS] && (
          <span className="jp-Hp-small" title={labels[STATUS]}>
            {labels[STATUS]}
          </span>
        )}
      </summary>
      {open && (
        <div className="jp-Hp-detail">
          <NodeHealth name={name} cluster={cluster} />
          <Remedies name={name} cluster={cluster} />
        </div>
      )}
    </details>
  );
}
