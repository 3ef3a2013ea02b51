import * as React from 'react';

import type { IOutputPage } from '../api';
import { ILine, outputLines, ranksOf } from '../derive';
import { formatClock } from '../format';
import { TERMINAL_STATES } from '../model/events';
import {
  IOutputPart,
  IOutputQuery,
  Level,
  OutputPager
} from '../model/outputPager';
import type { IJobView } from '../model/views';
import { said } from '../said/said';
import { useShared } from './context';
import { useScroll } from './outputScroll';

/** Up to this number of ranks have a button each; more are in a list. */
const RANK_BUTTONS = 12;
/** The number of colours for ranks. */
const RANK_COLOURS = 8;

/** A pause in typing after which the output is searched. */
const TYPED_MS = 300;
/** How often the server is asked for output that no event brings, at first and at last. */
const ASK_MS = [3000, 30_000];
/** Output of a running job that is so much newer than the journal's is not in the journal. */
const NEWER_S = 1;
const LIVE_PIECES = '150';
/** Of the newest output so many lines are drawn; those before are read back as older output. */
const LIVE_LINES = 120;
/** Of a longer output, nobody asks whether it is all. */
const MOST_ASKED = 300;

export interface IOutputTools {
  job: IJobView;
  query: IOutputQuery;
  onPart: (part: IOutputPart | undefined) => void;
  onLevels: (levels: readonly Level[]) => void;
}

/**
 * The ranks' output: the newest as it comes, and older output page by page as the reader scrolls back or searches.
 * `folded` where the same text stands below already: it opens on request.
 */
export function Output(props: {
  job: IJobView;
  tall?: boolean;
  folded?: boolean;
  /** What else a view has for its readers; loaded with that view. */
  Tools?: React.ComponentType<IOutputTools>;
}): JSX.Element | null {
  const { job, Tools } = props;
  const { trans } = useShared();
  const [part, setPart] = React.useState<IOutputPart | undefined>();
  const [choice, setChoice] = React.useState<boolean | null>(null);
  const open = choice ?? !props.folded;
  const id = React.useId();
  const [rank, setRank] = React.useState<number | null>(null);
  const [text, setText] = React.useState('');
  const [levels, setLevels] = React.useState<readonly Level[]>([]);
  const [past, setPast] = React.useState(false);
  const box = React.useRef<HTMLDivElement>(null);
  const searching = text !== '' || levels.length > 0 || part !== undefined;
  const back = !job.deleted && (past || searching);
  const query = { rank, text, levels, part };
  const pager = usePager(job.id, back, query);
  const asks = open && !back && !job.deleted;
  const beside = useBeside(job, asks);
  const mayHaveOlder = useOlder(job, asks);
  const window = back ? pager.window : null;
  const paged = window?.pieces;
  // The view grows in place: a new last piece means new output.
  const last = job.output[job.output.length - 1];
  const live = React.useMemo(
    () => outputLines(beside?.pieces ?? job.output),
    // eslint-disable-next-line react-hooks/exhaustive-deps
    [job.output, last, beside]
  );
  const found = React.useMemo(() => paged && outputLines(paged), [paged]);
  const newest = rank === null ? live : live.filter(line => line.rank === rank);
  const shown = found ?? newest.slice(-LIVE_LINES);
  const ranks = ranksOf(live);
  const hasOlder = window
    ? window.before !== '' || window.above.length > 0
    : asks &&
      (newest.length > LIVE_LINES ||
        (beside ? beside.before !== '' : mayHaveOlder));
  const end = () => {
    if (
      past &&
      !searching &&
      window?.after === '' &&
      window.below.length === 0 &&
      !pager.busy
    ) {
      setPast(false);
    } else {
      void pager.newer();
    }
  };
  const begin = () => {
    if (found) {
      void pager.older();
    } else {
      setPast(true);
    }
  };
  const onScroll = useScroll(box, found !== undefined, begin, end);

  if (live.length === 0 && !found && !searching) {
    return null;
  }
  return (
    <div className="jp-Hp-output" data-tall={props.tall || undefined}>
      <div className="jp-Hp-output-head">
        {props.folded ? (
          <button
            type="button"
            className="jp-Hp-fold"
            aria-expanded={open}
            aria-controls={id}
            onClick={() => setChoice(!open)}
          >
            <span className="jp-Hp-caret" aria-hidden />
            {trans.__('Output')}
          </button>
        ) : (
          <span className="jp-Hp-label">{trans.__('Output')}</span>
        )}
        {open && !job.deleted && (
          <span className="jp-Hp-output-tools">
            {Tools && (
              <Tools
                job={job}
                query={query}
                onPart={setPart}
                onLevels={setLevels}
              />
            )}
            {ranks.length > 1 && (
              <RankFilter ranks={ranks} rank={rank} onChange={setRank} />
            )}
            <input
              type="search"
              className="jp-Hp-search"
              placeholder={trans.__('Search')}
              aria-label={trans.__('Search all output of %1', job.name)}
              value={text}
              onChange={event => setText(event.target.value)}
            />
          </span>
        )}
      </div>
      <div
        id={id}
        ref={box}
        className="jp-Hp-log"
        hidden={!open}
        role="log"
        aria-live="off"
        aria-label={trans.__('Output of %1', job.name)}
        tabIndex={0}
        onScroll={onScroll}
      >
        {open && hasOlder && (
          <button
            type="button"
            className="jp-Hp-more"
            disabled={pager.busy !== null}
            onClick={begin}
          >
            {trans.__('Older output')}
          </button>
        )}
        {open &&
          shown.map(line => (
            <Line
              key={line.key}
              line={line}
              text={line.text}
              wanted={found ? text : ''}
            />
          ))}
      </div>
      {open && back && (
        <PagerState
          pager={pager}
          searching={searching}
          onNewest={() => {
            setText('');
            setLevels([]);
            setPart(undefined);
            setPast(false);
          }}
        />
      )}
    </div>
  );
}

/** What is being read, in words, and the way back to the newest. */
function PagerState(props: {
  pager: OutputPager;
  searching: boolean;
  onNewest: () => void;
}): JSX.Element {
  const { trans } = useShared();
  const { pager, searching } = props;
  const { text, levels = [] } = pager.query;
  const { window, busy, problem } = pager;
  const reached_s = Number(window?.before.split(' ')[0]);
  let state = '';
  if (problem) {
    state = said(problem, trans);
  } else if (busy === 'older' && searching && reached_s) {
    state = trans.__('Searching before %1…', formatClock(reached_s));
  } else if (busy || !window) {
    state = trans.__('Reading…');
  } else if (searching && window.pieces.length === 0) {
    state = text
      ? trans.__('No line has this text.')
      : levels.length > 0
        ? trans.__('No line has this level.')
        : trans.__('There is no output in this part.');
  } else if (window.before === '' && window.above.length === 0) {
    state = searching
      ? trans.__('All output was searched.')
      : trans.__('This begins with the oldest output.');
  }
  return (
    <div className="jp-Hp-output-foot">
      <span role="status">{state}</span>
      <button type="button" className="jp-Hp-more" onClick={props.onNewest}>
        {trans.__('Newest output')}
      </button>
    </div>
  );
}

/** Pages of a job's output while `active`; drawn again with each page. */
function usePager(
  id: string,
  active: boolean,
  query: IOutputQuery
): OutputPager {
  const { model } = useShared();
  const [, redraw] = React.useReducer((count: number) => count + 1, 0);
  const pager = React.useMemo(
    () => new OutputPager(query => model.api.output(id, query), redraw),
    [model, id]
  );
  const { rank, text, levels, part } = query;
  React.useEffect(() => {
    if (!active) {
      return;
    }
    const timer = setTimeout(
      () =>
        // Who comes from the newest has it already: a second page is what was asked for.
        void pager
          .open({ rank, text, levels, part })
          .then(() =>
            text || levels?.length || part ? undefined : pager.older()
          ),
      text ? TYPED_MS : 0
    );
    return () => {
      clearTimeout(timer);
      pager.close();
    };
  }, [pager, active, rank, text, levels, part]);
  React.useEffect(() => () => pager.close(), [pager]);
  return pager;
}

/** Whether there is output before that of the view. Until the server says no, there may be some. */
function useOlder(job: IJobView, active: boolean): boolean {
  const { model } = useShared();
  const { output } = job;
  const first = output.length > 0 && output.length <= MOST_ASKED && output[0];
  // A snapshot has the same piece as another object.
  const key = first ? `${first.time_s} ${first.member} ${first.text}` : '';
  const [complete, setComplete] = React.useState('');
  React.useEffect(() => {
    if (!active || !key) {
      return;
    }
    let gone = false;
    const count = outputLines(output).length;
    model.api.output(job.id, { tail: String(output.length + 1) }).then(
      ({ pieces, before }) => {
        if (!gone && !before && outputLines(pieces).length <= count) {
          setComplete(key);
        }
      },
      () => undefined // the connection's own state says so
    );
    return () => {
      gone = true;
    };
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [model, job.id, active, key]);
  return active && !(key && complete === key);
}

/** The newest output of a job whose workers have printed more than its journal takes; else null. */
function useBeside(job: IJobView, active: boolean): IOutputPage | null {
  const { model } = useShared();
  const [page, setPage] = React.useState<IOutputPage | null>(null);
  const newest = React.useRef(0);
  newest.current = job.output[job.output.length - 1]?.time_s ?? 0;
  const printed = job.output.length > 0;
  const ended = TERMINAL_STATES.has(job.state);
  React.useEffect(() => {
    if (!active || !printed) {
      return;
    }
    let timer: ReturnType<typeof setTimeout>;
    let gone = false;
    let known = 0;
    let seen = newest.current;
    let pause = ASK_MS[0];
    const look = async () => {
      const still = seen === newest.current;
      seen = newest.current;
      if ((still || ended) && document.visibilityState !== 'hidden') {
        pause = Math.min(2 * pause, ASK_MS[1]);
        const [piece] = (await model.api.output(job.id, { tail: '1' })).pieces;
        if (
          !gone &&
          piece &&
          piece.time_s > newest.current + (ended ? 0 : NEWER_S)
        ) {
          if (piece.time_s !== known) {
            known = piece.time_s;
            pause = ASK_MS[0];
            const found = await model.api.output(job.id, { tail: LIVE_PIECES });
            if (!gone) {
              setPage(found);
            }
          }
        } else if (!gone) {
          setPage(null);
        }
      } else {
        pause = ASK_MS[0];
      }
    };
    const again = () => {
      look()
        .catch(() => undefined) // the connection's own state says so
        .finally(() => {
          if (!gone && !ended) {
            timer = setTimeout(again, pause);
          }
        });
    };
    timer = setTimeout(again, ended ? 0 : pause);
    return () => {
      gone = true;
      clearTimeout(timer);
    };
  }, [model, job.id, active, printed, ended]);
  return page;
}

const Line = React.memo(
  function Line({
    line,
    text,
    wanted
  }: {
    line: ILine;
    text: string;
    wanted: string;
  }): JSX.Element {
    return (
      <div data-stream={line.stream} data-key={line.key}>
        <span
          className="jp-Hp-rank"
          data-colour={line.rank === null ? undefined : colourOf(line.rank)}
          title={line.node}
        >
          {line.rank ?? '–'}
        </span>
        <span className="jp-Hp-text">
          {wanted ? marked(text, wanted) : text}
        </span>
      </div>
    );
  },
  (before, after) =>
    before.text === after.text &&
    before.wanted === after.wanted &&
    before.line.key === after.line.key &&
    before.line.rank === after.line.rank &&
    before.line.stream === after.line.stream &&
    before.line.node === after.line.node
);

/** The text with what is looked for marked. */
function marked(text: string, wanted: string): React.ReactNode[] {
  return text
    .split(wanted)
    .flatMap((part, index) =>
      index === 0 ? [part] : [<mark key={index}>{wanted}</mark>, part]
    );
}

function colourOf(rank: number): number {
  return rank % RANK_COLOURS;
}

function RankFilter(props: {
  ranks: number[];
  rank: number | null;
  onChange: (rank: number | null) => void;
}): JSX.Element {
  const { trans } = useShared();
  const { ranks, rank, onChange } = props;
  const label = trans.__('Show the output of');
  if (ranks.length > RANK_BUTTONS) {
    return (
      <select
        className="jp-Hp-select"
        aria-label={label}
        value={rank ?? ''}
        onChange={event =>
          onChange(
            event.target.value === '' ? null : Number(event.target.value)
          )
        }
      >
        <option value="">{trans.__('All ranks')}</option>
        {ranks.map(number => (
          <option key={number} value={number}>
            {trans.__('Rank %1', number)}
          </option>
        ))}
      </select>
    );
  }
  const choices: (number | null)[] = [null, ...ranks];
  return (
    <span className="jp-Hp-choices" role="group" aria-label={label}>
      {choices.map(choice => (
        <button
          key={choice ?? 'all'}
          type="button"
          aria-pressed={choice === rank}
          aria-label={choice === null ? undefined : trans.__('Rank %1', choice)}
          data-colour={choice === null ? undefined : colourOf(choice)}
          onClick={() => onChange(choice)}
        >
          {choice === null ? trans.__('All') : choice}
        </button>
      ))}
    </span>
  );
}
