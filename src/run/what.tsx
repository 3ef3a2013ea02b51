import * as React from 'react';

import type { IMount } from '../api';
import { useShared } from '../components/context';
import { mountLabel } from '../components/parts';
import { problems } from './choice';
import { Frame, NumberField, TextField, TickField } from './fields';
import type { IQuestion } from './form';
import type { IAbout } from './kernel';
import type { Change, IChoice } from './line';
import type { IParameter } from './parameters';
import { useAnswer } from './promise';
import { problemText } from './words';

/** The parameters of a notebook, with the values of this run. */
export function Parameters(props: {
  parameters: readonly IParameter[];
  values: Record<string, string>;
  onChange: (name: string, value: string) => void;
}): JSX.Element {
  const { trans } = useShared();
  return (
    <fieldset className="jp-Hp-group">
      <legend>{trans.__('Parameters')}</legend>
      <div className="jp-Hp-fields">
        {props.parameters.map(({ name, value, help }) => (
          <TextField
            key={name}
            label={name}
            value={props.values[name] ?? value}
            placeholder={value}
            help={help}
            onChange={text => props.onChange(name, text)}
          />
        ))}
      </div>
    </fieldset>
  );
}

/** The job's name, priority and environment, and the storage that it has. */
export function What(props: {
  choice: IChoice;
  change: Change;
  question: IQuestion;
  about: IAbout | null | undefined;
}): JSX.Element {
  const { choice, change, question, about } = props;
  const { trans } = useShared();
  const wrong = problems(choice);
  return (
    <>
      <TextField
        label={trans.__('Name')}
        value={choice.name}
        placeholder={question.notebook}
        help={trans.__('Empty: that of the notebook.')}
        problem={problemText(wrong.name, trans)}
        onChange={name => change({ name })}
      />
      <NumberField
        label={trans.__('Priority')}
        value={choice.priority}
        min={-1000}
        max={1000}
        placeholder="0"
        help={trans.__(
          'A job of higher priority takes nodes from elastic jobs of lower priority.'
        )}
        problem={problemText(wrong.priority, trans)}
        onChange={priority => change({ priority })}
      />
      <TextField
        label={trans.__('Environment')}
        value={choice.python}
        placeholder={about?.python ?? ''}
        choices={question.interpreters}
        help={
          about
            ? trans.__(
                'Empty: the Python %1 of this notebook. Otherwise the path of an interpreter on the nodes.',
                about.version
              )
            : about === undefined
              ? trans.__('Asking the kernel, which may be busy…')
              : trans.__('Empty: the interpreter of this notebook.')
        }
        problem={problemText(wrong.python, trans)}
        onChange={python => change({ python })}
      />
      <Mounts asked={question.mounts} />
    </>
  );
}

/** The mounts, which every job has. */
function Mounts({ asked }: { asked: Promise<IMount[]> }): JSX.Element {
  const { trans } = useShared();
  const { found, problem } = useAnswer(asked);
  return (
    <Frame
      name={<span className="jp-Hp-fieldname">{trans.__('Mounts')}</span>}
      help={
        problem ||
        (found === undefined
          ? trans.__('Asking the server…')
          : trans.__('Every node has them, at the same paths.'))
      }
    >
      <ul className="jp-Hp-mountlist">
        {(found ?? []).map(mount => (
          <li key={mount.name} title={mount.reason || mount.notebook_path}>
            <span
              className="jp-Hp-dot"
              data-state={MOUNT[mount.state] ?? 'failed'}
              aria-hidden
            />
            {mount.name}
            {!(mount.state in MOUNT) && (
              <span className="jp-Hp-small">
                {mountLabel(mount.state, trans)}
              </span>
            )}
          </li>
        ))}
      </ul>
    </Frame>
  );
}

const EXAMPLE = '--env A=1';
const WEEKDAYS = '30 6 * * mon-fri';
const HERE = Intl.DateTimeFormat().resolvedOptions().timeZone;

const MOUNT: Record<string, string> = {
  ready: 'succeeded',
  remote: 'succeeded'
};

/** What is needed less often. */
export function More(props: {
  choice: IChoice;
  change: Change;
  open: boolean;
}): JSX.Element {
  const { choice, change } = props;
  const { trans } = useShared();
  const wrong = problems(choice);
  return (
    <details className="jp-Hp-folded" open={props.open}>
      <summary>{trans.__('More options')}</summary>
      <div className="jp-Hp-fields">
        <TextField
          label={trans.__('Values to send')}
          value={choice.push}
          placeholder={trans.__('a, b')}
          help={trans.__('Variables of this notebook that the job gets.')}
          onChange={text => change({ push: text.replace(/\s/g, '') })}
        />
        <TextField
          label={trans.__('Values to bring back')}
          value={choice.pull}
          placeholder={trans.__('x')}
          help={trans.__('Variables of the job that this notebook gets.')}
          onChange={text => change({ pull: text.replace(/\s/g, '') })}
        />
        <NumberField
          label={trans.__('Spares')}
          value={choice.spares}
          min={0}
          max={100_000}
          placeholder="1"
          help={trans.__('Warm nodes that replace a lost one.')}
          problem={problemText(wrong.spares, trans)}
          onChange={spares => change({ spares })}
        />
        <TextField
          label={trans.__('Queue')}
          value={choice.queue}
          help={trans.__('Whose guaranteed nodes the job may use.')}
          onChange={queue => change({ queue })}
        />
        <TextField
          label={trans.__('Schedule')}
          value={choice.schedule}
          placeholder={WEEKDAYS}
          help={trans.__(
            'Empty: now. Else minute, hour, day, month and day of week, or @daily; each run is of the cell as it is now.'
          )}
          onChange={schedule =>
            change({ schedule, zone: schedule ? choice.zone || HERE : '' })
          }
        />
        {choice.schedule && (
          <TextField
            label={trans.__('Time zone')}
            value={choice.zone}
            placeholder={HERE}
            help={trans.__(
              'Of the schedule. The clock in the panel lists all schedules.'
            )}
            onChange={zone => change({ zone: zone.trim() })}
          />
        )}
        <TickField
          label={trans.__('Run in the background')}
          value={choice.detach}
          help={trans.__('The cell returns at once; the kernel is free.')}
          onChange={detach => change({ detach })}
        />
        <TextField
          label={trans.__('Other options')}
          value={choice.other}
          placeholder={EXAMPLE}
          help={trans.__('As on the line; %1 lists them.', '%%hyperpod?')}
          onChange={other => change({ other })}
        />
      </div>
    </details>
  );
}
