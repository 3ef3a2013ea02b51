import type { TranslationBundle } from '@jupyterlab/translation';
import { notebookIcon } from '@jupyterlab/ui-components';
import * as React from 'react';

import { Part } from '../components/boundary';
import { useShared, useTopics } from '../components/context';
import { loadText } from '../components/deployment';
import { JobActions, JobLink, NotebookButton } from '../components/job';
import {
  Button,
  ProgressBar,
  Section,
  Sparkline,
  StateChip,
  placeText
} from '../components/parts';
import { failureOf, progress, traffic, trendOf } from '../derive';
import { formatDuration, formatLoss, shortId } from '../format';
import { runsIcon, schedulesIcon } from '../icons';
import { TERMINAL_STATES } from '../model/events';
import type { IJobSummary, IJobView } from '../model/views';
import { tellRefusal } from '../refusals';
import { said } from '../said/said';

/** How many more ended jobs a click shows. */
const PAGE = 50;
/** The line that makes a cell a job. */
const BEGIN = '%%hyperpod --nodes 4';

/** Jobs, newest first: all active ones, and the last ended ones. */
export function JobsSection(): JSX.Element {
  const { model, actions, trans } = useShared();
  useTopics('jobs', 'connection');
  const [more, setMore] = React.useState(0);
  const { jobs, olderJobs } = model;
  const ended = jobs.filter(job => TERMINAL_STATES.has(job.state));
  const kept = new Set(ended.slice(0, actions.preferences.finishedJobs + more));
  const hidden = ended.length - kept.size + olderJobs;
  const shown = jobs.filter(
    job => !TERMINAL_STATES.has(job.state) || kept.has(job)
  );
  const names = new Map<string, number>();
  shown.forEach(({ name }) => names.set(name, (names.get(name) ?? 0) + 1));
  const showMore = async () => {
    setMore(more + PAGE);
    if (ended.length - kept.size < PAGE && olderJobs > 0) {
      await model.loadOlder().catch(error => tellRefusal(error, trans));
    }
  };
  return (
    <Section
      title={trans.__('Jobs')}
      count={jobs.length + olderJobs || undefined}
      actions={
        <>
          <Button
            icon={schedulesIcon}
            title={trans.__('Schedules: what runs at times of the clock')}
            onClick={() => actions.openSchedules()}
          />
          <Button
            icon={runsIcon}
            title={trans.__('All runs in one table')}
            onClick={() => actions.openRuns()}
          />
        </>
      }
    >
      {shown.length === 0 && <Empty />}
      {shown.length > 0 && (
        <ul className="jp-Hp-jobs">
          {shown.map(job => (
            <Part key={job.id} name={job.id}>
              <JobRow summary={job} named={names.get(job.name) === 1} />
            </Part>
          ))}
        </ul>
      )}
      {hidden > 0 && (
        <div className="jp-Hp-row jp-Hp-quiet jp-Hp-more">
          {trans._n(
            '%1 older job is not shown.',
            '%1 older jobs are not shown.',
            hidden
          )}
          <Button onClick={() => void showMore()}>
            {trans.__('Show more')}
          </Button>
        </div>
      )}
    </Section>
  );
}

/** The hint without jobs: the two ways to start one, and a button for the example notebook. */
function Empty(): JSX.Element {
  const { model, actions, trans } = useShared();
  if (!model.jobsKnown) {
    return <p className="jp-Hp-quiet">{trans.__('Asking the server…')}</p>;
  }
  return (
    <div className="jp-Hp-start">
      <p className="jp-Hp-quiet">
        {trans.__(
          'No jobs yet. The button "Run on cluster" of a notebook makes a job of a cell. So does a line at the top of the cell:'
        )}
        <code>{BEGIN}</code>
      </p>
      <Button icon={notebookIcon} onClick={() => actions.openExample()}>
        {trans.__('Open the example')}
      </Button>
    </div>
  );
}

function JobRow(props: {
  summary: IJobSummary;
  /** No other row has its name. */
  named: boolean;
}): JSX.Element {
  const { summary, named } = props;
  const { model, trans } = useShared();
  useTopics(summary.id);
  const job: IJobSummary & Partial<IJobView> =
    model.summary(summary.id) ?? summary;
  const trend = trendOf(job);
  const active = !TERMINAL_STATES.has(job.state);
  const served = traffic(job);
  const value = served ? served.loaded : progress(job);
  const failure = said(failureOf(job) ?? '', trans);
  const place = placeOf(job, failure, trans);
  return (
    <li className="jp-Hp-job" data-state={job.state}>
      <div className="jp-Hp-row">
        <JobLink job={job} />
        <StateChip
          state={job.state}
          trans={trans}
          title={failure ? undefined : said(job.reason, trans)}
        />
        {active ? (
          <span className="jp-Hp-actions">
            <NotebookButton job={job} />
            <JobActions job={job} />
          </span>
        ) : (
          <span className="jp-Hp-right">
            <NotebookButton job={job} />
            <Ended job={job} />
          </span>
        )}
      </div>
      {active && (served === null || value !== null) && (
        <ProgressBar
          value={value}
          state={job.state}
          label={trans.__('Progress of %1', job.name)}
        />
      )}
      <div className="jp-Hp-row jp-Hp-small">
        {!named && (
          <span className="jp-Hp-id" title={trans.__('Job id')}>
            {shortId(job.id)}
          </span>
        )}
        {place && (
          <span
            className="jp-Hp-clip"
            title={served && active ? loadText(job, trans) : undefined}
          >
            {place}
          </span>
        )}
        {job.loss !== null && (
          <span title={trans.__('Loss')}>{formatLoss(job.loss, job.step)}</span>
        )}
        {active && !served && job.world_size > 0 && (
          <span title={trans.__('Members that train, of those wanted')}>
            {`${job.world_size}/${job.target || job.nodes_wanted}`}
          </span>
        )}
        {trend.length > 1 && (
          <span className="jp-Hp-right">
            <Sparkline history={trend} step={job.step} />
          </span>
        )}
      </div>
      {job.waits && job.state === 'running' && (
        <div className="jp-Hp-row jp-Hp-small">{said(job.reason, trans)}</div>
      )}
      {failure && (
        <div className="jp-Hp-joberror" title={failure}>
          {failure}
        </div>
      )}
    </li>
  );
}

/** Where a job is: its load or its step, else why it is in its state; empty where it failed before any step. */
function placeOf(
  job: IJobSummary,
  failure: string,
  trans: TranslationBundle
): string {
  if (traffic(job) && !TERMINAL_STATES.has(job.state)) {
    return loadText(job, trans, true);
  }
  if (job.step > 0 || job.session) {
    return placeText(job, trans);
  }
  return failure ? '' : said(job.reason, trans);
}

/** How long an ended job ran; the tooltip has the time. */
function Ended({ job }: { job: IJobSummary }): JSX.Element | null {
  if (job.ended_s === null) {
    return null;
  }
  return (
    <span
      className="jp-Hp-right jp-Hp-small"
      title={new Date(job.ended_s * 1000).toLocaleString()}
    >
      {job.started_s !== null && formatDuration(job.ended_s - job.started_s)}
    </span>
  );
}
