import * as React from 'react';

import { IStanding, messageOf } from '../api';
import { useShared, useTopics } from '../components/context';
import { Button } from '../components/parts';
import { capacity } from '../run/choice';
import { stateTally } from '../run/words';
import { said } from '../said/said';

/** Each look asks the schedulers, and their nodes change slowly. */
const ASK_AGAIN_MS = 60_000;

/** The clusters that jobs can be sent to, side by side; nothing where this machine is the only one. */
export function Picker(): JSX.Element | null {
  const { model, actions, trans } = useShared();
  useTopics('cluster', 'connection');
  const [found, setFound] = React.useState<readonly IStanding[]>([]);
  const online = model.connection === 'online';
  React.useEffect(() => {
    if (!online) {
      return;
    }
    let shown = true;
    const ask = async () => {
      const clusters = await model.api.clusters().catch(() => null);
      if (shown && clusters && clusters.length > 1) {
        setFound(before => clusters.map(one => kept(one, before)));
      }
    };
    void ask();
    const timer = setInterval(() => {
      if (!document.hidden) {
        void ask();
      }
    }, ASK_AGAIN_MS);
    return () => {
      shown = false;
      clearInterval(timer);
    };
  }, [model, online]);
  if (found.length < 2) {
    return null;
  }
  const look = async (context: string) => {
    const [answer] = await model.api.clusters(context).catch(error => [
      {
        ...found.find(one => one.context === context)!,
        asked: true,
        problem: messageOf(error)
      }
    ]);
    setFound(before =>
      before.map(one => (one.context === context ? answer : one))
    );
  };
  const chosen = actions.preferences.run.backend || 'local';
  return (
    <fieldset className="jp-Hp-picker">
      <legend className="jp-Hp-label">
        {trans.__('Clusters: cells run first on')}
      </legend>
      {found.map(one => (
        <Row
          key={`${one.backend} ${one.context}`}
          cluster={one}
          chosen={one.usual && one.backend === chosen}
          look={() => look(one.context)}
        />
      ))}
    </fieldset>
  );
}

/** What a person has asked of a cluster stays until the page is closed. */
function kept(one: IStanding, before: readonly IStanding[]): IStanding {
  const known = before.find(
    other => other.backend === one.backend && other.context === one.context
  );
  return !one.asked && known?.asked ? known : one;
}

function Row(props: {
  cluster: IStanding;
  chosen: boolean;
  look: () => Promise<void>;
}): JSX.Element {
  const { cluster, chosen, look } = props;
  const { actions, trans } = useShared();
  const { backend, context, usual } = cluster;
  const title = backend === 'local' ? trans.__('This machine') : cluster.title;
  const name = context ? `${title}: ${context}` : title;
  const pick = () =>
    void actions.remember({ ...actions.preferences.run, backend });
  return (
    <div className="jp-Hp-row" data-cluster={`${backend}/${context}`}>
      <label className="jp-Hp-row">
        <input
          type="radio"
          name="jp-Hp-picker"
          checked={chosen}
          disabled={!usual}
          onChange={pick}
          title={
            usual
              ? trans.__('"Run on cluster" offers it first')
              : trans.__(
                  'The line of a cell chooses it: --kubernetes context=%1',
                  context
                )
          }
        />
        <span className="jp-Hp-clip" title={name}>
          {name}
        </span>
      </label>
      <span
        className={
          cluster.problem ? 'jp-Hp-small jp-Hp-wrap' : 'jp-Hp-small jp-Hp-clip'
        }
      >
        {backend === 'local' ? (
          <Local />
        ) : cluster.problem ? (
          said(cluster.problem, trans)
        ) : cluster.asked ? (
          stateTally(cluster.states, trans)
        ) : null}
      </span>
      {context && (
        <span className="jp-Hp-right">
          <Button
            title={trans.__(
              'Ask %1 for its nodes; this may begin a login',
              name
            )}
            onClick={look}
          >
            {trans.__('Look')}
          </Button>
        </span>
      )}
    </div>
  );
}

/** What this machine has. */
function Local(): JSX.Element {
  const { model, trans } = useShared();
  const has = capacity(model.cluster);
  return (
    <>
      {has === null
        ? trans.__('no cluster runs')
        : trans.__('%1 of %2 nodes are free', has.free, has.total)}
    </>
  );
}
