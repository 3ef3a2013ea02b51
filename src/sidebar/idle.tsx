import * as React from 'react';

import { useNow, useShared } from '../components/context';
import { Button } from '../components/parts';
import { formatDuration } from '../format';
import type { IIdle } from '../model/views';

/** Minutes before the end at which it is told to those who do not see the page: not each minute. */
const HEARD_MIN = [1, 5, 10];

/** When a cluster ends that nobody uses, and the button that lets it go on. */
export function Idle({ idle }: { idle: IIdle }): JSX.Element {
  const { actions, trans } = useShared();
  const left_s = Math.max(0, idle.ends_s - useNow(true));
  const text =
    left_s < 60
      ? trans.__('less than a minute')
      : formatDuration(60 * Math.round(left_s / 60));
  const soon = HEARD_MIN.find(minutes => left_s <= 60 * minutes);
  return (
    <div className="jp-Hp-row jp-Hp-idle">
      <span className="jp-Hp-small">
        {trans.__('Idle: ends by itself in %1', text)}
      </span>
      <span className="jp-Hp-unseen" role="status">
        {soon !== undefined &&
          trans.__('Idle: ends by itself in %1', formatDuration(60 * soon))}
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
