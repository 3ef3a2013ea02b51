import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { traffic } from '../derive';
import {
  formatClock,
  formatCount,
  formatDuration,
  formatInteger
} from '../format';
import type { IJobSummary, IJobView, IReplica } from '../model/views';
import { said } from '../said/said';
import { useShared } from './context';
import { Stat } from './parts';

/** Replicas whose stages are shown, newest first. */
const SHOWN = 6;

/** A deployment's load in one line; `narrow` where words would not fit. */
export function loadText(
  job: IJobSummary,
  trans: TranslationBundle,
  narrow = false
): string {
  const told = traffic(job);
  if (told === null || told.ready === 0) {
    return said(job.reason, trans);
  }
  const words = [
    narrow
      ? `${told.ready}/${told.target}`
      : trans._n(
          '%2 of %1 replica',
          '%2 of %1 replicas',
          told.target,
          told.ready
        ),
    trans.__('%1 requests/s', formatCount(told.requestsPerS))
  ];
  if (told.p99S !== null) {
    words.push(trans.__('p99 %1', formatDuration(told.p99S)));
  }
  return words.join(' · ');
}

/** The main figures of a deployment. */
export function DeploymentStats({ job }: { job: IJobView }): JSX.Element {
  const { trans } = useShared();
  const told = traffic(job)!;
  const latency = (seconds: number | null) =>
    seconds === null ? '–' : formatDuration(seconds);
  return (
    <div className="jp-Hp-stats">
      <Stat
        name={trans.__('Replicas')}
        title={trans.__('Replicas that answer, of those wanted')}
      >
        {told.ready}
        <span className="jp-Hp-unit"> {trans.__('of %1', told.target)}</span>
      </Stat>
      <Stat
        name={trans.__('Requests')}
        title={trans.__('Answers per second, over the last ten seconds')}
      >
        {`${formatCount(told.requestsPerS)}/s`}
      </Stat>
      <Stat name={trans.__('Latency')} title={trans.__('Median')}>
        {latency(told.medianS)}
      </Stat>
      <Stat
        name={trans.__('99 %')}
        title={trans.__('Latency of the slowest hundredth')}
      >
        {latency(told.p99S)}
      </Stat>
      <Stat
        name={trans.__('Waiting')}
        title={trans.__('Requests that no replica has room for')}
      >
        {formatInteger(told.queued)}
      </Stat>
      <Stat name={trans.__('Answered')}>{formatInteger(told.answered)}</Stat>
      <Stat
        name={trans.__('Failed')}
        title={trans.__('Requests that no replica could answer')}
      >
        {formatInteger(told.failed)}
      </Stat>
      <Stat name={trans.__('Incidents')}>{job.incidents.length}</Stat>
    </div>
  );
}

/** How long each of the newest replicas took from the decision to start it to its first answer. */
export function Replicas({ job }: { job: IJobView }): JSX.Element {
  const { trans } = useShared();
  const newestFirst = [...(job.deployment?.replicas ?? [])].reverse();
  return (
    <section>
      <h3 className="jp-Hp-label">{trans.__('New replicas')}</h3>
      {newestFirst.length === 0 && (
        <p className="jp-Hp-quiet">{trans.__('None has started yet.')}</p>
      )}
      {newestFirst.slice(0, SHOWN).map(replica => (
        <Coming key={replica.replica} replica={replica} trans={trans} />
      ))}
    </section>
  );
}

function Coming(props: {
  replica: IReplica;
  trans: TranslationBundle;
}): JSX.Element {
  const { replica, trans } = props;
  const labels: Record<string, string> = {
    started: trans.__('started'),
    loading: trans.__('began to load'),
    loaded: trans.__('loaded'),
    ready: trans.__('ready'),
    answered: trans.__('first answer')
  };
  const { stages } = replica;
  const last = stages[stages.length - 1];
  return (
    <div className="jp-Hp-incident">
      <div className="jp-Hp-row">
        <span className="jp-Hp-strong">{replica.node}</span>
        <span className="jp-Hp-small">{formatClock(stages[0].time_s)}</span>
        <span className="jp-Hp-right jp-Hp-small">
          {trans.__(
            '%1 after %2',
            labels[last.stage] ?? last.stage,
            formatDuration(last.took_s)
          )}
        </span>
      </div>
      <div className="jp-Hp-stagebar" aria-hidden>
        {stages.map((stage, index) => {
          const seconds = stage.took_s - (stages[index - 1]?.took_s ?? 0);
          return (
            <span
              key={stage.stage}
              data-stage={stage.stage}
              style={{ flexGrow: Math.max(0, seconds) * 1e4 }}
              title={`${labels[stage.stage] ?? stage.stage} · +${formatDuration(Math.max(0, seconds))}`}
            />
          );
        })}
      </div>
    </div>
  );
}
