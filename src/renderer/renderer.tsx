import type { IRenderMime } from '@jupyterlab/rendermime-interfaces';
import type { Message } from '@lumino/messaging';
import * as React from 'react';

import { Part } from '../components/boundary';
import { IShared, useJob, useShared, useTopics } from '../components/context';
import { DeploymentStats } from '../components/deployment';
import { Incident } from '../components/incidents';
import { Failure, JobHeader, JobStats } from '../components/job';
import { Output } from '../components/output';
import { LossPlot } from '../components/plot';
import { UserError } from '../components/traceback';
import { TERMINAL_STATES } from '../model/events';
import { Root } from '../root';
import { leaveTwins, showLastTwin } from './twins';

export const MIME_TYPE = 'application/vnd.hyperpod.job.v1+json';
const PLOT_HEIGHT = 150;
/** How many incidents are shown; older ones are in the dashboard. */
const INCIDENTS = 4;

/** The live job under its cell. The notebook holds only the job's id and a snapshot. */
export class JobRenderer extends Root implements IRenderMime.IRenderer {
  constructor(shared: IShared) {
    super(shared);
    this.addClass('jp-Hp-renderer');
  }

  async renderModel(model: IRenderMime.IMimeModel): Promise<void> {
    const data = model.data[MIME_TYPE] as
      { job_id?: unknown; streams?: unknown } | undefined;
    const id = data?.job_id;
    this._streams = data?.streams === true;
    this._id = typeof id === 'string' ? id : null;
    leaveTwins(this.node); // the output may have shown another job
    this.node.dataset.job = this._id ?? '';
    const text = model.data['text/plain'];
    this._snapshot = Array.isArray(text) ? text.join('') : `${text ?? ''}`;
    this.update();
    await this.renderPromise;
    showLastTwin(this.node);
  }

  protected onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    showLastTwin(this.node);
  }

  protected onBeforeDetach(message: Message): void {
    leaveTwins(this.node);
    super.onBeforeDetach(message);
  }

  protected view(): JSX.Element | null {
    return this._id === null ? (
      <pre>{this._snapshot}</pre>
    ) : (
      <Job
        key={this._id}
        id={this._id}
        snapshot={this._snapshot}
        streams={this._streams}
      />
    );
  }

  private _id: string | null = null;
  private _snapshot = '';
  private _streams = false;
}

function Job(props: {
  id: string;
  snapshot: string;
  /** The kernel prints the ranks' output below the card. */
  streams: boolean;
}): JSX.Element {
  const { model, trans } = useShared();
  const job = useJob(props.id);
  useTopics('connection');
  const problem = model.problem(props.id);
  if (job === null) {
    const absent = model.connection === 'absent';
    return (
      <div className="jp-Hp-fallback">
        <p>
          {problem ??
            (absent
              ? trans.__(
                  'This server does not have, or does not open, the jupyter_hyperpod server extension.'
                )
              : trans.__('Attaching to %1…', props.id))}
        </p>
        {(problem !== null || absent) && props.snapshot && (
          <>
            <p className="jp-Hp-quiet">
              {trans.__('The last state saved in the notebook:')}
            </p>
            <pre>{props.snapshot}</pre>
          </>
        )}
      </div>
    );
  }
  const ended = TERMINAL_STATES.has(job.state);
  return (
    <section
      className="jp-Hp-card"
      data-state={job.state}
      aria-label={
        job.deployment
          ? trans.__('Deployment %1', job.name)
          : trans.__('Training job %1', job.name)
      }
    >
      <Part name={trans.__('The head of the job')}>
        <JobHeader job={job} open />
      </Part>
      {model.connection === 'offline' && (
        <div className="jp-Hp-banner" role="status">
          {trans.__('The server does not answer. Trying again…')}
        </div>
      )}
      <Part name={trans.__('The error')}>
        <UserError job={job} folded={props.streams} />
        <Failure job={job} />
      </Part>
      <Part name={trans.__('The figures')}>
        {job.deployment && <DeploymentStats job={job} />}
        {job.step > 0 && <JobStats job={job} />}
      </Part>
      <Part name={trans.__('The loss curve')}>
        <LossPlot job={job} height={PLOT_HEIGHT} />
      </Part>
      <Part name={trans.__('The list of incidents')}>
        {job.incidents.length > 0 && (
          <div>
            {job.incidents
              .slice(-INCIDENTS)
              .reverse()
              .map(incident => (
                <Incident
                  key={incident.incident}
                  incident={incident}
                  ended={ended}
                />
              ))}
          </div>
        )}
      </Part>
      <Part name={trans.__('The output')}>
        <Output job={job} folded={props.streams} />
      </Part>
    </section>
  );
}
