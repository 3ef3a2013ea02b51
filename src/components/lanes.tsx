import * as React from 'react';

import { ILane, ISpan, lanes } from '../derive';
import { formatClock, formatDuration } from '../format';
import { TERMINAL_STATES } from '../model/events';
import type { IJobSummary } from '../model/views';
import { useNow, useShared } from './context';

const TICKS = 5;

/** Nodes over time: which trained or answered, stood by, or were lost. */
export function Lanes({ job }: { job: IJobSummary }): JSX.Element | null {
  const { trans } = useShared();
  const active = !TERMINAL_STATES.has(job.state);
  const now_s = useNow(active);
  const rows = lanes(job, Math.max(now_s, job.updated_s ?? 0));
  if (rows.length === 0) {
    return null;
  }
  const from_s = Math.min(...rows.flatMap(row => row.spans[0].from_s));
  const to_s = Math.max(
    from_s + 1,
    ...rows.flatMap(row => row.spans.map(span => span.to_s))
  );
  const place = (time_s: number) => ((time_s - from_s) / (to_s - from_s)) * 100;
  const roles: Record<ISpan['role'], string> = {
    member: job.deployment ? trans.__('answers') : trans.__('trains'),
    spare: trans.__('spare'),
    lost: trans.__('lost')
  };
  return (
    <figure className="jp-Hp-lanes" aria-label={trans.__('Nodes over time')}>
      <figcaption className="jp-Hp-row">
        <span className="jp-Hp-label">{trans.__('Nodes over time')}</span>
        <span className="jp-Hp-right jp-Hp-legend">
          {Object.entries(roles).map(([role, word]) => (
            <span key={role} data-role={role}>
              {word}
            </span>
          ))}
        </span>
      </figcaption>
      {rows.map(row => (
        <Lane key={row.node} row={row} place={place} roles={roles} />
      ))}
      <div className="jp-Hp-lane jp-Hp-lane-axis" aria-hidden>
        <span />
        <div>
          {Array.from({ length: TICKS }, (_, index) => {
            const part = index / (TICKS - 1);
            return (
              <span key={index} style={{ left: `${part * 100}%` }}>
                {index === 0
                  ? formatClock(from_s)
                  : `+${formatDuration((to_s - from_s) * part)}`}
              </span>
            );
          })}
        </div>
      </div>
    </figure>
  );
}

function Lane(props: {
  row: ILane;
  place: (time_s: number) => number;
  roles: Record<ISpan['role'], string>;
}): JSX.Element {
  const { row, place, roles } = props;
  const said = row.spans
    .map(
      span => `${roles[span.role]} ${formatDuration(span.to_s - span.from_s)}`
    )
    .join(', ');
  return (
    <div className="jp-Hp-lane">
      <span>{row.node}</span>
      <div role="img" aria-label={`${row.node}: ${said}`}>
        {row.spans.map((span, index) => (
          <span
            key={index}
            data-role={span.role}
            title={`${row.node} · ${roles[span.role]} · ${formatDuration(span.to_s - span.from_s)}`}
            style={{
              left: `${place(span.from_s)}%`,
              width: `${Math.max(0, place(span.to_s) - place(span.from_s))}%`
            }}
          />
        ))}
      </div>
    </div>
  );
}
