import { downloadIcon } from '@jupyterlab/ui-components';
import * as React from 'react';

import { painted, save } from '../compare/save';
import { useShared } from '../components/context';
import { Button, stateLabel, stepOf } from '../components/parts';
import { copyLink } from '../copyLink';
import { formatLoss } from '../format';
import type { IJobView } from '../model/views';
import { pageOf } from '../reveal';
import { HEIGHT, jobPicture, WIDTH } from './picture';

/** What can be given to others: the report as a file, and a picture. */
export function Share({ job }: { job: IJobView }): JSX.Element {
  const { actions, model, trans } = useShared();
  const report = async () => {
    const page = await actions.report(job.id);
    if (page) {
      save(new Blob([page], { type: 'text/html' }), `${job.id}.html`);
    }
  };
  const picture = async () => {
    const told = [stateLabel(job.state, trans)];
    if (!job.deployment) {
      told.push(stepOf(job, trans));
      told.push(trans.__('loss %1', formatLoss(job.loss, job.step)));
    }
    told.push(trans._n('%1 incident', '%1 incidents', job.incidents.length));
    const text = jobPicture(job, told.join(' · '), themeColour);
    save(await painted(text, WIDTH, HEIGHT), `${job.id}.png`);
  };
  const copy = async () => {
    const { baseUrl } = model.api.connection;
    await copyLink(pageOf({ job: job.id }, baseUrl), trans);
  };
  return (
    <span className="jp-Hp-right jp-Hp-row">
      <Button
        disabled={job.deleted}
        title={trans.__(
          'Copy the address of this job, for others whom this server lets in'
        )}
        onClick={copy}
      >
        {trans.__('Copy link')}
      </Button>
      <Button
        disabled={job.deleted}
        icon={downloadIcon}
        title={trans.__(
          'Save the report: one file that needs no server, to be mailed or kept'
        )}
        onClick={report}
      >
        {trans.__('Report')}
      </Button>
      <Button
        disabled={job.deleted}
        icon={downloadIcon}
        title={trans.__('Save a picture of the loss and the nodes (PNG)')}
        onClick={picture}
      >
        {trans.__('Picture')}
      </Button>
    </span>
  );
}

/** The value of one of Lab's theme variables. */
function themeColour(name: string): string {
  return getComputedStyle(document.body).getPropertyValue(name).trim();
}
