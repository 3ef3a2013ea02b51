import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { incidentDuration } from '../derive';
import { formatClock, formatDuration, labelOf } from '../format';
import type { IIncident } from '../model/views';
import { said } from '../said/said';
import { useNow, useShared } from './context';

/** The word for a stage of an incident. */
export function stageLabel(stage: string, trans: TranslationBundle): string {
  const labels: Record<string, string> = {
    detected: trans.__('Detected'),
    diagnosed: trans.__('Diagnosed'),
    fenced: trans.__('Fenced'),
    repaired: trans.__('Repaired'),
    replaced: trans.__('Replaced'),
    rejoined: trans.__('Rejoined'),
    resumed: trans.__('Resumed')
  };
  return labelOf(labels, stage);
}

/** How training got its state and its place back, by the rung of recovery. */
function wayLabel(rung: number, trans: TranslationBundle): string {
  const labels = [
    trans.__('by the other members'),
    trans.__('by a spare'),
    trans.__('by a new process'),
    trans.__('by another node'),
    trans.__('from a checkpoint'),
    trans.__('from the beginning')
  ];
  return labels[rung] ?? trans.__('in another way');
}

/** What an incident was about, in words. */
export function causeLabel(cause: string, trans: TranslationBundle): string {
  return said(cause === 'ByHand' ? 'drained by hand' : cause, trans);
}

function title(incident: IIncident, trans: TranslationBundle): string {
  if (incident.node !== null) {
    return incident.rank === null
      ? incident.node
      : trans.__('%1 · rank %2', incident.node, incident.rank);
  }
  return incident.rank === null
    ? trans.__('job')
    : trans.__('rank %1', incident.rank);
}

/** One incident: fault, cause, and the time of each stage; on request the sentences of the stages. */
export function Incident(props: {
  incident: IIncident;
  ended: boolean;
  job?: string;
  expanded?: boolean;
}): JSX.Element {
  const { incident } = props;
  const { trans } = useShared();
  const [choice, setChoice] = React.useState<boolean | null>(null);
  const expanded = choice ?? props.expanded ?? false;
  const open = incident.resumed_s === null && !props.ended;
  const now_s = useNow(open);
  const id = React.useId();
  const cause = causeLabel(incident.cause, trans);
  const last = incident.stages[incident.stages.length - 1];
  const until_s = open ? now_s : (last?.time_s ?? incident.started_s);
  const took = formatDuration(
    incidentDuration(incident, open ? now_s : until_s)
  );
  return (
    <div className="jp-Hp-incident" data-open={open || undefined}>
      <button
        type="button"
        className="jp-Hp-incident-head"
        aria-expanded={expanded}
        aria-controls={id}
        onClick={() => setChoice(!expanded)}
      >
        <span className="jp-Hp-caret" aria-hidden />
        <span className="jp-Hp-strong">{title(incident, trans)}</span>
        <span className="jp-Hp-cause">{cause}</span>
        <span className="jp-Hp-took">
          {incident.resumed_s !== null ? (
            incident.detection_s !== null ? (
              <>
                <span>{trans.__('resumed in')}</span> {took}
              </>
            ) : (
              <>
                <span>{trans.__('resumed')}</span>{' '}
                {trans.__('%1 after detection', took)}
              </>
            )
          ) : open ? (
            trans.__('for %1', took)
          ) : (
            trans.__('not resumed')
          )}
        </span>
      </button>
      <StageBar incident={incident} until_s={until_s} trans={trans} />
      <div id={id} hidden={!expanded}>
        {expanded && (
          <>
            <div className="jp-Hp-incident-facts">
              {formatClock(incident.started_s)}
              <span className="jp-Hp-narrow">{` · ${cause}`}</span>
              {props.job && ` · ${props.job}`}
              {incident.rung !== null && ` · ${wayLabel(incident.rung, trans)}`}
              {incident.resumed_s !== null &&
                last.time_s > incident.resumed_s &&
                ` · ${trans.__(
                  'at full strength after %1',
                  formatDuration(last.time_s - incident.started_s)
                )}`}
            </div>
            <Stages incident={incident} trans={trans} />
          </>
        )}
      </div>
    </div>
  );
}

/** A bar with one segment per stage, as long as the stage took. Detection begins at the fault. */
function StageBar(props: {
  incident: IIncident;
  until_s: number;
  trans: TranslationBundle;
}): JSX.Element {
  const { incident, until_s, trans } = props;
  const segments = incident.stages.map(stage => ({
    name: stage.stage,
    seconds: stage.took_s
  }));
  const last = incident.stages[incident.stages.length - 1];
  if (last && incident.resumed_s === null && until_s > last.time_s) {
    segments.push({ name: '', seconds: until_s - last.time_s });
  }
  return (
    <div className="jp-Hp-stagebar" aria-hidden>
      {segments.map(({ name, seconds }, index) => (
        <span
          key={index}
          data-stage={name}
          style={{ flexGrow: (seconds ?? 0) * 1e4 }}
          title={`${stageLabel(name, trans)} · ${tookText(seconds, trans)}`}
        />
      ))}
    </div>
  );
}

function Stages(props: {
  incident: IIncident;
  trans: TranslationBundle;
}): JSX.Element {
  const { incident, trans } = props;
  return (
    <ol className="jp-Hp-stages">
      {incident.stages.map((stage, index) => (
        <li key={index} data-stage={stage.stage}>
          <span className="jp-Hp-stage-name">
            {stageLabel(stage.stage, trans)}
          </span>
          <span className="jp-Hp-stage-time">
            {tookText(stage.took_s, trans)}
          </span>
          <span className="jp-Hp-stage-text">{said(stage.text, trans)}</span>
        </li>
      ))}
    </ol>
  );
}

/** How long a stage took; journals of earlier versions lack the time of detection. */
function tookText(seconds: number | null, trans: TranslationBundle): string {
  return seconds === null
    ? trans.__('time not known')
    : `+${formatDuration(seconds)}`;
}
