/** Folds the stages of incidents, the twin of `core/incidents.py`. */

import type { IEventOf } from './events';
import type { IIncident } from './views';

export const INCIDENTS_KEPT = 200;
/** Seconds since the Unix epoch; a larger number cannot be a time. */
const LATEST_S = 1e12;

/** Fold one `incident.stage` into the list, in place. */
export function foldStage(
  incidents: IIncident[],
  event: IEventOf<'incident.stage'>
): void {
  const data = event.data;
  let incident = incidents.find(known => known.incident === data.incident);
  if (incident === undefined) {
    incident = openIncident(event);
    incidents.push(incident);
    incidents.splice(0, Math.max(0, incidents.length - INCIDENTS_KEPT));
  }
  incident.cause = data.cause || incident.cause;
  incident.rung = data.rung === null ? incident.rung : data.rung;
  const since_s = unnoticedSince(event);
  if (since_s !== null && incident.detection_s === null) {
    incident.started_s = since_s;
    incident.detection_s = event.time_s - since_s;
  }
  const before = incident.stages[incident.stages.length - 1];
  incident.stages.push({
    stage: data.stage,
    time_s: event.time_s,
    took_s: before
      ? Math.max(0, event.time_s - before.time_s)
      : incident.detection_s,
    text: data.text
  });
  if (data.stage === 'resumed') {
    incident.resumed_s = event.time_s;
  }
  if (incident.resumed_s !== null) {
    incident.recovery_s = Math.max(0, incident.resumed_s - incident.started_s);
  }
}

function openIncident(event: IEventOf<'incident.stage'>): IIncident {
  const { incident, cause, node, rank, rung } = event.data;
  return {
    incident,
    cause,
    node,
    rank,
    rung,
    started_s: event.time_s,
    detection_s: null,
    resumed_s: null,
    recovery_s: null,
    stages: []
  };
}

/** The time of the fault according to a stage, never later than the stage itself; null where the stage lacks it. */
function unnoticedSince(event: IEventOf<'incident.stage'>): number | null {
  const { since_s } = event.data;
  return typeof since_s === 'number' && Math.abs(since_s) < LATEST_S
    ? Math.min(since_s, event.time_s)
    : null;
}
