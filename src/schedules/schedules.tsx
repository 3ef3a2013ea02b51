import { Notification } from '@jupyterlab/apputils';
import { PathExt } from '@jupyterlab/coreutils';
import { runIcon } from '@jupyterlab/ui-components';
import * as React from 'react';

import type { ISchedule, IScheduledRun, ScheduleAction } from '../api';
import { Part } from '../components/boundary';
import {
  useChanges,
  useNow,
  useShared,
  useSummary
} from '../components/context';
import { Button, StateChip } from '../components/parts';
import { Sheet } from '../components/sheet';
import { isSure } from '../components/sure';
import { tellRefusal } from '../refusals';
import { said } from '../said/said';
import { Connection } from '../sidebar/sidebar';
import type { ScheduleList } from './list';
import { rules, timeIn, until } from './words';

/** How many runs of a schedule are shown before a click. */
const FIRST = 3;
const EXAMPLE = "jupyter hyperpod submit FILE --schedule '30 6 * * mon-fri'";

/** All schedules, each with its times and its last runs. */
export function Schedules({ list }: { list: ScheduleList }): JSX.Element {
  const { model, actions, trans } = useShared();
  useChanges(list);
  const { found, problem } = list;
  const stopped = ['stopping', 'stopped', 'lost'].includes(
    model.cluster?.state ?? ''
  );
  return (
    <>
      <Connection />
      {problem && (
        <p className="jp-Hp-banner" role="status">
          {said(problem, trans)}
          <Button onClick={() => list.refresh()}>
            {trans.__('Try again')}
          </Button>
        </p>
      )}
      {found?.notes.map((note, at) => (
        <div key={note} className="jp-Hp-banner" role="status">
          {said(note, trans)}
          {stopped && at === found.notes.length - 1 && (
            <Button
              icon={runIcon}
              onClick={async () => {
                await actions.startCluster();
                await list.refresh();
              }}
            >
              {trans.__('Start the cluster')}
            </Button>
          )}
        </div>
      ))}
      {found === null && !problem && (
        <p className="jp-Hp-quiet" role="status">
          {trans.__('Asking the server…')}
        </p>
      )}
      {found?.schedules.length === 0 && <Empty />}
      {found?.schedules.map(schedule => (
        <Part key={schedule.name} name={schedule.name}>
          <Schedule schedule={schedule} list={list} />
        </Part>
      ))}
    </>
  );
}

function Empty(): JSX.Element {
  const { trans } = useShared();
  return (
    <div className="jp-Hp-start">
      <p className="jp-Hp-quiet">
        {trans.__(
          'No schedules yet. The form "Run on cluster" has the field "Schedule" under "More options": the cell then runs at times of the clock, each time as a job. So does a file or a notebook:'
        )}
        <code>{EXAMPLE}</code>
      </p>
    </div>
  );
}

function Schedule(props: {
  schedule: ISchedule;
  list: ScheduleList;
}): JSX.Element {
  const { schedule, list } = props;
  const { trans } = useShared();
  const act = useAction(schedule, list);
  return (
    <section className="jp-Hp-schedule" aria-label={schedule.name}>
      <div className="jp-Hp-row">
        <h3 className="jp-Hp-name">{schedule.name}</h3>
        <StateChip
          state={schedule.paused ? 'stopped' : 'ready'}
          label={schedule.paused ? trans.__('Paused') : trans.__('Active')}
          trans={trans}
        />
        <span className="jp-Hp-actions">
          <Button icon={runIcon} onClick={() => act('run')}>
            {trans.__('Run now')}
          </Button>
          <Button onClick={() => act(schedule.paused ? 'resume' : 'pause')}>
            {schedule.paused ? trans.__('Resume') : trans.__('Pause')}
          </Button>
          <Button danger onClick={() => act('delete')}>
            {trans.__('Delete…')}
          </Button>
        </span>
      </div>
      <Facts schedule={schedule} />
      <Runs schedule={schedule} />
    </section>
  );
}

/** Asks for something, shows what comes of it, or the server's refusal. */
function useAction(
  { name }: ISchedule,
  list: ScheduleList
): (action: ScheduleAction) => Promise<void> {
  const { model, actions, trans } = useShared();
  return async action => {
    if (
      action === 'delete' &&
      !(await isSure(
        trans.__('Delete the schedule %1?', name),
        trans.__('Nothing runs at its times any more. Its jobs stay.'),
        trans.__('Delete')
      ))
    ) {
      return;
    }
    try {
      const job = await model.api.askSchedule(name, action);
      if (job) {
        Notification.success(trans.__('%1 is submitted.', job), {
          autoClose: 5000,
          actions: [
            { label: trans.__('Open'), callback: () => actions.openJob(job) }
          ]
        });
      }
    } catch (error) {
      tellRefusal(error, trans);
    } finally {
      await list.refresh();
    }
  };
}

/** When a schedule runs, and what. */
function Facts({ schedule }: { schedule: ISchedule }): JSX.Element {
  const { zone, next_s } = schedule;
  const { trans } = useShared();
  const now_s = useNow(next_s !== null);
  return (
    <dl className="jp-Hp-facts">
      <dt>{trans.__('When')}</dt>
      <dd>
        {schedule.words} <code>{schedule.cron}</code>{' '}
        <span className="jp-Hp-small">{zone}</span>
      </dd>
      <dt>{trans.__('Next')}</dt>
      <dd>
        {next_s === null ? (
          schedule.paused ? (
            trans.__('Not until it is resumed')
          ) : (
            trans.__('No further time')
          )
        ) : (
          <>
            <span title={new Date(next_s * 1000).toLocaleString()}>
              {timeIn(zone, next_s)}
            </span>{' '}
            <span className="jp-Hp-small">{until(next_s, now_s, trans)}</span>
          </>
        )}
      </dd>
      <dt>{trans.__('What')}</dt>
      <dd>
        {trans.__(
          '%1 as it was on %2, by %3',
          PathExt.basename(schedule.filename),
          timeIn(zone, schedule.created_s),
          schedule.by
        )}{' '}
        <span className="jp-Hp-small">{schedule.backend}</span>
      </dd>
      <dt>{trans.__('Rules')}</dt>
      <dd>{rules(schedule, trans)}</dd>
    </dl>
  );
}

/** The last runs of a schedule, the newest first. */
function Runs({ schedule }: { schedule: ISchedule }): JSX.Element {
  const { trans } = useShared();
  const [all, setAll] = React.useState(false);
  const runs = [...schedule.runs].reverse();
  const hidden = all ? 0 : Math.max(0, runs.length - FIRST);
  if (runs.length === 0) {
    return <p className="jp-Hp-quiet">{trans.__('It has not run yet.')}</p>;
  }
  return (
    <>
      <Sheet label={trans.__('Last runs of %1', schedule.name)}>
        <thead>
          <tr>
            <th scope="col">{trans.__('Time')}</th>
            <th scope="col">{trans.__('Job')}</th>
            <th scope="col">{trans.__('State')}</th>
            <th scope="col">{trans.__('Why')}</th>
          </tr>
        </thead>
        <tbody>
          {runs.slice(0, runs.length - hidden).map(run => (
            <Run
              key={`${run.due_s} ${run.job}`}
              run={run}
              zone={schedule.zone}
            />
          ))}
        </tbody>
      </Sheet>
      {hidden > 0 && (
        <div>
          <Button onClick={() => setAll(true)}>
            {trans._n('Show %1 more run', 'Show %1 more runs', hidden)}
          </Button>
        </div>
      )}
    </>
  );
}

function Run(props: { run: IScheduledRun; zone: string }): JSX.Element {
  const { run, zone } = props;
  const { actions, trans } = useShared();
  const summary = useSummary(run.job);
  const state = summary?.state ?? run.state;
  return (
    <tr>
      <td className="jp-Hp-time">{timeIn(zone, run.due_s)}</td>
      <td>
        {run.job && state ? (
          <button
            type="button"
            className="jp-Hp-link"
            onClick={() => actions.openJob(run.job)}
          >
            {run.job}
          </button>
        ) : (
          <span className="jp-Hp-small">{run.job || trans.__('no run')}</span>
        )}
      </td>
      <td>
        {state ? (
          <StateChip state={state} trans={trans} />
        ) : (
          <span className="jp-Hp-small">
            {run.job ? trans.__('deleted') : '–'}
          </span>
        )}
      </td>
      <td>{said(run.said, trans)}</td>
    </tr>
  );
}
