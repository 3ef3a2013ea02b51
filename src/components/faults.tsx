import * as React from 'react';

import type { FaultTarget } from '../api';
import { Aim, FAULTS, Fault, faultsOf } from '../model/events';
import { said } from '../said/said';
import { useShared } from './context';
import { Button } from './parts';

/** The faults with a button of their own; the others are in a list. */
const AT_HAND: readonly Fault[] = ['kill', 'hang'];

/** Buttons that inject faults into a target; nothing where faults are not allowed. */
export function FaultButtons(props: {
  job: string;
  target: FaultTarget;
  /** The target's name, for people. */
  name: string;
  words: Record<'kill' | 'hang' | 'other', string>;
  /** The possible faults, where not all faults of the target make sense. */
  only?: readonly Fault[];
}): JSX.Element | null {
  const { actions, trans } = useShared();
  if (!actions.faultsAllowed) {
    return null;
  }
  const faults = faultsOf(aimOf(props.target)).filter(
    fault => props.only?.includes(fault) ?? true
  );
  const others = faults.filter(fault => !AT_HAND.includes(fault));
  const inject = (fault: Fault) =>
    actions.injectFault(props.job, fault, props.target);
  return (
    <span className="jp-Hp-right jp-Hp-faults">
      {others.length > 0 && (
        <select
          className="jp-Hp-select"
          aria-label={trans.__('Inject another fault into %1', props.name)}
          value=""
          onChange={event => void inject(event.target.value as Fault)}
        >
          <option value="" disabled>
            {props.words.other}
          </option>
          {others.map(fault => (
            <option
              key={fault}
              value={fault}
              title={said(FAULTS[fault].sentence, trans)}
            >{`${fault}: ${said(FAULTS[fault].sentence, trans)}`}</option>
          ))}
        </select>
      )}
      {(['kill', 'hang'] as const)
        .filter(fault => faults.includes(fault))
        .map(fault => (
          <Button
            key={fault}
            danger
            title={trans.__(
              'Inject the fault “%1” into %2 (%3)',
              fault,
              props.name,
              said(FAULTS[fault].sentence, trans)
            )}
            onClick={() => inject(fault)}
          >
            {props.words[fault]}
          </Button>
        ))}
    </span>
  );
}

function aimOf(target: FaultTarget): Aim {
  if ('rank' in target) {
    return 'rank';
  }
  return 'node' in target ? 'node' : target.target;
}
