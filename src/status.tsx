import * as React from 'react';

import { useShared, useTopics } from './components/context';
import { progress } from './derive';
import { hyperpodIcon } from './icons';
import type { IJobSummary } from './model/views';
import { Root } from './root';

/** The newest active job, or the number of active jobs, in the status bar. */
export class StatusWidget extends Root {
  constructor(
    shared: Root['shared'],
    private readonly _onClick: () => void
  ) {
    super(shared);
    this.addClass('jp-Hp-status');
  }

  protected view(): JSX.Element {
    return <Status onClick={this._onClick} />;
  }
}

function Status({ onClick }: { onClick: () => void }): JSX.Element {
  const { model, trans } = useShared();
  useTopics('cluster', 'jobs', 'connection');
  const active = model.activeJobs;
  const nodes = model.cluster?.nodes ?? [];
  const busy = nodes.filter(node => node.state === 'busy').length;
  return (
    <button
      type="button"
      onClick={onClick}
      title={trans.__('Show the cluster and its jobs')}
    >
      <hyperpodIcon.react tag="span" elementPosition="center" height="14px" />
      {active.length > 0 ? (
        <Active jobs={active} />
      ) : (
        trans._n(
          '%2 of %1 node busy',
          '%2 of %1 nodes busy',
          nodes.length,
          busy
        )
      )}
    </button>
  );
}

function Active({ jobs }: { jobs: IJobSummary[] }): JSX.Element {
  const { trans } = useShared();
  const newest = jobs[0];
  const value = progress(newest);
  if (jobs.length > 1) {
    return <>{trans._n('%1 job', '%1 jobs', jobs.length)}</>;
  }
  return (
    <>
      <span className="jp-Hp-dot" data-state={newest.state} aria-hidden />
      <bdi>
        {value === null
          ? newest.name
          : `${newest.name} ${Math.floor(value * 100)} %`}
      </bdi>
    </>
  );
}
