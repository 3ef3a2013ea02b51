import * as React from 'react';

import { ILine, outputLines, ranksOf } from '../derive';
import type { IJobView } from '../model/views';
import { useShared } from './context';

/** Up to this number of ranks have a button each; more are in a list. */
const RANK_BUTTONS = 12;
/** The number of colours for ranks. */
const RANK_COLOURS = 8;

/**
 * The tail of the ranks' output; follows the end until the reader scrolls away. `folded` where the same
 * text stands below already: it opens on request.
 */
export function Output(props: {
  job: IJobView;
  tall?: boolean;
  folded?: boolean;
}): JSX.Element | null {
  const { job } = props;
  const { trans } = useShared();
  const [choice, setChoice] = React.useState<boolean | null>(null);
  const open = choice ?? !props.folded;
  const id = React.useId();
  const [rank, setRank] = React.useState<number | null>(null);
  const box = React.useRef<HTMLDivElement>(null);
  const atEnd = React.useRef(true);
  // The view grows in place: a new last piece means new output.
  const last = job.output[job.output.length - 1];
  const lines = React.useMemo(
    () => outputLines(job.output),
    // eslint-disable-next-line react-hooks/exhaustive-deps
    [job.output, last]
  );
  const ranks = ranksOf(lines);
  const shown =
    rank === null ? lines : lines.filter(line => line.rank === rank);

  React.useLayoutEffect(() => {
    if (box.current && atEnd.current) {
      box.current.scrollTop = box.current.scrollHeight;
    }
  });

  if (lines.length === 0) {
    return null;
  }
  const onScroll = () => {
    const { scrollTop, scrollHeight, clientHeight } = box.current!;
    atEnd.current = scrollTop + clientHeight >= scrollHeight - 8;
  };
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
        {open && ranks.length > 1 && (
          <RankFilter ranks={ranks} rank={rank} onChange={setRank} />
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
        {open &&
          shown.map(line => (
            <Line key={line.key} line={line} text={line.text} />
          ))}
      </div>
    </div>
  );
}

const Line = React.memo(
  function Line({ line, text }: { line: ILine; text: string }): JSX.Element {
    return (
      <div data-stream={line.stream}>
        <span
          className="jp-Hp-rank"
          data-colour={line.rank === null ? undefined : colourOf(line.rank)}
          title={line.node}
        >
          {line.rank ?? '–'}
        </span>
        <span className="jp-Hp-text">{text}</span>
      </div>
    );
  },
  (before, after) =>
    before.text === after.text &&
    before.line.rank === after.line.rank &&
    before.line.stream === after.line.stream &&
    before.line.node === after.line.node
);

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
