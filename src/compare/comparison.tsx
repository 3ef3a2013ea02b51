import * as React from 'react';

import { IComparison, messageOf } from '../api';
import { Part } from '../components/boundary';
import { useShared } from '../components/context';
import { Button, StateChip } from '../components/parts';
import { shortId } from '../format';
import { said } from '../said/said';
import { Connection } from '../sidebar/sidebar';
import { Chart, DASHES, IMark } from './chart';
import { csv, lines, WHOLE } from './curves';
import { Differences, Sources } from './differences';
import { CsvButton, useSomeCurves } from './saving';
import { ViewChoice } from './view';

/** Some runs side by side: until where they are the same, their curves, and what differs. */
export function Comparison({ ids }: { ids: readonly string[] }): JSX.Element {
  const { model, trans } = useShared();
  const [found, setFound] = React.useState<IComparison | null>(null);
  const [problem, setProblem] = React.useState('');
  // The server compares the first with each other.
  const [first, setFirst] = React.useState(ids[0]);
  const wanted = [first, ...ids.filter(id => id !== first)].join(' ');
  const newest = React.useRef('');
  const ask = React.useCallback(async () => {
    newest.current = wanted;
    try {
      const answer = await model.api.compareJobs(wanted.split(' '));
      if (newest.current === wanted) {
        setFound(answer);
        setProblem('');
      }
    } catch (error) {
      if (newest.current === wanted) {
        setProblem(messageOf(error));
      }
    }
  }, [model, wanted]);
  React.useEffect(() => void ask(), [ask]);
  return (
    <>
      <Connection />
      {problem && (
        <p className="jp-Hp-banner" role="status">
          {said(problem, trans)}
          <Button onClick={ask}>{trans.__('Try again')}</Button>
        </p>
      )}
      {found === null && !problem && (
        <p className="jp-Hp-quiet" role="status">
          {trans.__('The journals of these runs are being read…')}
        </p>
      )}
      {found && (
        <Found found={found} again={ask}>
          {ids.length > 2 && (
            <Reference ids={ids} first={first} onChange={setFirst} />
          )}
        </Found>
      )}
    </>
  );
}

/** Which run the others are compared with. */
function Reference(props: {
  ids: readonly string[];
  first: string;
  onChange: (id: string) => void;
}): JSX.Element {
  const { trans } = useShared();
  return (
    <label className="jp-Hp-row">
      {trans.__('Compare the others with')}
      <select
        className="jp-Hp-select"
        value={props.first}
        onChange={event => props.onChange(event.target.value)}
      >
        {props.ids.map(id => (
          <option key={id} value={id}>
            {id}
          </option>
        ))}
      </select>
    </label>
  );
}

function Found(props: {
  found: IComparison;
  again: () => Promise<void>;
  /** The choice of the run that comes first. */
  children: React.ReactNode;
}): JSX.Element {
  const { found } = props;
  const { actions, trans } = useShared();
  const [view, setView] = React.useState(WHOLE);
  // By id, since the order of the runs may change.
  const [gone, setGone] = React.useState<ReadonlySet<string>>(new Set());
  const hidden = new Set(
    found.jobs.flatMap((id, run) => (gone.has(id) ? run : []))
  );
  const names = Object.keys(found.curves).filter(name =>
    found.curves[name].some(places => places.length > 0)
  );
  const [shown, others] = useSomeCurves(names);
  const marks = marksOf(found);
  const toggle = (run: number) => {
    const after = new Set(gone);
    if (!after.delete(found.jobs[run])) {
      after.add(found.jobs[run]);
    }
    setGone(after);
  };
  return (
    <>
      <Part name={trans.__('The runs')}>
        <Legend found={found} hidden={hidden} toggle={toggle} />
        {props.children}
        <Identity found={found} />
      </Part>
      <div className="jp-Hp-chartbar">
        <ViewChoice view={view} onChange={setView} />
        <span className="jp-Hp-actions">
          <Button onClick={props.again}>{trans.__('Read again')}</Button>
          <Button
            title={trans.__(
              'Draw the parameters in which they differ, in parallel coordinates'
            )}
            onClick={() => actions.openTrials({ jobs: found.jobs })}
          >
            {trans.__('Parameters')}
          </Button>
          <CsvButton
            name="curves"
            text={() => csv(found)}
            title={trans.__('Save all values of all curves as a table (CSV)')}
          />
        </span>
      </div>
      <Part name={trans.__('The curves')}>
        <div className="jp-Hp-charts">
          {shown.map(name => (
            <Chart
              key={name}
              name={name}
              lines={lines(found, name, view, hidden)}
              names={found.jobs}
              view={view}
              marks={marks}
              onRange={range => setView({ ...view, range })}
            />
          ))}
        </div>
        {others}
      </Part>
      <Part name={trans.__('The differences')}>
        <Differences found={found} />
      </Part>
      <Part name={trans.__('The code')}>
        <Sources found={found} />
      </Part>
    </>
  );
}

/** Where pairs of runs begin to differ. */
function marksOf(found: IComparison): IMark[] {
  return found.identity.flatMap(pair => {
    const sessions = Object.values(pair.sessions);
    const at = sessions.length === 1 ? sessions[0].differs_at : null;
    return at === null ? [] : [{ step: at, text: pair.sentence }];
  });
}

/** The runs with their colours; one that is pressed again is drawn again. */
function Legend(props: {
  found: IComparison;
  hidden: ReadonlySet<number>;
  toggle: (run: number) => void;
}): JSX.Element {
  const { actions, trans } = useShared();
  return (
    <ul className="jp-Hp-compared">
      {props.found.runs.map((run, at) => (
        <li key={run.id} data-colour={at}>
          <button
            type="button"
            className="jp-Hp-swatch"
            aria-pressed={!props.hidden.has(at)}
            aria-label={trans.__('Draw %1', run.id)}
            title={trans.__('Draw %1', run.id)}
            onClick={() => props.toggle(at)}
          >
            <svg width="22" height="8" aria-hidden>
              <line
                x1="0"
                x2="22"
                y1="4"
                y2="4"
                strokeDasharray={DASHES[at] || undefined}
              />
            </svg>
          </button>
          <button
            type="button"
            className="jp-Hp-link jp-Hp-strong"
            onClick={() => actions.openJob(run.id)}
          >
            {run.name}
          </button>
          <span className="jp-Hp-id">{shortId(run.id)}</span>
          <StateChip state={run.state} trans={trans} />
          {run.tags.map(tag => (
            <span key={tag} className="jp-Hp-tag">
              {tag}
            </span>
          ))}
          <span className="jp-Hp-small jp-Hp-clip" title={run.sentence}>
            {run.sentence}
          </span>
        </li>
      ))}
    </ul>
  );
}

/** Until which step runs are the same to the last bit, in the words of the server. */
function Identity({ found }: { found: IComparison }): JSX.Element {
  return (
    <ul className="jp-Hp-identity">
      {found.identity.map(pair => {
        const verdicts = Object.values(pair.sessions).map(one => one.verdict);
        const verdict = verdicts.includes('different')
          ? 'different'
          : verdicts.includes('same')
            ? 'same'
            : 'unknown';
        return (
          <li key={pair.jobs.join()} data-verdict={verdict}>
            {pair.sentence}.
          </li>
        );
      })}
    </ul>
  );
}
