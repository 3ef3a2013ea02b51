import * as React from 'react';

import type { IBackend } from '../api';
import { useShared, useTopics } from '../components/context';
import { said } from '../said/said';
import { bounds, capacity, needed, offered, outlook, problems } from './choice';
import { NumberField, SelectField, TextField, TickField } from './fields';
import type { Change, IChoice } from './line';
import { problemText, stateTally } from './words';

/** The cluster, what is free there, and how much of it the job gets. */
export function Where(props: {
  choice: IChoice;
  change: Change;
  /** It needs a number of nodes. */
  counted: boolean;
  backend: string;
  local: boolean;
  backends: readonly IBackend[];
  problem: string;
}): JSX.Element {
  const { choice, change, counted, backend, local, backends } = props;
  const { trans } = useShared();
  const found = backends.find(one => one.name === backend);
  const known = found ? backends : [...backends, unknown(backend)];
  const title = (one: IBackend) =>
    one.name === 'local' ? trans.__('This machine') : one.title;
  return (
    <>
      <SelectField
        label={trans.__('Cluster')}
        value={backend}
        options={known.map(one => ({
          value: one.name,
          label: one.missing
            ? trans.__('%1 (not available here)', title(one))
            : title(one),
          disabled: one.missing !== '' && one.name !== backend
        }))}
        help={
          <>
            {local ? (
              <Local choice={choice} />
            ) : (
              found && stateTally(found.states, trans)
            )}
            <Missing
              names={title}
              backends={known.filter(one => one.missing !== '')}
            />
          </>
        }
        problem={found?.missing || found?.problem || props.problem}
        onChange={name => change({ backend: name })}
      />
      <Nodes choice={choice} change={change} counted={counted} />
      {backend === 'slurm' && <Slurm choice={choice} change={change} />}
      <Elastic choice={choice} change={change} />
    </>
  );
}

/** Why other clusters cannot be chosen, in the words of the server; a list cannot say that of what is disabled in it. */
function Missing(props: {
  names: (one: IBackend) => string;
  backends: readonly IBackend[];
}): JSX.Element | null {
  const { names, backends } = props;
  const { trans } = useShared();
  return backends.length === 0 ? null : (
    <details>
      <summary>
        {trans.__('Not available here: %1', backends.map(names).join(', '))}
      </summary>
      {backends.map(one => (
        <div key={one.name}>{`${names(one)}: ${said(one.missing, trans)}`}</div>
      ))}
    </details>
  );
}

function unknown(name: string): IBackend {
  return {
    name,
    title: name,
    owns_nodes: false,
    missing: '',
    problem: '',
    states: {}
  };
}

/** What this machine has for the job. */
function Local({ choice }: { choice: IChoice }): JSX.Element {
  const { model, actions, trans } = useShared();
  useTopics('cluster', 'connection');
  const has = capacity(model.cluster);
  if (model.cluster === null) {
    return <>{trans.__('Asking the server…')}</>;
  }
  if (has === null) {
    const { nodes, spares } = actions.preferences;
    return (
      <>
        {trans.__(
          'No cluster is running. The job starts one here: %1 and %2, as processes of this machine.',
          trans._n('%1 node', '%1 nodes', needed(choice, nodes)),
          trans._n('%1 spare', '%1 spares', spares)
        )}
      </>
    );
  }
  const sentences = {
    now: '',
    fewer: trans.__('The job begins on fewer nodes and grows.'),
    waits: trans.__('The job waits until nodes are free.'),
    never: trans.__('The cluster is too small: the job waits for more nodes.')
  };
  const next = outlook(choice, has);
  return (
    <>
      <span className="jp-Hp-dot" data-state={FREE[next]} aria-hidden />{' '}
      {trans.__('%1 of %2 nodes are free now', has.free, has.total)}
      {has.spares > 0 &&
        trans._n(', %1 spare stands by', ', %1 spares stand by', has.spares)}
      {'. '}
      {sentences[next]}
    </>
  );
}

const FREE = {
  now: 'succeeded',
  fewer: 'recovering',
  waits: 'recovering',
  never: 'failed'
};

function Slurm(props: { choice: IChoice; change: Change }): JSX.Element {
  const { choice, change } = props;
  const { trans } = useShared();
  const field = (name: string) => ({
    value: choice.slurm[name] ?? '',
    onChange: (value: string) =>
      change({ slurm: { ...choice.slurm, [name]: value } })
  });
  return (
    <>
      <TextField
        label={trans.__('Partition')}
        help={trans.__('Empty: the default one of SLURM.')}
        {...field('partition')}
      />
      <TextField
        label={trans.__('Account')}
        help={trans.__('Who is charged, where SLURM asks for it.')}
        {...field('account')}
      />
      <TextField
        label={trans.__('Time limit')}
        placeholder="02:00:00"
        help={trans.__('As for sbatch. Empty: the default of the partition.')}
        {...field('time')}
      />
    </>
  );
}

function Nodes(props: {
  choice: IChoice;
  change: Change;
  counted: boolean;
}): JSX.Element {
  const { choice, change, counted } = props;
  const { trans } = useShared();
  const most = bounds(choice.elastic)?.[1] ?? 1;
  return (
    <NumberField
      label={trans.__('Nodes')}
      value={choice.nodes}
      min={1}
      max={100_000}
      placeholder={String(most)}
      help={trans.__('Every node runs the code, each as one rank.')}
      problem={problemText(problems(choice, counted).nodes, trans)}
      onChange={nodes => change({ nodes })}
    />
  );
}

function Elastic(props: { choice: IChoice; change: Change }): JSX.Element {
  const { choice, change } = props;
  const { trans } = useShared();
  const range = bounds(choice.elastic);
  const problem = problemText(problems(choice).elastic, trans);
  if (choice.elastic && !range) {
    return (
      <TextField
        label={trans.__('Elastic range')}
        value={choice.elastic}
        help={trans.__('As in 2:8, 2:8:2 (in steps) or 1,2,4,8.')}
        onChange={elastic => change({ elastic })}
      />
    );
  }
  const set = (least: number | null, most: number | null) =>
    change({ elastic: `${least ?? 0}:${most ?? 0}` });
  return (
    <div
      className="jp-Hp-elastic"
      role="group"
      aria-label={trans.__('Elastic range')}
    >
      <TickField
        label={trans.__('Elastic')}
        value={range !== null}
        help={trans.__(
          'The fewest and most nodes that the job may have. Without a range it may shrink to one node when nodes are lost or another job needs them. It grows again without a restart.'
        )}
        onChange={on =>
          change({ elastic: on ? offered(choice.nodes ?? 1) : '' })
        }
      />
      {range && (
        <>
          <NumberField
            label={trans.__('At least')}
            value={range[0]}
            min={1}
            max={100_000}
            onChange={least => set(least, range[1])}
          />
          <NumberField
            label={trans.__('At most')}
            value={range[1]}
            min={1}
            max={100_000}
            onChange={most => set(range[0], most)}
          />
        </>
      )}
      {problem && (
        <span className="jp-Hp-wrong jp-mod-error" role="alert">
          {problem}
        </span>
      )}
    </div>
  );
}
