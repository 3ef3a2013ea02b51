import * as React from 'react';

import {
  IBackend,
  IPromotion,
  IPromotionChange,
  IPromotionChoice,
  messageOf
} from '../api';
import { useShared } from '../components/context';
import { Sheet } from '../components/sheet';
import { problems } from '../run/choice';
import { TextField, TickField } from '../run/fields';
import { IChoice, NOTHING } from '../run/line';
import { Where } from '../run/where';
import { useChoice } from '../run/useChoice';
import { problemText } from '../run/words';
import { said } from '../said/said';
import type { IPromoted } from './dialog';

/** A choice that changes is sent after it has rested for this time. */
const REST_MS = 250;

export interface IPromotionAnswer {
  choice: IPromotionChoice;
  accept: boolean;
}

export interface IPromotionQuestion {
  job: IPromoted;
  /** All but that where it ran. */
  backends: readonly IBackend[];
  first: IPromotion;
}

/** Where the job is to run, and what differs there. */
export function PromotionForm(props: {
  question: IPromotionQuestion;
  onChange: (answer: IPromotionAnswer) => void;
}): JSX.Element {
  const { job, backends, first } = props.question;
  const { trans } = useShared();
  const [choice, setFields] = useChoice({
    ...NOTHING,
    backend: first.backend,
    nodes: first.nodes,
    elastic: first.elastic,
    name: first.name,
    queue: first.queue
  });
  const [accept, setAccept] = React.useState(false);
  const wanted = asked(choice);
  const { plan, problem, waits } = usePlan(job.id, first, wanted);
  const { onChange } = props;
  React.useEffect(() => {
    onChange({ choice: wanted, accept });
  });
  const backend = backends.find(one => one.name === choice.backend);
  const refused = plan !== null && plan.asks > 0 && !accept;
  const change = (fields: Partial<IChoice>) => {
    setFields(fields);
    setAccept(false);
  };
  return (
    <>
      <p className="jp-Hp-quiet">
        {trans.__(
          'The same code, parameters, environment and mounts are submitted to another cluster. %1 itself is left as it is.',
          job.id
        )}
      </p>
      <div className="jp-Hp-fields">
        <Where
          choice={choice}
          change={change}
          counted
          backend={choice.backend}
          local={backend?.owns_nodes ?? false}
          backends={backends}
          problem=""
        />
        <TextField
          label={trans.__('Name')}
          value={choice.name}
          problem={problemText(problems(choice).name, trans)}
          onChange={name => change({ name })}
        />
        <TextField
          label={trans.__('Queue')}
          value={choice.queue}
          onChange={queue => change({ queue })}
        />
      </div>
      <section className="jp-Hp-changes" aria-busy={waits}>
        <h3 className="jp-Hp-label">{trans.__('What differs')}</h3>
        {problem && (
          <p className="jp-Hp-wrong jp-mod-error" role="alert">
            {said(problem, trans)}
          </p>
        )}
        {plan && (
          <>
            <Changes changes={plan.changes} />
            <p className="jp-Hp-quiet" role="status">
              {plan.sentence}.
            </p>
          </>
        )}
        {plan !== null && plan.asks > 0 && (
          <TickField
            label={trans._n(
              'Submit it although %1 thing differs that nobody chose',
              'Submit it although %1 things differ that nobody chose',
              plan.asks
            )}
            value={accept}
            onChange={setAccept}
          />
        )}
        {/* The dialog's button waits for the answer, and for the tick. */}
        {(refused || waits) && <span className="jp-mod-error" hidden />}
      </section>
    </>
  );
}

/** What is chosen, as it is asked for. */
function asked(choice: IChoice): IPromotionChoice {
  return {
    backend: choice.backend,
    ...(choice.nodes === null ? {} : { nodes: choice.nodes }),
    elastic: choice.elastic,
    ...(choice.name ? { name: choice.name } : {}),
    queue: choice.queue,
    ...(choice.backend === 'slurm'
      ? {
          slurm: Object.fromEntries(
            Object.entries(choice.slurm).filter(([, value]) => value)
          )
        }
      : {})
  };
}

/** The server's answer to the newest choice; an older one is not shown. */
function usePlan(id: string, first: IPromotion, choice: IPromotionChoice) {
  const { model } = useShared();
  const [plan, setPlan] = React.useState<IPromotion | null>(first);
  const [problem, setProblem] = React.useState('');
  const [waits, setWaits] = React.useState(false);
  const told = JSON.stringify(choice);
  React.useEffect(() => {
    let isNew = true;
    setWaits(true);
    const timer = setTimeout(async () => {
      try {
        const found = await model.api.planPromotion(id, JSON.parse(told));
        if (isNew) {
          setPlan(found);
          setProblem('');
        }
      } catch (error) {
        if (isNew) {
          setPlan(null);
          setProblem(messageOf(error));
        }
      } finally {
        if (isNew) {
          setWaits(false);
        }
      }
    }, REST_MS);
    return () => {
      isNew = false;
      clearTimeout(timer);
    };
  }, [model, id, told]);
  return { plan, problem, waits };
}

/** Then and now, what nobody chose first. */
function Changes(props: {
  changes: readonly IPromotionChange[];
}): JSX.Element | null {
  const { trans } = useShared();
  const parts: Record<string, string> = {
    chosen: trans.__('chosen'),
    environment: trans.__('environment'),
    mounts: trans.__('mounts'),
    code: trans.__('code'),
    'not compared': trans.__('not compared')
  };
  const changes = [...props.changes].sort(
    (a, b) => Number(b.asks) - Number(a.asks)
  );
  if (changes.length === 0) {
    return null;
  }
  return (
    <Sheet label={trans.__('What differs')}>
      <thead>
        <tr>
          <th scope="col">{trans.__('What')}</th>
          <th scope="col">{trans.__('Then')}</th>
          <th scope="col">{trans.__('Now')}</th>
          <th scope="col">{trans.__('What that may change')}</th>
        </tr>
      </thead>
      <tbody>
        {changes.map(change => (
          <tr
            key={`${change.part} ${change.name}`}
            data-asks={change.asks || undefined}
          >
            <th scope="row">
              {change.name}{' '}
              <span className="jp-Hp-small">
                {parts[change.part] ?? change.part}
              </span>
            </th>
            <td>{change.then}</td>
            <td>{change.now}</td>
            <td>{change.change}</td>
          </tr>
        ))}
      </tbody>
    </Sheet>
  );
}
