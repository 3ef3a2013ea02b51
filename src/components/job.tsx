import { launchIcon, notebookIcon, stopIcon } from '@jupyterlab/ui-components';
import * as React from 'react';

import {
  elapsed,
  failureOf,
  hasNotebook,
  loading,
  progress,
  remaining,
  traffic
} from '../derive';
import {
  formatBytes,
  formatClockwork,
  formatCount,
  formatDuration,
  formatInteger,
  formatLoss
} from '../format';
import { promoteIcon, scaleIcon } from '../icons';
import { TERMINAL_STATES } from '../model/events';
import type { IJobSummary, IJobView } from '../model/views';
import { said } from '../said/said';
import { useNow, useShared } from './context';
import { loadText } from './deployment';
import { Button, ProgressBar, Stat, StateChip, stepOf } from './parts';

/** The buttons for a job in its present state. */
export function JobActions(props: {
  job: IJobSummary;
  open?: boolean;
}): JSX.Element {
  const { job } = props;
  const { actions, trans } = useShared();
  const active = !TERMINAL_STATES.has(job.state);
  return (
    <>
      {active && job.maximum > job.minimum && (
        <Button
          icon={scaleIcon}
          title={trans.__('Scale %1…', job.name)}
          onClick={() => actions.scaleJob(job.id)}
        />
      )}
      {active && (
        <Button
          icon={stopIcon}
          title={trans.__('Stop %1…', job.name)}
          onClick={() => actions.stopJob(job.id)}
        />
      )}
      {props.open && (
        <Button
          icon={launchIcon}
          title={trans.__('Open the dashboard of %1', job.name)}
          onClick={() => actions.openJob(job.id)}
        />
      )}
    </>
  );
}

/** The button for the notebook of a job with its outputs, where a notebook was the job. */
export function NotebookButton(props: {
  job: IJobSummary;
}): JSX.Element | null {
  const { job } = props;
  const { actions, trans } = useShared();
  return hasNotebook(job) ? (
    <Button
      icon={notebookIcon}
      title={trans.__('Open the executed notebook of %1', job.name)}
      onClick={() => actions.openExecuted(job.id)}
    />
  ) : null;
}

/** The head of a job: name, state, buttons and progress. */
export function JobHeader(props: {
  job: IJobView;
  open?: boolean;
}): JSX.Element {
  const { job } = props;
  const { actions, trans } = useShared();
  return (
    <div className="jp-Hp-jobhead">
      <div className="jp-Hp-row">
        <StateChip
          state={job.state}
          trans={trans}
          title={failureOf(job) ? undefined : said(job.reason, trans)}
        />
        <span
          className="jp-Hp-name"
          role="heading"
          aria-level={props.open ? 3 : 2}
        >
          {job.name || job.id}
        </span>
        <span className="jp-Hp-id" title={trans.__('Job id')}>
          {job.id}
        </span>
        {!job.deleted && (
          <span className="jp-Hp-actions">
            <NotebookButton job={job} />
            {!job.deployment && !props.open && (
              <Button
                icon={promoteIcon}
                title={trans.__('Promote %1 to another cluster…', job.name)}
                onClick={() => actions.promote(job.id, job.name, job.backend)}
              />
            )}
            <JobActions job={job} open={props.open} />
          </span>
        )}
      </div>
      {job.deleted && (
        <p className="jp-Hp-deleted" role="status">
          {trans.__('This job was deleted.')}
        </p>
      )}
      {job.deployment ? (
        <DeploymentProgress job={job} />
      ) : (
        <JobProgress job={job} />
      )}
    </div>
  );
}

/** Why a job failed, where the user's program is not the cause. */
export function Failure({ job }: { job: IJobSummary }): JSX.Element | null {
  const { trans } = useShared();
  const failure = job.error === null ? failureOf(job) : null;
  return failure === null ? null : (
    <div className="jp-Hp-error" role="alert">
      {said(failure, trans)}
    </div>
  );
}

/** The state of a deployment: its load, its address, and its progress while it loads. */
function DeploymentProgress({ job }: { job: IJobView }): JSX.Element {
  const { trans } = useShared();
  const active = !TERMINAL_STATES.has(job.state);
  const now_s = useNow(active && job.started_s !== null);
  const ran = elapsed(job, now_s);
  const loaded = traffic(job)?.loaded ?? null;
  const { url, host } = job.deployment!;
  const address = url && host ? trans.__('%1 on %2', url, host) : url;
  const port = url.split(':').pop();
  const words = [address, ran === null ? '' : formatClockwork(ran)];
  return (
    <div className="jp-Hp-jobprogress">
      {loaded !== null && (
        <ProgressBar
          value={loaded}
          state={job.state}
          label={trans.__('Weights loaded by %1', job.name)}
        />
      )}
      <div className="jp-Hp-row jp-Hp-small">
        <span className="jp-Hp-clip">
          {active
            ? loadText(job, trans)
            : failureOf(job)
              ? null
              : said(job.reason, trans)}
        </span>
        <span
          className="jp-Hp-right"
          title={
            url && host
              ? `ssh -o ExitOnForwardFailure=yes -N -L ${port}:127.0.0.1:${port} ${host}`
              : undefined
          }
        >
          {words.filter(Boolean).join(' · ')}
        </span>
      </div>
    </div>
  );
}

/** The progress bar and its text: loading or steps, percentage, time run, time left. */
export function JobProgress({ job }: { job: IJobView }): JSX.Element {
  const { trans } = useShared();
  const active = !TERMINAL_STATES.has(job.state);
  const now_s = useNow(active && job.started_s !== null);
  const load = loading(job);
  const value = load ? load.fraction : progress(job);
  const ran = elapsed(job, now_s);
  const left = load ? load.remaining_s : remaining(job);
  const words = [
    value === null ? null : `${Math.floor(value * 100)} %`,
    ran === null ? null : formatClockwork(ran),
    left === null || value === 1
      ? null
      : trans.__('%1 left', formatClockwork(left))
  ].filter(word => word !== null);
  return (
    <div className="jp-Hp-jobprogress">
      {(active || !!value) && (
        <ProgressBar
          value={value}
          state={job.state}
          label={trans.__('Progress of %1', job.name)}
        />
      )}
      <div className="jp-Hp-row jp-Hp-small">
        <span>
          {load
            ? trans.__('loading model, %1/s', formatBytes(load.bytes_per_s))
            : job.step || job.session
              ? stepOf(job, trans)
              : failureOf(job)
                ? null
                : said(job.reason, trans)}
        </span>
        <span className="jp-Hp-right">{words.join(' · ')}</span>
      </div>
      {job.waits && job.state === 'running' && (
        <div className="jp-Hp-row jp-Hp-small">{said(job.reason, trans)}</div>
      )}
    </div>
  );
}

/** The main figures. */
export function JobStats({
  job,
  full
}: {
  job: IJobView;
  full?: boolean;
}): JSX.Element {
  const { trans } = useShared();
  const ended = TERMINAL_STATES.has(job.state);
  const { session } = job;
  return (
    <div className="jp-Hp-stats">
      <Stat name={trans.__('Loss')}>{formatLoss(job.loss, job.step)}</Stat>
      <Stat
        name={trans.__('Step time')}
        title={trans.__(
          'Wall time from one committed step to the next: the median of the last steps'
        )}
      >
        {job.step_time_s === null ? '–' : formatDuration(job.step_time_s)}
      </Stat>
      <Stat
        name={trans.__('Throughput')}
        title={trans.__(
          'Samples committed per second of wall time, over the last steps'
        )}
      >
        {job.samples_per_s === null ? (
          '–'
        ) : (
          <>
            {formatCount(job.samples_per_s)}
            <span className="jp-Hp-unit"> {trans.__('samples/s')}</span>
          </>
        )}
      </Stat>
      <Stat
        name={ended ? trans.__('Members at the end') : trans.__('Members')}
        title={
          ended
            ? trans.__('Members that trained last, of those wanted')
            : trans.__('Members that train, of those wanted')
        }
      >
        {job.world_size}
        <span className="jp-Hp-unit">
          {' '}
          {trans.__('of %1', job.target || job.nodes_wanted)}
        </span>
      </Stat>
      <Stat name={trans.__('Incidents')}>{job.incidents.length}</Stat>
      <Stat
        name={trans.__('Redone')}
        title={trans.__('Micro-batches computed again after a fault')}
      >
        {formatInteger(job.redone)}
      </Stat>
      {full && job.checkpoint && (
        <Stat
          name={trans.__('Checkpoint')}
          title={trans.__(
            'Training restarts from this checkpoint if everything is lost'
          )}
        >
          {trans.__('step %1', job.checkpoint.step)}
        </Stat>
      )}
      {full && session && (
        <>
          <Stat name={trans.__('Samples')}>{formatCount(job.samples)}</Stat>
          <Stat
            name={trans.__('Batch')}
            title={trans.__('Global batch, and its number of micro-batches')}
          >
            {session.global_batch}
            <span className="jp-Hp-unit">
              {` = ${session.micro_batches} × ${session.micro_batch}`}
            </span>
          </Stat>
          <Stat name={trans.__('Parameters')}>
            {formatCount(session.parameters)}
          </Stat>
          <Stat
            name={trans.__('State')}
            title={trans.__('Bytes a newcomer receives from its peers')}
          >
            {formatBytes(session.state_bytes)}
          </Stat>
        </>
      )}
    </div>
  );
}

/** The name of a job, which opens its dashboard. */
export function JobLink({ job }: { job: IJobSummary }): JSX.Element {
  const { actions } = useShared();
  return (
    <button
      type="button"
      className="jp-Hp-link jp-Hp-name"
      title={job.id}
      onClick={() => actions.openJob(job.id)}
    >
      {job.name || job.id}
    </button>
  );
}
