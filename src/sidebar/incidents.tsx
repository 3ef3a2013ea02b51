import * as React from 'react';

import { useShared, useTopics } from '../components/context';
import { Incident } from '../components/incidents';
import { Section } from '../components/parts';
import { TERMINAL_STATES } from '../model/events';

const SHOWN = 30;

/** Recent incidents, newest first; the newest is unfolded. */
export function IncidentsSection(): JSX.Element {
  const { model, trans } = useShared();
  useTopics('jobs', 'connection', ...model.activeJobs.map(job => job.id));
  const incidents = model.jobs
    .flatMap(job => job.incidents.map(incident => ({ job, incident })))
    .sort((a, b) => b.incident.started_s - a.incident.started_s);
  return (
    <Section
      title={trans.__('Incidents')}
      count={incidents.length || undefined}
    >
      {incidents.length === 0 && (
        <p className="jp-Hp-quiet">{trans.__('Nothing has broken.')}</p>
      )}
      {incidents.slice(0, SHOWN).map(({ job, incident }, index) => (
        <Incident
          key={`${job.id} ${incident.incident}`}
          incident={incident}
          job={job.name}
          ended={TERMINAL_STATES.has(job.state)}
          expanded={index === 0}
        />
      ))}
    </Section>
  );
}
