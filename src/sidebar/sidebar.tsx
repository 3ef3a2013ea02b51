import { refreshIcon } from '@jupyterlab/ui-components';
import * as React from 'react';

import { Part } from '../components/boundary';
import { useShared, useTopics } from '../components/context';
import { Button } from '../components/parts';
import { said } from '../said/said';
import { ClusterSection } from './cluster';
import { IncidentsSection } from './incidents';
import { JobsSection } from './jobs';
import { StorageSection } from './storage';

/** The left panel. */
export function Sidebar(): JSX.Element {
  const { trans } = useShared();
  return (
    <>
      <Connection />
      <Room />
      <Part name={trans.__('The cluster')}>
        <ClusterSection />
      </Part>
      <Part name={trans.__('The list of jobs')}>
        <JobsSection />
      </Part>
      <Part name={trans.__('The list of incidents')}>
        <IncidentsSection />
      </Part>
      <Part name={trans.__('The storage')}>
        <StorageSection />
      </Part>
    </>
  );
}

/** A notice, shown only while the disk of the store is full. */
export function Room(): JSX.Element | null {
  const { model, trans } = useShared();
  useTopics('cluster');
  const room = model.cluster?.room;
  return room ? (
    <div className="jp-Hp-banner" role="alert">
      {said(room, trans)}
    </div>
  ) : null;
}

/** A notice, shown only while the connection to the server fails. */
export function Connection(): JSX.Element | null {
  const { model, trans } = useShared();
  useTopics('connection');
  if (model.connection === 'absent') {
    return (
      <div className="jp-Hp-banner" role="status">
        <span>
          {trans.__(
            'This server does not have, or does not open, the jupyter_hyperpod server extension.'
          )}
        </span>
        <Button
          icon={refreshIcon}
          title={trans.__('Try again')}
          onClick={() => model.connect()}
        />
      </div>
    );
  }
  if (model.connection === 'offline') {
    return (
      <div className="jp-Hp-banner" role="status">
        {trans.__('The server does not answer. Trying again…')}
      </div>
    );
  }
  return null;
}
