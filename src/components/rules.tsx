import * as React from 'react';

import type { IJobView } from '../model/views';
import { useShared } from './context';

/** The state of each log rule for each rank; nothing where the job has no rules. */
export function Rules({ job }: { job: IJobView }): JSX.Element | null {
  const { trans } = useShared();
  if (job.rules.length === 0) {
    return null;
  }
  return (
    <section>
      <h3 className="jp-Hp-label">{trans.__('Rules about output')}</h3>
      {job.rules.map(rule => (
        <p
          key={`${rule.rule} ${rule.rank}`}
          className="jp-Hp-rule"
          data-rule={rule.state}
        >
          <span className="jp-Hp-strong">{`${rule.rule} ${rule.state}`}</span>
          <span className="jp-Hp-small">{rule.text}</span>
        </p>
      ))}
    </section>
  );
}
