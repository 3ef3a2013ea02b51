import * as React from 'react';

import type { IResources } from '../api';
import { Range, WHOLE } from '../compare/curves';
import { RangeChoice } from '../compare/view';
import {
  ISample,
  PHASES,
  Phase,
  PhasesOf,
  allSamples,
  partsOf,
  phaseWords,
  tellParts,
  within
} from '../dashboard/phases';
import { strokes } from '../dashboard/strokes';
import { IStretch, stretches } from '../dashboard/stretches';
import { ILane, ISpan, lanes } from '../derive';
import { formatClock, formatDuration } from '../format';
import { TERMINAL_STATES } from '../model/events';
import type { IJobView } from '../model/views';
import { useNow, useShared, useTopics } from './context';
import { choices, openLaneMenu } from './faultMenu';

const TICKS = 5;
/** These are in every legend. */
const LASTING: ReadonlySet<string> = new Set(['member', 'spare', 'lost']);
/** A shorter drag, in parts of the axis, is a click. */
const LEAST_DRAG = 0.01;
/** An incident that is chosen takes this part of the axis. */
const CHOSEN = 1 / 4;
const LEAST_S = 0.2;

/** Nodes over time: which trained or answered, stood by, or were lost, when the members recovered, and what they used. */
export function Lanes({
  job,
  used
}: {
  job: IJobView;
  used?: IResources | null;
}): JSX.Element | null {
  const { trans } = useShared();
  const active = !TERMINAL_STATES.has(job.state);
  const now_s = useNow(active);
  /** Seconds since the first moment. */
  const [range, setRange] = React.useState<Range | null>(null);
  const [drag, setDrag] = React.useState<Range | null>(null);
  const samples = React.useMemo(() => allSamples(used), [used]);
  const rows = lanes(job, Math.max(now_s, job.updated_s ?? 0));
  if (rows.length === 0) {
    return null;
  }
  const first_s = Math.min(...rows.flatMap(row => row.spans[0].from_s));
  const last_s = Math.max(
    first_s + 1,
    ...rows.flatMap(row => row.spans.map(span => span.to_s))
  );
  const from_s = first_s + (range?.[0] ?? 0);
  const to_s = range ? first_s + range[1] : last_s;
  const place = (time_s: number) => ((time_s - from_s) / (to_s - from_s)) * 100;
  const roles: Record<ISpan['role'] | IStretch['role'] | Phase, string> = {
    ...phaseWords(trans),
    member: job.deployment ? trans.__('answers') : trans.__('trains'),
    spare: trans.__('spare'),
    lost: trans.__('lost'),
    recovers: trans.__('recovers'),
    waits: trans.__('waits for the first step')
  };
  const taken = stretches(job, last_s, trans);
  const known = new Set<string>(taken.map(one => one.role));
  if (samples.size > 0) {
    PHASES.forEach(phase => known.add(phase));
  }
  const partOf = (event: React.PointerEvent) => {
    const lane = event.currentTarget.querySelector('.jp-Hp-lane > div')!;
    const { left, width } = lane.getBoundingClientRect();
    return Math.max(0, Math.min(1, (event.clientX - left) / width));
  };
  const onUp = () => {
    if (drag && Math.abs(drag[1] - drag[0]) >= LEAST_DRAG) {
      const [a, b] = [...drag]
        .sort((one, other) => one - other)
        .map(part => from_s - first_s + part * (to_s - from_s));
      setRange([a, Math.max(b, a + LEAST_S)]);
    }
    setDrag(null);
  };
  const show = (stretch: IStretch) => {
    const took = Math.max(LEAST_S, stretch.to_s - stretch.from_s);
    const around = (took * (1 / CHOSEN - 1)) / 2;
    setRange([
      Math.max(0, stretch.from_s - first_s - around),
      stretch.to_s - first_s + around
    ]);
  };
  return (
    <figure className="jp-Hp-lanes" aria-label={trans.__('Nodes over time')}>
      <figcaption className="jp-Hp-chartbar">
        <span className="jp-Hp-label">{trans.__('Nodes over time')}</span>
        <RangeChoice
          view={{ ...WHOLE, range }}
          onChange={view => setRange(view.range)}
          name={trans.__('Seconds since the beginning')}
        />
        <span className="jp-Hp-legend">
          {Object.entries(roles)
            .filter(([role]) => LASTING.has(role) || known.has(role))
            .map(([role, word]) => (
              <span key={role} data-role={role}>
                {word}
              </span>
            ))}
          {(['cpu', 'gpu'] as const)
            .filter(name => used?.curves[name])
            .map(name => (
              <span key={name} data-role="used" data-used={name}>
                {name === 'cpu' ? trans.__('CPU use') : trans.__('GPU use')}
              </span>
            ))}
        </span>
      </figcaption>
      <Incidents
        taken={taken}
        place={place}
        onChoose={show}
        name={trans.__('Incidents')}
      />
      <div
        className="jp-Hp-zoomed"
        onPointerDown={event => {
          if (event.button === 0) {
            event.currentTarget.setPointerCapture(event.pointerId);
            setDrag([partOf(event), partOf(event)]);
          }
        }}
        onPointerMove={event => drag && setDrag([drag[0], partOf(event)])}
        onPointerUp={onUp}
        onPointerCancel={() => setDrag(null)}
        onDoubleClick={() => setRange(null)}
      >
        {rows.map(row => (
          <Lane
            key={row.node}
            job={job}
            row={row}
            place={place}
            roles={roles}
            taken={taken}
            drag={drag}
            samples={samples.get(row.node) ?? []}
            from_s={from_s}
            to_s={to_s}
          >
            {used && <Sparks used={used} node={row.node} place={place} />}
          </Lane>
        ))}
      </div>
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
      {samples.size > 0 && (
        <p className="jp-Hp-small">
          {trans.__(
            'Each lane shows how a node spent its time. Zoom in to see single steps. Waiting is counted in the exchange, until all others have sent something; where a library such as NCCL exchanges, it counts as exchanging.'
          )}
        </p>
      )}
    </figure>
  );
}

/** The incidents on the same axis: one that is chosen is seen more closely. */
function Incidents(props: {
  taken: readonly IStretch[];
  place: (time_s: number) => number;
  onChoose: (stretch: IStretch) => void;
  name: string;
}): JSX.Element | null {
  const shown = props.taken.filter(one => one.role === 'recovers');
  return shown.length === 0 ? null : (
    <div className="jp-Hp-lane jp-Hp-lane-incidents">
      <span>{props.name}</span>
      <div>
        {shown.map((one, at) => {
          const left = props.place(one.from_s);
          return (
            0 <= left &&
            left <= 100 && (
              <button
                key={at}
                type="button"
                title={one.text}
                aria-label={one.text}
                style={{ left: `${left}%` }}
                onClick={() => props.onChoose(one)}
              />
            )
          );
        })}
      </div>
    </div>
  );
}

/** What a node has used over time, in percent of what it may: a line over its lane. */
function Sparks(props: {
  used: IResources;
  node: string;
  place: (time_s: number) => number;
}): JSX.Element | null {
  const { used, node, place } = props;
  const sparks = Object.hasOwn(used.sparks, node) ? used.sparks[node] : {};
  const drawn = (['cpu', 'gpu'] as const).flatMap(name => {
    const values = sparks[name] ?? [];
    const there = values.flatMap((value, at) => (value === null ? [] : at));
    const begins = strokes(there.map(at => used.times_s[at]));
    const path = there
      .map((at, order) => {
        const x = place(used.start_s + used.times_s[at]).toFixed(2);
        return `${begins[order] ? 'M' : 'L'}${x} ${100 - values[at]!}`;
      })
      .join('');
    return there.length > 1 ? [{ name, path }] : [];
  });
  return drawn.length === 0 ? null : (
    <svg
      className="jp-Hp-sparks"
      viewBox="0 -8 100 116"
      preserveAspectRatio="none"
      aria-hidden
    >
      {drawn.map(({ name, path }) => (
        <path key={name} data-used={name} d={path} />
      ))}
    </svg>
  );
}

function Lane(props: {
  job: IJobView;
  row: ILane;
  place: (time_s: number) => number;
  roles: Record<string, string>;
  taken: readonly IStretch[];
  drag: Range | null;
  samples: readonly ISample[];
  from_s: number;
  to_s: number;
  children?: React.ReactNode;
}): JSX.Element {
  const { job, row, place, roles, drag } = props;
  const shared = useShared();
  const { actions, trans } = shared;
  useTopics('connection'); // which brings what the server forbids
  const button = React.useRef<HTMLButtonElement>(null);
  /** The name, or its menu, has the focus: it stays a button, else the focus would be lost with it. */
  const held = React.useRef(false);
  const breakable =
    actions.faultsAllowed &&
    !TERMINAL_STATES.has(job.state) &&
    choices(job, row.node).length > 0;
  const open = (x: number, y: number) => {
    held.current = true;
    openLaneMenu(shared, job, row.node, button.current!, { x, y });
  };
  const members = row.spans.filter(span => span.role === 'member');
  const samples = within(props.samples, members);
  const tell = (span: { role: string; from_s: number; to_s: number }) => {
    const parts =
      span.role === 'member' ? partsOf(samples, span.from_s, span.to_s) : null;
    const took = formatDuration(span.to_s - span.from_s);
    return parts ? [took, tellParts(parts, trans)] : [took];
  };
  const told = row.spans
    .map(span => `${roles[span.role]} ${tell(span).join(': ')}`)
    .join(', ');
  const mine = props.taken.filter(
    one => one.node === undefined || one.node === row.node
  );
  const taken = mine.flatMap(one =>
    members
      .map(span => ({
        role: one.role,
        from_s: Math.max(one.from_s, span.from_s),
        to_s: Math.min(one.to_s, span.to_s)
      }))
      .filter(part => part.from_s < part.to_s)
  );
  const stretch = (
    span: { role: string; from_s: number; to_s: number },
    index: number
  ) => {
    const left = Math.max(0, place(span.from_s));
    const right = Math.min(100, place(span.to_s));
    const out = place(span.to_s) < 0 || place(span.from_s) > 100;
    return (
      !out && (
        <span
          key={index}
          data-role={span.role}
          title={[row.node, roles[span.role], ...tell(span)].join(' · ')}
          style={{
            left: `${left}%`,
            width: `${Math.max(0, right - left)}%`
          }}
        />
      )
    );
  };
  return (
    <div
      className="jp-Hp-lane"
      onContextMenu={event => {
        // Where Shift is held down, people want the browser's own.
        if (breakable && !event.shiftKey) {
          event.preventDefault();
          event.stopPropagation();
          open(event.clientX, event.clientY);
        }
      }}
    >
      {breakable || held.current ? (
        <button
          ref={button}
          type="button"
          className="jp-Hp-link"
          aria-disabled={!breakable}
          aria-haspopup={breakable ? 'menu' : undefined}
          title={breakable ? trans.__('Break %1', row.node) : undefined}
          onFocus={() => {
            held.current = true;
          }}
          onBlur={event => {
            held.current = !!event.relatedTarget?.closest('.lm-Menu');
          }}
          // Else it would begin to draw a range.
          onPointerDown={event => event.stopPropagation()}
          onClick={event => {
            if (breakable) {
              const box = event.currentTarget.getBoundingClientRect();
              open(box.left, box.bottom);
            }
          }}
        >
          {row.node}
        </button>
      ) : (
        <span>{row.node}</span>
      )}
      <div role="img" aria-label={`${row.node}: ${told}`}>
        {row.spans.filter(span => span.role !== 'lost').map(stretch)}
        <PhasesOf
          samples={samples}
          history={job.history}
          from_s={props.from_s}
          to_s={props.to_s}
        />
        {row.spans.filter(span => span.role === 'lost').map(stretch)}
        {taken.map(stretch)}
        {props.children}
        {drag && (
          <i
            style={{
              left: `${Math.min(...drag) * 100}%`,
              width: `${Math.abs(drag[1] - drag[0]) * 100}%`
            }}
          />
        )}
      </div>
    </div>
  );
}
