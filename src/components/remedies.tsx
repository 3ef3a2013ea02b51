import * as React from 'react';

import type { IClusterView } from '../model/views';
import { actionsAt, NodeAction } from '../nodes';
import { useShared } from './context';
import { Button } from './parts';

/** The buttons with the remedies for a node. */
export function Remedies(props: {
  name: string;
  cluster: IClusterView;
}): JSX.Element | null {
  const { name, cluster } = props;
  const { actions, trans } = useShared();
  const offered = actionsAt(name, cluster);
  if (offered.length === 0) {
    return null;
  }
  const words: Record<NodeAction, [string, string]> = {
    heal: [trans.__('Heal'), trans.__('Bring %1 back to the network', name)],
    drain: [
      trans.__('Drain'),
      trans.__('%1 gets no new work; jobs leave it at the end of a step', name)
    ],
    resume: [trans.__('Resume'), trans.__('Return %1 to service', name)],
    reboot: [
      trans.__('Reboot'),
      trans.__('Reboot %1 once its jobs have left it', name)
    ],
    replace: [
      trans.__('Replace'),
      trans.__('Replace %1 by another machine', name)
    ]
  };
  return (
    <div
      className="jp-Hp-remedies"
      role="group"
      aria-label={trans.__('What can be done about %1', name)}
    >
      {offered.map(action => (
        <Button
          key={action}
          title={words[action][1]}
          onClick={() => actions.remedy(name, action)}
        >
          {words[action][0]}
        </Button>
      ))}
    </div>
  );
}
