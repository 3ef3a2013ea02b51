import * as React from 'react';

import { useNow, useShared } from '../components/context';
import { Button } from '../components/parts';
import { formatDuration } from '../format';
import type { IIdle } from '../model/views';

/** When a cluster ends that nobody uses, and the button that lets it go on. */
export function Idle({ idle }: { idle: IIdle }): JSX.Element {
  const { actions, trans } = useShared();
  const left_s = Math.max(0, idle.ends_s - useNow(true));
  const text =
    left_s < 60
      ? trans.__('less than a minute')
      : formatDuration(60 * Math.round(left_s / 60));
  return (
    <div className="jp-Hp-row jp-Hp-idle">
      <span className="jp-Hp-small" role="status">
        {trans.__('Idle: ends by itself in %1', text)}
      </span>
      <span className="jp-Hp-right">
        <Button
          title={trans.__('Let the cluster go on: the time begins anew')}
          onClick={() => actions.keepCluster()}
        >
          {trans.__('Keep')}
        </Button>
      </span>
    </div>
  );
}
