import * as React from 'react';

import { Part } from '../components/boundary';
import { useJob, useShared, useTopics } from '../components/context';
import { DeploymentStats, Replicas } from '../components/deployment';
import { FaultButtons } from '../components/faults';
import { Incident } from '../components/incidents';
import { Failure, JobHeader, JobStats } from '../components/job';
import { Output } from '../components/output';
import { LossPlot } from '../components/plot';
import { Rules } from '../components/rules';
import { UserError } from '../components/traceback';
import { formatClock } from '../format';
import { TERMINAL_STATES } from '../model/events';
import type { IJobView } from '../model/views';
import { said } from '../said/said';
import { Belongs } from '../sharing/words';
import { Connection } from '../sidebar/sidebar';
import { OutputTools } from './outputTools';
import { Nodes } from './resources';
import { Share } from './share';
import { Whole } from './whole';

const PLOT_HEIGHT = 240;

/** Everything about one job, in the main area. */
export function Dashboard({ id }: { id: string }): JSX.Element {
  const { model, trans } = useShared();
  const job = useJob(id);
  const problem = model.problem(id);
  if (job === null) {
    return (
      <>
        <Connection />
        <p className="jp-Hp-quiet">
          {problem ?? trans.__('Asking the server for %1…', id)}
        </p>
      </>
    );
  }
  return (
    <>
      <Connection />
      <Part name={trans.__('The head of the job')}>
        <JobHeader job={job} />
        <div className="jp-Hp-row">
          <div>
            <Phase job={job} />
            <Belongs />
          </div>
          <Share job={job} />
        </div>
      </Part>
      <Part name={trans.__('The figures')}>
        {job.deployment ? (
          <DeploymentStats job={job} />
        ) : (
          <JobStats job={job} full />
        )}
      </Part>
      <Part name={trans.__('The error')}>
        <UserError job={job} />
        <Failure job={job} />
      </Part>
      <Part name={trans.__('The loss curve')}>
        <LossPlot job={job} height={PLOT_HEIGHT} />
      </Part>
      <Nodes job={job} />
      <Whole job={job} />
      <div className="jp-Hp-columns">
        <Part name={trans.__('The list of incidents')}>
          <Incidents job={job} />
        </Part>
        <Part name={trans.__('The list of members')}>
          <Members job={job} />
        </Part>
        {job.deployment && (
          <Part name={trans.__('The list of replicas')}>
            <Replicas job={job} />
          </Part>
        )}
        <Part name={trans.__('The list of log rules')}>
          <Rules job={job} />
        </Part>
        <Part name={trans.__('The list of decisions')}>
          <Decisions job={job} />
        </Part>
      </div>
      <Part name={trans.__('The output')}>
        {(job.output.length > 0 || !job.deployment) && (
          <Output job={job} tall Tools={OutputTools} />
        )}
      </Part>
    </>
  );
}

/** What the members of a job that runs are at, in one quiet line. */
function Phase({ job }: { job: IJobView }): JSX.Element | null {
  const { trans } = useShared();
  return job.phase && !TERMINAL_STATES.has(job.state) ? (
    <p className="jp-Hp-quiet">{trans.__('Phase: %1', job.phase)}</p>
  ) : null;
}

function Incidents({ job }: { job: IJobView }): JSX.Element {
  const { trans } = useShared();
  const newestFirst = [...job.incidents].reverse();
  return (
    <section>
      <h3 className="jp-Hp-label">{trans.__('Incidents')}</h3>
      {newestFirst.length === 0 && (
        <p className="jp-Hp-quiet">{trans.__('Nothing has broken.')}</p>
      )}
      {newestFirst.map((incident, index) => (
        <Incident
          key={incident.incident}
          incident={incident}
          ended={TERMINAL_STATES.has(job.state)}
          expanded={index === 0}
        />
      ))}
    </section>
  );
}

function Members({ job }: { job: IJobView }): JSX.Element {
  const { actions, trans } = useShared();
  useTopics('connection');
  const active = !TERMINAL_STATES.has(job.state);
  const words = {
    kill: trans.__('Kill'),
    hang: trans.__('Hang'),
    other: trans.__('Break…')
  };
  return (
    <section>
      <h3 className="jp-Hp-label">
        {job.deployment ? trans.__('Replicas') : trans.__('Members')}
      </h3>
      {job.members.length === 0 && (
        <p className="jp-Hp-quiet">
          {job.deployment
            ? trans.__('None answers.')
            : trans.__('No member has joined yet.')}
        </p>
      )}
      <ul className="jp-Hp-members">
        {job.members.map((member, index) => {
          const rank = member.rank ?? index;
          return (
            <li key={member.member ?? index} className="jp-Hp-row">
              <span className="jp-Hp-rank" data-colour={rank % 8}>
                {rank}
              </span>
              <span>{member.node}</span>
              <span className="jp-Hp-small">
                {member.pid !== undefined && trans.__('pid %1', member.pid)}
              </span>
              {active && (
                <FaultButtons
                  job={job.id}
                  target={{ rank }}
                  name={trans.__('rank %1', rank)}
                  words={words}
                  only={job.deployment ? ['kill', 'hang'] : undefined}
                />
              )}
            </li>
          );
        })}
        {job.spares.map((spare, index) => (
          <li key={spare.member ?? index} className="jp-Hp-row">
            <span className="jp-Hp-rank">·</span>
            <span>{spare.node}</span>
            <span className="jp-Hp-small">{trans.__('spare')}</span>
          </li>
        ))}
        {active && actions.faultsAllowed && (
          <li className="jp-Hp-row">
            <span className="jp-Hp-rank">·</span>
            <span>
              {job.deployment ? trans.__('gateway') : trans.__('coordinator')}
            </span>
            <FaultButtons
              job={job.id}
              target={{ target: 'coordinator' }}
              name={
                job.deployment
                  ? trans.__('the gateway')
                  : trans.__('the coordinator')
              }
              words={words}
            />
          </li>
        )}
      </ul>
    </section>
  );
}

function Decisions({ job }: { job: IJobView }): JSX.Element {
  const { trans } = useShared();
  const told = [
    ...job.decisions.map(decision => ({
      time_s: decision.time_s,
      name: decision.policy,
      text: said(decision.reason, trans)
    })),
    ...job.warnings.map(warning => ({
      time_s: warning.time_s,
      name: trans.__('warning'),
      text: said(warning.text, trans)
    }))
  ].sort((a, b) => b.time_s - a.time_s);
  return (
    <section>
      <h3 className="jp-Hp-label">{trans.__('Decisions')}</h3>
      {told.length === 0 && (
        <p className="jp-Hp-quiet">{trans.__('None so far.')}</p>
      )}
      <ol
        className="jp-Hp-decisions"
        tabIndex={0}
        aria-label={trans.__('Decisions')}
      >
        {told.map((decision, index) => (
          <li key={told.length - index}>
            <span className="jp-Hp-small">
              {formatClock(decision.time_s)} · {decision.name}
            </span>
            <span>{decision.text}</span>
          </li>
        ))}
      </ol>
    </section>
  );
}
