/** When the members of a job did not train. */

import type { TranslationBundle } from '@jupyterlab/translation';

import { causeLabel } from '../components/incidents';
import type { IIncident, IJobView } from '../model/views';
import { said } from '../said/said';

/** A stretch of the time of members, which an incident took, or the start. */
export interface IStretch {
  /** Whose time it is; of all members where there is none. */
  node?: string;
  role: 'recovers' | 'waits';
  from_s: number;
  to_s: number;
  text: string;
}

/** When the members did not train because of an incident, or before the first step, with a sentence of each. */
export function stretches(
  job: IJobView,
  last_s: number,
  trans: TranslationBundle
): IStretch[] {
  const found: IStretch[] = [];
  const first = job.history[0];
  const begun = job.generations[0]?.time_s;
  if (!job.deployment && begun !== undefined && first?.[0] === 1) {
    found.push({ role: 'waits', from_s: begun, to_s: first[2], text: '' });
  }
  for (const incident of job.incidents) {
    if (incident.cause !== 'straggler') {
      found.push({
        role: 'recovers',
        // The other replicas of a deployment go on.
        ...(job.deployment && { node: incident.node ?? '' }),
        from_s: incident.started_s,
        to_s: incident.resumed_s ?? job.ended_s ?? last_s,
        text: sentence(job, incident, trans)
      });
    }
  }
  return found;
}

/** The fault, and what was decided because of it. */
function sentence(
  job: IJobView,
  incident: IIncident,
  trans: TranslationBundle
): string {
  const until_s = incident.resumed_s ?? Infinity;
  const decided = job.decisions.find(
    one => incident.started_s <= one.time_s && one.time_s <= until_s
  );
  const fault = causeLabel(incident.cause, trans);
  const what = incident.node ? `${incident.node}: ${fault}` : fault;
  return decided ? `${what}. ${said(decided.reason, trans)}` : what;
}
