import { downloadIcon } from '@jupyterlab/ui-components';
import * as React from 'react';

import { IOutputPage, IOutputPiece, messageOf } from '../api';
import { save } from '../compare/save';
import { useShared } from '../components/context';
import type { IOutputTools } from '../components/output';
import { Button } from '../components/parts';
import { outputLines, ranksOf } from '../derive';
import { formatInteger } from '../format';
import { asked, IOutputPart, Level, LEVELS } from '../model/outputPager';
import { said } from '../said/said';
import { absolute } from './moments';

const PAGE_PIECES = '1000';
const EXAMPLES = { steps: '100', time: '15:00, 10min' };

/** The part of the output by step or time, and all that is looked for as a file. */
export function OutputTools(props: IOutputTools): JSX.Element {
  const { job, query, onPart, onLevels } = props;
  const { model, trans } = useShared();
  const [kind, setKind] = React.useState<'' | 'steps' | 'time'>('');
  const [from, setFrom] = React.useState('');
  const [to, setTo] = React.useState('');
  const [state, setState] = React.useState('');
  const sent = React.useRef(query.part);
  const given = query.part !== undefined;
  React.useEffect(() => {
    if (!given && sent.current !== undefined) {
      sent.current = undefined; // somebody else wants the newest output
      setKind('');
      setFrom('');
      setTo('');
    }
  }, [given]);
  const ask = (part: IOutputPart | undefined) => {
    sent.current = part;
    onPart(part);
  };
  const take = () => {
    const part = partOf(kind, from.trim(), to.trim());
    // An equal one would be read again.
    if (JSON.stringify(part) !== JSON.stringify(query.part)) {
      ask(part);
    }
  };
  const download = async () => {
    try {
      const pieces = await allOutput(
        after => model.api.output(job.id, { ...asked(query), ...after }),
        count => setState(trans.__('%1 pieces…', formatInteger(count)))
      );
      save(new Blob([textOf(pieces)], { type: 'text/plain' }), `${job.id}.log`);
      setState('');
    } catch (error) {
      const problem = messageOf(error);
      setState(said(problem, trans));
    }
  };
  const fields = [
    { label: trans.__('From'), value: from, set: setFrom },
    { label: trans.__('to'), value: to, set: setTo }
  ];
  return (
    <>
      <span className="jp-Hp-small" role="status">
        {state}
      </span>
      <LevelFilter levels={query.levels ?? []} onChange={onLevels} />
      <select
        className="jp-Hp-select"
        aria-label={trans.__('The part of the output')}
        value={kind}
        onChange={event => {
          const chosen = event.target.value as '' | 'steps' | 'time';
          setKind(chosen);
          setFrom('');
          setTo('');
          ask(undefined);
        }}
      >
        <option value="">{trans.__('All of the time')}</option>
        <option value="steps">{trans.__('Steps…')}</option>
        <option value="time">{trans.__('Time…')}</option>
      </select>
      {kind &&
        fields.map(({ label, value, set }) => (
          <label key={label} className="jp-Hp-row">
            {label}
            <input
              className="jp-Hp-search jp-Hp-edge"
              placeholder={EXAMPLES[kind]}
              value={value}
              onChange={event => set(event.target.value)}
              onBlur={take}
              onKeyDown={event => event.key === 'Enter' && take()}
            />
          </label>
        ))}
      <Button
        icon={downloadIcon}
        title={trans.__('Save the output that is looked for as a file')}
        onClick={download}
      />
    </>
  );
}

/** A switch for each level; all lines are shown where none is on. */
function LevelFilter(props: {
  levels: readonly Level[];
  onChange: (levels: readonly Level[]) => void;
}): JSX.Element {
  const { trans } = useShared();
  const { levels, onChange } = props;
  const words: Record<Level, string> = {
    error: trans.__('Errors'),
    warning: trans.__('Warnings'),
    info: trans.__('Info'),
    debug: trans.__('Debug'),
    other: trans.__('Other')
  };
  return (
    <span
      className="jp-Hp-choices"
      role="group"
      aria-label={trans.__('Show only lines of these levels')}
      title={trans.__(
        'Levels as usual formats of logs say them; a traceback has the level of its record, else it is an error'
      )}
    >
      {LEVELS.map(level => (
        <button
          key={level}
          type="button"
          aria-pressed={levels.includes(level)}
          onClick={() =>
            onChange(
              LEVELS.filter(one => (one === level) !== levels.includes(one))
            )
          }
        >
          {words[level]}
        </button>
      ))}
    </span>
  );
}

/** What the server is asked for; undefined for everything. */
export function partOf(
  kind: '' | 'steps' | 'time',
  from: string,
  to: string,
  now = new Date()
): IOutputPart | undefined {
  if (!kind || (!from && !to)) {
    return undefined;
  }
  if (kind === 'steps') {
    return { steps: `${from}:${to}` };
  }
  const since = from && absolute(from, now);
  const until = to && absolute(to, now, since);
  return { ...(since && { since }), ...(until && { until }) };
}

/** All pages, from the first on. */
export async function allOutput(
  page: (query: Record<string, string>) => Promise<IOutputPage>,
  tell: (pieces: number) => void
): Promise<IOutputPiece[]> {
  const found: IOutputPiece[] = [];
  let after = '';
  for (;;) {
    const next = await page({ limit: PAGE_PIECES, ...(after && { after }) });
    for (const piece of next.pieces) {
      found.push(piece);
    }
    tell(found.length);
    if (!next.more || !next.after) {
      return found;
    }
    after = next.after;
  }
}

/** The lines as text, with the rank of each where several have printed. */
export function textOf(pieces: readonly IOutputPiece[]): string {
  const lines = outputLines(pieces);
  const several = ranksOf(lines).length > 1;
  return lines
    .map(({ rank, text }) =>
      several ? `[${rank ?? '-'}] ${text}\n` : `${text}\n`
    )
    .join('');
}
