import * as React from 'react';

import type { ISharing } from '../api';
import { useShared } from '../components/context';

/** The groups that are chosen; empty for none. */
export interface IGroups {
  read: string;
  operate: string;
}

/** Asks which groups of the system may see the jobs of the store, and which may operate them. */
export function SharingForm(props: {
  question: ISharing;
  onChange: (answer: IGroups) => void;
}): JSX.Element {
  const { question, onChange } = props;
  const { trans } = useShared();
  const [answer, setAnswer] = React.useState<IGroups>({
    read: question.read,
    operate: question.operate
  });
  const tell = React.useRef(onChange);
  tell.current = onChange;
  React.useEffect(() => {
    tell.current(answer);
  }, [answer]);
  const list = React.useId();
  const isPrivate = !answer.read.trim() && !answer.operate.trim();
  const fields = [
    {
      name: 'read' as const,
      label: trans.__('Group that reads'),
      none: trans.__('nobody'),
      help: trans.__('Its members see jobs, their code, output and events.')
    },
    {
      name: 'operate' as const,
      label: trans.__('Group that operates'),
      none: trans.__('only you'),
      help: trans.__('Its members also stop, scale and disturb jobs.')
    }
  ];
  return (
    <>
      <datalist id={list}>
        {question.groups.map(group => (
          <option key={group} value={group} />
        ))}
      </datalist>
      {fields.map(({ name, label, none, help }) => (
        <label key={name} className="jp-Hp-sharingfield">
          <span className="jp-Hp-strong">{label}</span>
          <input
            className="jp-Hp-select"
            list={list}
            value={answer[name]}
            placeholder={none}
            maxLength={100}
            onChange={event =>
              setAnswer({ ...answer, [name]: event.target.value })
            }
          />
          <span className="jp-Hp-quiet">{help}</span>
        </label>
      ))}
      <p className="jp-Hp-quiet" role="status">
        {isPrivate
          ? trans.__('The store is private: nobody else sees your jobs.')
          : trans.__(
              'This counts for all jobs of the store, also for those that come. Nobody else can submit or delete there.'
            )}
      </p>
    </>
  );
}
