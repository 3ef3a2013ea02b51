import * as React from 'react';

import type { ITrial, ITrials } from '../api';
import { useSome } from '../compare/saving';
import { useShared } from '../components/context';
import { StateChip } from '../components/parts';
import { Sheet } from '../components/sheet';
import { formatInteger } from '../format';
import { said } from '../said/said';
import { IUpright, METRIC, Order, ordered } from './axes';
import { titleOf } from './parallel';

/** Rows before somebody asks for the others: a range that is dragged changes them all. */
const ROWS = 60;

/** The same trials for those who read them: each with its values, its state and the metric. */
export const TrialsTable = React.memo(function TrialsTable(props: {
  found: ITrials;
  axes: readonly IUpright[];
  trials: readonly ITrial[];
  shown: string;
  onShow: (job: string) => void;
  onOpen: (job: string) => void;
}): JSX.Element {
  const { found, axes, trials, shown, onShow, onOpen } = props;
  const { trans } = useShared();
  const [order, setOrder] = React.useState<Order>({
    column: METRIC,
    descending: found.maximize
  });
  const rows = React.useMemo(
    () => ordered(trials, axes, order),
    [trials, axes, order]
  );
  const [listed, others] = useSome(rows, ROWS, left =>
    trans._n('Show %1 more trial', 'Show %1 more trials', left)
  );
  const columns = [
    {
      id: 'trial',
      name: found.sweep ? trans.__('Trial') : trans._p('noun', 'Run'),
      numeric: false
    },
    ...axes.map(axis => ({ id: axis.id, name: axis.name, numeric: true })),
    { id: 'state', name: trans.__('State'), numeric: false },
    { id: 'step', name: trans.__('Steps'), numeric: true }
  ];
  return (
    <>
      <Sheet label={trans.__('All trials as a table')}>
        <thead>
          <tr>
            {columns.map(({ id, name, numeric }) => (
              <th
                key={id}
                scope="col"
                data-numeric={numeric || undefined}
                aria-sort={
                  order.column !== id
                    ? undefined
                    : order.descending
                      ? 'descending'
                      : 'ascending'
                }
              >
                {id === 'step' ? (
                  name
                ) : (
                  <button
                    type="button"
                    className="jp-Hp-sort"
                    onClick={() =>
                      setOrder({
                        column: id,
                        descending: order.column === id && !order.descending
                      })
                    }
                  >
                    {name}
                  </button>
                )}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {listed.map(trial => (
            <Row
              key={trial.job}
              found={found}
              trial={trial}
              isBest={trial.job === found.best}
              isShown={trial.job === shown}
              onShow={onShow}
              onOpen={onOpen}
            />
          ))}
        </tbody>
      </Sheet>
      {others}
    </>
  );
});

const Row = React.memo(
  function Row(props: {
    found: ITrials;
    trial: ITrial;
    isBest: boolean;
    isShown: boolean;
    onShow: (job: string) => void;
    onOpen: (job: string) => void;
  }): JSX.Element {
    const { found, trial, onShow, onOpen } = props;
    const { trans } = useShared();
    return (
      <tr
        data-shown={props.isShown || undefined}
        data-best={props.isBest || undefined}
        onPointerEnter={() => onShow(trial.job)}
        onPointerLeave={() => onShow('')}
        onFocus={() => onShow(trial.job)}
        onBlur={() => onShow('')}
      >
        <th scope="row">
          <button
            type="button"
            className="jp-Hp-link"
            title={trial.job}
            onClick={() => onOpen(trial.job)}
          >
            {titleOf(found, trial, trans)}
          </button>
          {props.isBest && (
            <span className="jp-Hp-tag">{trans.__('best')}</span>
          )}
        </th>
        {found.axes.map(({ name }) => (
          <td key={name} data-numeric>
            {trial.told[name] ?? ''}
          </td>
        ))}
        <td data-numeric>{trial.value_text === '-' ? '' : trial.value_text}</td>
        <td>
          <StateChip
            state={trial.state}
            trans={trans}
            title={said(trial.reason, trans)}
          />
        </td>
        <td data-numeric>{trial.step ? formatInteger(trial.step) : ''}</td>
      </tr>
    );
  },
  (before, after) =>
    before.isBest === after.isBest &&
    before.isShown === after.isShown &&
    before.found.axes.length === after.found.axes.length &&
    same(before.trial, after.trial)
);

/** Answers come anew; most trials are as they were. */
function same(one: ITrial, other: ITrial): boolean {
  return (
    one === other ||
    (one.job === other.job &&
      one.state === other.state &&
      one.step === other.step &&
      one.value_text === other.value_text)
  );
}
