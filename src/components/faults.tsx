import * as React from 'react';

import type { FaultTarget } from '../api';
import { Aim, FAULTS, Fault, faultsOf } from '../model/events';
import { said } from '../said/said';
import { useShared } from './context';
import { openFaultMenu } from './faultMenu';
import { Button } from './parts';

/** The faults with a button of their own; the others are in a menu: a list would inject what an arrow key passes. */
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
  const shared = useShared();
  const { actions, trans } = shared;
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
        <button
          type="button"
          className="jp-Hp-button"
          aria-haspopup="menu"
          title={trans.__('Inject another fault into %1', props.name)}
          onClick={event => {
            event.stopPropagation();
            const button = event.currentTarget;
            const { left, bottom } = button.getBoundingClientRect();
            const { job, target, name } = props;
            const offer = { target, name, faults: others };
            openFaultMenu(shared, job, name, [offer], button, {
              x: left,
              y: bottom
            });
          }}
        >
          {props.words.other}
        </button>
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
