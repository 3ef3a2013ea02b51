import * as React from 'react';

import type { FaultTarget } from '../api';
import { FAULTS, Fault } from '../model/events';
import { useShared } from './context';
import { Button } from './parts';

/** A button for each fault that may be aimed at a rank or a node; nothing where faults are not allowed. */
export function FaultButtons(props: {
  job: string;
  target: FaultTarget;
  /** How a person calls the target. */
  name: string;
  words: Record<Fault, string>;
}): JSX.Element | null {
  const { actions, trans } = useShared();
  if (!actions.faultsAllowed) {
    return null;
  }
  return (
    <span className="jp-Hp-right">
      {FAULTS.map(fault => (
        <Button
          key={fault}
          danger
          title={trans.__('Inject the fault “%1” into %2', fault, props.name)}
          onClick={() => actions.injectFault(props.job, fault, props.target)}
        >
          {props.words[fault]}
        </Button>
      ))}
    </span>
  );
}
