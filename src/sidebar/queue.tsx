import * as React from 'react';

import { useShared } from '../components/context';
import { JobLink } from '../components/job';
import type { IClusterView, IJobSummary } from '../model/views';
import { said } from '../said/said';
import { IQuota, quotas, waitingJobs } from './filters';

/** The most waiting jobs shown; the list of jobs has all. */
const SHOWN = 20;

/** What each queue is guaranteed and holds, and what waits, in its order. One job that waits is in the list of jobs. */
export function Queue(props: { cluster: IClusterView }): JSX.Element | null {
  const { model, trans } = useShared();
  const found = quotas(props.cluster, model.activeJobs);
  const waiting = waitingJobs(model.activeJobs, found);
  if (found.length === 0 && waiting.length < 2) {
    return null;
  }
  return (
    <section className="jp-Hp-queue">
      {found.length > 0 && (
        <>
          <h3 className="jp-Hp-label">{trans.__('Queues')}</h3>
          <dl className="jp-Hp-facts">
            {found.map(quota => (
              <React.Fragment key={quota.queue}>
                <dt>{quota.queue}</dt>
                <dd>
                  <Held quota={quota} />
                </dd>
              </React.Fragment>
            ))}
          </dl>
        </>
      )}
      {waiting.length > 0 && (
        <>
          <h3 className="jp-Hp-label">
            {trans._n('%1 job waits', '%1 jobs wait', waiting.length)}
          </h3>
          <ol>
            {waiting.slice(0, SHOWN).map(job => (
              <Waiting key={job.id} job={job} />
            ))}
          </ol>
          {waiting.length > SHOWN && (
            <p className="jp-Hp-small">
              {trans.__('%1 more', waiting.length - SHOWN)}
            </p>
          )}
        </>
      )}
    </section>
  );
}

/** How many of its nodes a queue's jobs hold. */
function Held({ quota }: { quota: IQuota }): JSX.Element {
  const { trans } = useShared();
  const { guaranteed, held, borrowed, lent } = quota;
  return (
    <>
      {trans.__('%1 of %2 guaranteed', held - borrowed, guaranteed)}
      {borrowed > 0 && trans.__(', %1 borrowed', borrowed)}
      {lent > 0 && trans.__(', %1 lent', lent)}
    </>
  );
}

/** A job that waits, and why. */
function Waiting({ job }: { job: IJobSummary }): JSX.Element {
  const { trans } = useShared();
  return (
    <li data-waits={job.id}>
      <div className="jp-Hp-row">
        <JobLink job={job} />
        <span className="jp-Hp-right jp-Hp-small">
          {[
            job.queue,
            job.priority !== 0 && trans.__('priority %1', job.priority)
          ]
            .filter(Boolean)
            .join(' · ')}
        </span>
      </div>
      {job.reason && <p className="jp-Hp-small">{said(job.reason, trans)}</p>}
    </li>
  );
}
