import * as React from 'react';

import type { ITrial, ITrials } from '../api';
import { CsvButton, PictureButtons } from '../compare/saving';
import { Part } from '../components/boundary';
import { useChanges, useShared } from '../components/context';
import { Button, stateLabel } from '../components/parts';
import { TERMINAL_STATES } from '../model/events';
import { said } from '../said/said';
import { Connection } from '../sidebar/sidebar';
import { csv, dashOf, GRADES, passes, Ranges, uprights } from './axes';
import { Parallel, titleOf } from './parallel';
import type { Trials } from './source';
import { TrialsTable } from './table';

/** A sweep, or some jobs, in parallel coordinates and as a table. */
export function TrialsView({ source }: { source: Trials }): JSX.Element {
  const { trans } = useShared();
  useChanges(source);
  const { found, problem } = source;
  return (
    <>
      <Connection />
      {problem && (
        <p className="jp-Hp-banner" role="status">
          {said(problem, trans)}
          <Button onClick={() => source.refresh()}>
            {trans.__('Try again')}
          </Button>
        </p>
      )}
      {found === null && !problem && (
        <p className="jp-Hp-quiet" role="status">
          {trans.__('The journals of these runs are being read…')}
        </p>
      )}
      {found && <Found found={found} source={source} />}
    </>
  );
}

function Found(props: { found: ITrials; source: Trials }): JSX.Element {
  const { found, source } = props;
  const { actions, trans } = useShared();
  const drawing = React.useRef<SVGSVGElement>(null);
  const [ranges, setRanges] = React.useState<Ranges>(new Map());
  const [shown, setShown] = React.useState('');
  const axes = React.useMemo(() => uprights(found), [found]);
  const left = React.useMemo(
    () => found.trials.filter(trial => passes(trial, axes, ranges)),
    [found, axes, ranges]
  );
  const leftJobs = React.useMemo(
    () => new Set(left.map(trial => trial.job)),
    [left]
  );
  // The table may come a moment later than the lines: a range follows the pointer.
  const listed = React.useDeferredValue(left);
  const open = React.useCallback(
    (job: string) => actions.openJob(job),
    [actions]
  );
  const best = found.trials.find(trial => trial.job === found.best);
  const name = found.id || 'parameters';
  const told = found.axes.map(axis => axis.name).join(', ');
  return (
    <>
      <div className="jp-Hp-trialshead">
        <div>
          {found.sweep && <h3 className="jp-Hp-name">{found.id}</h3>}
          <p className="jp-Hp-quiet">
            {best
              ? bestText(found, best, trans)
              : trans.__('No trial has a value that counts yet.')}
          </p>
        </div>
        <span className="jp-Hp-actions">
          <Button
            primary
            disabled={!best}
            title={best && trans.__('Open %1', best.job)}
            onClick={() => best && actions.openJob(best.job)}
          >
            {trans.__('Open best run')}
          </Button>
        </span>
      </div>
      <div className="jp-Hp-chartbar">
        <span role="status">{countText(found, left.length, trans)}</span>
        <Button
          disabled={ranges.size === 0}
          title={trans.__('Take all ranges away')}
          onClick={() => setRanges(new Map())}
        >
          {trans.__('Show all')}
        </Button>
        {!found.sweep && <Judged found={found} source={source} />}
        <span className="jp-Hp-actions">
          <CsvButton
            name={name}
            text={() => csv(found)}
            title={trans.__('Save all trials as a table (CSV)')}
          />
          <PictureButtons name={name} drawing={drawing} />
        </span>
      </div>
      {found.axes.length === 0 && (
        <p className="jp-Hp-quiet">
          {trans.__('These runs have the same parameters.')}
        </p>
      )}
      <Part name={trans.__('The picture')}>
        <Parallel
          found={found}
          axes={axes}
          left={leftJobs}
          ranges={ranges}
          onRanges={setRanges}
          shown={shown}
          onShow={setShown}
          onOpen={open}
          drawing={drawing}
          alt={trans.__(
            'Parallel coordinates of %1 and %2: the table below has the same values',
            told,
            found.metric
          )}
        />
        <Legend found={found} />
      </Part>
      <Part name={trans.__('The table')}>
        <TrialsTable
          found={found}
          axes={axes}
          trials={listed}
          shown={shown}
          onShow={setShown}
          onOpen={open}
        />
      </Part>
    </>
  );
}

function bestText(
  found: ITrials,
  best: ITrial,
  trans: ReturnType<typeof useShared>['trans']
): string {
  const values = Object.entries(best.told).map(
    ([name, value]) => `${name}=${value}`
  );
  const { metric } = found;
  const value = best.value_text;
  const title = titleOf(found, best, trans);
  const given = values.join(', ');
  return found.live
    ? trans.__(
        'The best %1 so far: %2, in %3 (%4).',
        metric,
        value,
        title,
        given
      )
    : trans.__('The best %1: %2, in %3 (%4).', metric, value, title, given);
}

/** How many trials there are, have ended, and are left by the ranges. */
function countText(
  found: ITrials,
  left: number,
  trans: ReturnType<typeof useShared>['trans']
): string {
  const all = found.trials.length;
  const ended = found.trials.filter(
    ({ state }) => state === 'pruned' || TERMINAL_STATES.has(state as never)
  ).length;
  const words = [
    left < all
      ? trans.__('%1 of %2 trials', left, all)
      : all < found.wanted
        ? trans.__('%1 of %2 trials so far', all, found.wanted)
        : trans._n('%1 trial', '%1 trials', all)
  ];
  if (ended < all) {
    words.push(trans.__('%1 have ended', ended));
  }
  return words.join(' · ');
}

/** By which of their values jobs are judged that are no sweep. */
function Judged(props: { found: ITrials; source: Trials }): JSX.Element {
  const { found, source } = props;
  const { trans } = useShared();
  const { metric, maximize } = found;
  const names = new Set([...found.metrics, metric]);
  return (
    <>
      <label className="jp-Hp-row">
        {trans.__('Judged by')}
        <select
          className="jp-Hp-select"
          value={metric}
          onChange={event =>
            source.judge({ metric: event.target.value, maximize })
          }
        >
          {[...names].map(name => (
            <option key={name}>{name}</option>
          ))}
        </select>
      </label>
      <label className="jp-Hp-row">
        <input
          type="checkbox"
          checked={maximize}
          onChange={() => source.judge({ metric, maximize: !maximize })}
        />
        {trans.__('Large is good')}
      </label>
    </>
  );
}

/** What colours and dashes mean. */
function Legend({ found }: { found: ITrials }): JSX.Element {
  const { trans } = useShared();
  const states = [...new Set(found.trials.map(trial => trial.state))].sort();
  return (
    <p className="jp-Hp-trialslegend">
      <span>
        {trans.__('best')}
        <span className="jp-Hp-ramp" aria-hidden>
          {Array.from({ length: GRADES }, (_, grade) => (
            <i key={grade} data-grade={grade} />
          ))}
        </span>
        {trans.__('worst')}
      </span>
      {states.map(state => (
        <span key={state}>
          <svg width="28" height="8" aria-hidden>
            <line
              x1="0"
              x2="28"
              y1="4"
              y2="4"
              strokeDasharray={dashOf(state) || undefined}
            />
          </svg>
          {stateLabel(state, trans)}
        </span>
      ))}
    </p>
  );
}
