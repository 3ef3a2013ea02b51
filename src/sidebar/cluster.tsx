import { runIcon, stopIcon } from '@jupyterlab/ui-components';
import * as React from 'react';

import { useShared, useTopics } from '../components/context';
import { Button, Section, StateChip } from '../components/parts';
import { breakIcon } from '../icons';
import { said } from '../said/said';
import { Idle } from './idle';
import { Nodes, NOTHING_CHOSEN } from './overview';
import { Picker } from './picker';
import { Queue } from './queue';

/** The cluster's state, its nodes, and details of the selected node. */
export function ClusterSection(): JSX.Element {
  const { model, actions, trans } = useShared();
  useTopics('cluster', 'jobs', 'connection');
  // A section that is folded draws nothing: here the choice outlives that.
  const [choice, setChoice] = React.useState(NOTHING_CHOSEN);
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
      <Picker />
      {cluster === null ? (
        <p className="jp-Hp-quiet">{trans.__('Asking the server…')}</p>
      ) : stopped ? (
        <StartCluster ended={cluster.idle ? cluster.reason : ''} />
      ) : (
        <>
          {cluster.state === 'lost' && <StartCluster lost={cluster.reason} />}
          {cluster.idle && cluster.state === 'running' && (
            <Idle idle={cluster.idle} />
          )}
          <Nodes cluster={cluster} choice={choice} onChoice={setChoice} />
          <Queue cluster={cluster} />
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

/**
 * The start button and its reason; `lost`: nodes ran, but their supervisor does not answer. `ended`: it has ended by
 * itself, and comes back as it was.
 */
function StartCluster(props: { lost?: string; ended?: string }): JSX.Element {
  const why = props.lost || props.ended;
  const { actions, trans } = useShared();
  const { nodes, spares } = actions.preferences;
  return (
    <div className="jp-Hp-start">
      <p className="jp-Hp-quiet">
        {(why && said(why, trans)) ||
          trans.__(
            'No cluster is running. The first job starts one, or start it here: %1 and %2, as processes of this machine.',
            trans._n('%1 node', '%1 nodes', nodes),
            trans._n('%1 spare', '%1 spares', spares)
          )}
      </p>
      <Button
        primary
        icon={runIcon}
        onClick={() => actions.startCluster(!!props.ended)}
      >
        {trans.__('Start the cluster')}
      </Button>
    </div>
  );
}
