import * as React from 'react';

import type { IRun } from '../api';
import { useChanges, useShared } from '../components/context';
import { Button } from '../components/parts';
import { formatInteger } from '../format';
import { said } from '../said/said';
import { Connection } from '../sidebar/sidebar';
import { RunActions } from './actions';
import { columns as allColumns, IColumn, sorted, usual } from './columns';
import {
  asksForArchive,
  IIndexed,
  matches,
  parse,
  sourceWords
} from './filter';
import { Grid, IOrder } from './grid';
import { NoMatch } from './mistakes';
import type { Rows } from './rows';

/** The most runs that can be compared at once. */
export const MOST_COMPARED = 6;
/** The most runs that are drawn at once, unless they are a sweep. */
export const MOST_TRIALS = 200;

/** Every job of the store, in one table. */
export function RunsTable(props: { rows: Rows }): JSX.Element {
  const { rows } = props;
  const shared = useShared();
  const { trans, actions } = shared;
  useChanges(rows);
  const [filter, setFilter] = React.useState('');
  const [order, setOrder] = React.useState<IOrder>({
    column: 'submitted',
    descending: true
  });
  const [ticked, setTicked] = React.useState<ReadonlySet<string>>(new Set());
  const [chosen, setChosen] = React.useState<ReadonlySet<string> | null>(null);
  const all = rows.all;
  const { sources } = rows;
  const runActions = React.useMemo(
    () => new RunActions(shared, rows),
    [shared, rows]
  );

  const every = React.useMemo(() => allColumns(all, trans), [all, trans]);
  const names = React.useMemo(
    () => [...(chosen ?? usual(every, all))].join('\n'),
    [chosen, every, all]
  );
  const labels = every.map(column => column.id).join('\n');
  const columns = React.useMemo(
    () => every.filter(column => names.split('\n').includes(column.id)),
    // The columns themselves are the same for the same names.
    // eslint-disable-next-line react-hooks/exhaustive-deps
    [labels, names]
  );
  const terms = React.useMemo(() => parse(filter), [filter]);
  const words = React.useMemo(() => sourceWords(terms), [terms]);
  React.useEffect(() => rows.search(words), [rows, words, all]);
  // Before the filter: each letter of it needs no other order.
  const ordered = React.useMemo(() => {
    const column = every.find(one => one.id === order.column) ?? every[0];
    return sorted(all, column, order.descending);
  }, [all, every, order]);
  const shown = React.useMemo(() => {
    const archive = asksForArchive(terms);
    return ordered.filter(
      row => (archive || !row.run.archived) && matches(row, terms, sources)
    );
  }, [ordered, terms, sources]);
  const picked = shown
    .filter(({ run }) => ticked.has(run.id))
    .map(({ run }) => run);
  const archived = React.useMemo(
    () => all.filter(({ run }) => run.archived).length,
    [all]
  );

  const onTick = React.useCallback((ids: string[], on: boolean) => {
    setTicked(before => {
      const after = new Set(before);
      ids.forEach(id => (on ? after.add(id) : after.delete(id)));
      return after;
    });
  }, []);
  const untick = (done: boolean) => done && setTicked(new Set());

  return (
    <>
      <Connection />
      <div className="jp-Hp-runsbar" role="search">
        <input
          type="search"
          className="jp-Hp-filter"
          value={filter}
          onChange={event => setFilter(event.target.value)}
          aria-label={trans.__('Filter runs')}
          placeholder={trans.__('Filter, such as state:failed loss<0.5')}
          title={trans.__(
            'Words are looked for everywhere, in code and parameters, too. tag: state: name: person: notebook: backend: queue: note: code: look in one place, and a parameter does so by its name. Numbers compare: loss<0.5, goodput>95%, step>=100. A minus before a word leaves its runs out. is:archived, is:active and is:ended.'
          )}
        />
        <Count rows={rows} shown={shown} archived={archived} terms={filter} />
        <span className="jp-Hp-actions">
          {picked.length > 0 && (
            <Picked
              picked={picked}
              notebook={run => actions.openExecuted(run.id)}
              promote={run => actions.promote(run.id, run.name, run.backend)}
              trials={() =>
                actions.openTrials({ jobs: picked.map(run => run.id) })
              }
              sweep={sweep => actions.openTrials({ sweep })}
              compare={() => actions.compareRuns(picked.map(run => run.id))}
              runActions={runActions}
              untick={untick}
            />
          )}
          <ColumnChoice every={every} shown={columns} onChange={setChosen} />
        </span>
      </div>
      {rows.problem && (
        <p className="jp-Hp-banner" role="status">
          {said(rows.problem, trans)}
        </p>
      )}
      {all.length > 0 && shown.length === 0 && (
        <NoMatch terms={terms} onClear={() => setFilter('')} />
      )}
      {all.length > 0 || !rows.known ? (
        <Grid
          rows={shown}
          columns={columns}
          order={order}
          onOrder={setOrder}
          ticked={ticked}
          onTick={onTick}
          onOpen={run => actions.openJob(run.id)}
          onSweep={sweep => actions.openTrials({ sweep })}
          onDelete={run =>
            RunActions.canDelete(run) && void runActions.delete([run])
          }
          onTags={(run, text) => runActions.retag(run, text)}
          onNote={(run, note) => runActions.label([run], { note })}
        />
      ) : (
        <p className="jp-Hp-quiet jp-Hp-norun">
          {trans.__(
            'No runs yet. Each job of this store becomes a row here, as soon as it is submitted.'
          )}
        </p>
      )}
    </>
  );
}

/** How many runs there are, and what is left out. */
function Count(props: {
  rows: Rows;
  shown: readonly IIndexed[];
  archived: number;
  terms: string;
}): JSX.Element {
  const { rows, shown } = props;
  const { trans } = useShared();
  const words: string[] = [];
  if (!rows.known) {
    words.push(trans.__('Asking the server…'));
  } else if (shown.length === rows.all.length) {
    words.push(trans._n('%1 run', '%1 runs', shown.length));
  } else {
    words.push(
      trans.__(
        '%1 of %2 runs',
        formatInteger(shown.length),
        formatInteger(rows.all.length)
      )
    );
  }
  if (props.archived && !props.terms.includes('is:archived')) {
    words.push(trans.__('%1 archived', formatInteger(props.archived)));
  }
  if (rows.unread) {
    words.push(trans.__('%1 more are being read', formatInteger(rows.unread)));
  }
  return (
    <span className="jp-Hp-small" role="status">
      {words.join(' · ')}
    </span>
  );
}

/** What can be done with the ticked runs. */
function Picked(props: {
  picked: IRun[];
  compare: () => void;
  trials: () => void;
  sweep: (sweep: string) => void;
  notebook: (run: IRun) => Promise<void>;
  promote: (run: IRun) => Promise<void>;
  runActions: RunActions;
  untick: (done: boolean) => void;
}): JSX.Element {
  const { picked, runActions, untick } = props;
  const { trans } = useShared();
  const ready = picked.every(RunActions.canDelete);
  const inArchive = picked.every(run => run.archived);
  return (
    <>
      <span className="jp-Hp-small">
        {trans._n('%1 ticked', '%1 ticked', picked.length)}
      </span>
      <Button
        disabled={picked.length < 2 || picked.length > MOST_COMPARED}
        title={trans.__('Compare 2 to %1 ticked runs', MOST_COMPARED)}
        onClick={props.compare}
      >
        {trans.__('Compare')}
      </Button>
      {picked.length === 1 && picked[0].sweep ? (
        <Button
          title={trans.__('Draw all trials of %1', picked[0].sweep)}
          onClick={() => props.sweep(picked[0].sweep)}
        >
          {trans.__('Sweep')}
        </Button>
      ) : (
        <Button
          disabled={picked.length < 2 || picked.length > MOST_TRIALS}
          title={trans.__(
            'Draw the parameters of 2 to %1 ticked runs in parallel coordinates',
            MOST_TRIALS
          )}
          onClick={props.trials}
        >
          {trans.__('Parameters')}
        </Button>
      )}
      {picked.length === 1 && (
        <>
          <Button
            title={trans.__(
              'Open the notebook that was the job, with the outputs of its cells'
            )}
            onClick={() => props.notebook(picked[0])}
          >
            {trans.__('Notebook')}
          </Button>
          <Button
            title={trans.__('Submit it to another cluster')}
            onClick={() => props.promote(picked[0])}
          >
            {trans.__('Promote…')}
          </Button>
        </>
      )}
      <Button onClick={() => runActions.addTag(picked)}>
        {trans.__('Tag…')}
      </Button>
      {inArchive ? (
        <Button
          onClick={async () => untick(await runActions.unarchive(picked))}
        >
          {trans.__('Bring back')}
        </Button>
      ) : (
        <Button onClick={async () => untick(await runActions.archive(picked))}>
          {trans.__('Archive…')}
        </Button>
      )}
      <Button
        danger
        disabled={!ready}
        title={
          ready
            ? undefined
            : trans.__('Only runs that have ended can be deleted')
        }
        onClick={async () => untick(await runActions.delete(picked))}
      >
        {trans.__('Delete…')}
      </Button>
    </>
  );
}

/** Which columns are shown. */
function ColumnChoice(props: {
  every: readonly IColumn[];
  shown: readonly IColumn[];
  onChange: (chosen: ReadonlySet<string>) => void;
}): JSX.Element {
  const { trans } = useShared();
  const box = React.useRef<HTMLDetailsElement>(null);
  const shown = new Set(props.shown.map(column => column.id));
  React.useEffect(() => {
    const close = (event: Event) => {
      if (box.current?.open && !box.current.contains(event.target as Node)) {
        box.current.open = false;
      }
    };
    document.addEventListener('pointerdown', close);
    return () => document.removeEventListener('pointerdown', close);
  }, []);
  return (
    <details
      ref={box}
      className="jp-Hp-choice"
      onBlur={event => {
        const to = event.relatedTarget;
        if (to && box.current && !box.current.contains(to)) {
          box.current.open = false;
        }
      }}
      onKeyDown={event => {
        if (event.key === 'Escape' && box.current) {
          box.current.open = false;
          box.current.querySelector('summary')?.focus();
        }
      }}
    >
      <summary className="jp-Hp-button">{trans.__('Columns')}</summary>
      <div className="jp-Hp-columnlist">
        {props.every
          .filter(column => column.id !== 'name')
          .map(column => (
            <label key={column.id}>
              <input
                type="checkbox"
                checked={shown.has(column.id)}
                onChange={() => {
                  const after = new Set(shown);
                  if (!after.delete(column.id)) {
                    after.add(column.id);
                  }
                  props.onChange(after);
                }}
              />
              <span className="jp-Hp-clip">{column.label}</span>
            </label>
          ))}
      </div>
    </details>
  );
}
