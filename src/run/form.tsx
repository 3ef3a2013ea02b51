/** The form "Run on cluster". It shows the line that it writes, so that a person learns it. */

import * as React from 'react';

import type { IBackend, IMount } from '../api';
import { useShared } from '../components/context';
import { Button } from '../components/parts';
import { settled } from './choice';
import type { IAbout, ISaid } from './kernel';
import { IChoice, rewritten, write } from './line';
import type { IParameter } from './parameters';
import { useAnswer } from './promise';
import { useChoice } from './useChoice';
import { More, Parameters, What } from './what';
import { Where } from './where';

/** What the form is shown for, and what it can ask. */
export interface IQuestion {
  /** The whole notebook. */
  whole: boolean;
  /** The number of cells. */
  count: number;
  /** The notebook's name, which is the name of a job without one. */
  notebook: string;
  parameters: readonly IParameter[];
  /** The line that the cell has; empty where it has none. */
  line: string;
  first: IChoice;
  /** The kernel's environment; null without a kernel, rejected where it lacks the magics. */
  about: Promise<IAbout | null>;
  backends: Promise<IBackend[]>;
  mounts: Promise<IMount[]>;
  interpreters: readonly string[];
  dryRun: (answer: IAnswer) => Promise<ISaid>;
}

export interface IAnswer {
  choice: IChoice;
  line: string;
  /** Whether it runs on this machine. */
  local: boolean;
  /** The parameters of the notebook. */
  values: Record<string, string>;
}

export function Form(props: {
  question: IQuestion;
  onChange: (answer: IAnswer) => void;
}): JSX.Element {
  const { question, onChange } = props;
  const { trans } = useShared();
  const [choice, change] = useChoice(question.first);
  const [values, setValues] = React.useState<Record<string, string>>({});
  const about = useAnswer(question.about);
  const backends = useAnswer(question.backends);
  const usual = about.found?.backend ?? 'local';
  const settledChoice = settled(choice, usual);
  const line = question.line
    ? rewritten(question.line, settledChoice)
    : write(settledChoice);
  const backend = choice.backend || usual;
  const local =
    backends.found?.find(one => one.name === backend)?.owns_nodes ??
    backend === 'local';
  const answer: IAnswer = { choice, line, local, values };
  React.useEffect(() => {
    onChange(answer);
  });
  return (
    <>
      <p className="jp-Hp-quiet">
        {question.whole
          ? trans._n(
              'The %1 code cell of this notebook becomes one job. Its code is put together in a cell at the end, where its output stays live.',
              'The %1 code cells of this notebook become one job. Their code is put together in a cell at the end, where its output stays live.',
              question.count
            )
          : question.count > 1
            ? trans.__(
                '%1 cells become one job. Their code is put together in a cell below them, where its output stays live.',
                question.count
              )
            : trans.__(
                'The cell becomes a job: every node runs its code, and its output stays live under the cell.'
              )}
      </p>
      {about.found === null && about.problem !== '' && (
        <p className="jp-Hp-banner jp-mod-error" role="alert">
          {trans.__(
            'The kernel of this notebook cannot load jupyter_hyperpod: %1. Install it in the environment of the kernel.',
            about.problem
          )}
        </p>
      )}
      <div className="jp-Hp-fields">
        <Where
          choice={choice}
          change={change}
          counted={question.first.nodes !== null}
          backend={backend}
          local={local}
          backends={backends.found ?? []}
          problem={backends.problem}
        />
      </div>
      {question.parameters.length > 0 && (
        <Parameters
          parameters={question.parameters}
          values={values}
          onChange={(name, value) => setValues({ ...values, [name]: value })}
        />
      )}
      <div className="jp-Hp-fields">
        <What
          choice={choice}
          change={change}
          question={question}
          about={about.found}
        />
      </div>
      <More choice={choice} change={change} open={startsOpen(question.first)} />
      <Line answer={answer} question={question} />
    </>
  );
}

/** Whether the cell's line has something that is folded away. */
function startsOpen(choice: IChoice): boolean {
  const { spares, queue, push, pull, schedule, other } = choice;
  return spares !== null || [queue, push, pull, schedule, other].some(Boolean);
}

/** The line, and what the magic says of it without running it. */
function Line(props: { answer: IAnswer; question: IQuestion }): JSX.Element {
  const { answer, question } = props;
  const { trans } = useShared();
  const [said, setSaid] = React.useState<(ISaid & { line: string }) | null>(
    null
  );
  const shown = React.useRef<HTMLDivElement>(null);
  const label = React.useId();
  const ask = async () => {
    const { line } = answer;
    const found = await question.dryRun(answer).catch(error => ({
      ok: false,
      text: String(error?.message ?? error)
    }));
    setSaid({ ...found, line });
  };
  React.useEffect(() => {
    shown.current?.scrollIntoView?.({ block: 'nearest' });
  }, [said]);
  return (
    <>
      <div className="jp-Hp-line">
        <div className="jp-Hp-row">
          <span id={label} className="jp-Hp-fieldname">
            {trans.__('First line of the cell')}
          </span>
          <span className="jp-Hp-right">
            <Button
              title={trans.__('Check everything, submit nothing')}
              onClick={ask}
            >
              {trans.__('Dry run')}
            </Button>
          </span>
        </div>
        <code aria-labelledby={label} role="region" aria-live="polite">
          {answer.line}
        </code>
      </div>
      {said && (
        <div
          ref={shown}
          className="jp-Hp-said"
          data-wrong={!said.ok || undefined}
          data-outdated={said.line !== answer.line || undefined}
          role="status"
        >
          <pre tabIndex={0} aria-label={trans.__('What the dry run says')}>
            {said.text}
          </pre>
        </div>
      )}
    </>
  );
}
