import * as React from 'react';

import { useShared } from '../components/context';
import { causeLabel, stageLabel } from '../components/incidents';
import { formatDuration } from '../format';
import type { IClusterView, IDevices, IFinding } from '../model/views';
import { said } from '../said/said';

export const STATUS = 'sagemaker.amazonaws.com/node-health-status';
/** The most findings shown; `jupyter hyperpod nodes describe` shows older ones. */
const SHOWN = 5;

/** A node's findings, the remedy in progress, and earlier incidents. */
export function NodeHealth(props: {
  name: string;
  cluster: IClusterView;
}): JSX.Element | null {
  const { name, cluster } = props;
  const { trans } = useShared();
  if (!Object.hasOwn(cluster.health, name)) {
    return null;
  }
  const health = cluster.health[name];
  const wrong = health.findings.filter(one => one.outcome === 'fail');
  const skipped = health.findings.filter(one => one.outcome === 'skipped');
  const passed = health.findings.length - wrong.length - skipped.length;
  const incidents = cluster.incidents.filter(one => one.node === name);
  return (
    <div className="jp-Hp-health">
      <dl className="jp-Hp-facts">
        <dt>{trans.__('Health')}</dt>
        <dd data-health={health.action}>
          {health.labels[STATUS] ?? trans.__('not labelled')}
        </dd>
        <dt>{trans.__('Devices')}</dt>
        <dd>{devices(health.devices, trans)}</dd>
        <dt>{trans.__('Probes')}</dt>
        <dd>
          {trans.__(
            '%1 passed, %2 failed, %3 skipped',
            passed,
            wrong.length,
            skipped.length
          )}
        </dd>
      </dl>
      {health.action !== 'watch' && <p>{said(health.reason, trans)}</p>}
      {wrong.map(finding => (
        <Finding key={finding.probe + finding.device} finding={finding} />
      ))}
      {incidents.slice(-SHOWN).map(incident => (
        <p key={incident.incident} className="jp-Hp-small">
          {`${causeLabel(incident.cause, trans)}: `}
          {incident.stages
            .map(stage =>
              stage.took_s === null
                ? stageLabel(stage.stage, trans)
                : `${stageLabel(stage.stage, trans)} +${formatDuration(stage.took_s)}`
            )
            .join(' → ')}
        </p>
      ))}
      {skipped.length > 0 && (
        <details>
          <summary className="jp-Hp-small">
            {trans.__('Skipped checks')}
          </summary>
          {skipped.map(finding => (
            <p key={finding.probe} className="jp-Hp-small">
              {`${finding.probe} ${trans.__('skipped')}: ${finding.text}`}
            </p>
          ))}
        </details>
      )}
    </div>
  );
}

function Finding({ finding }: { finding: IFinding }): JSX.Element {
  return (
    <p className="jp-Hp-small" data-severity={finding.severity}>
      {`${finding.fault || finding.probe}: ${finding.text}`}
    </p>
  );
}

/** The expected, found and busy devices. */
function devices(
  known: IDevices,
  trans: ReturnType<typeof useShared>['trans']
): string {
  const type = known.type || trans.__('unknown instance type');
  if (known.found === null || known.found === undefined) {
    return trans.__('%1, not counted', type);
  }
  const expected = known.expected ?? '?';
  return trans.__(
    '%1: %2 of %3 there, %4 busy',
    type,
    known.found,
    expected,
    known.busy ?? 0
  );
}
