import * as React from 'react';

import type { ITrial, ITrials } from '../api';
import { useWidth } from '../compare/chart';
import type { Range } from '../compare/curves';
import { useShared } from '../components/context';
import { stateLabel } from '../components/parts';
import {
  dashOf,
  grades,
  heightBetween,
  IUpright,
  METRIC,
  path,
  Ranges,
  withRange
} from './axes';
import { Handles } from './handles';

export const HEIGHT = 380;
export const EDGE = { side: 64, top: 48, bottom: 52 };
export const INNER = HEIGHT - EDGE.top - EDGE.bottom;
/** Where those cross an axis that have no value there. */
const NONE_AT = HEIGHT - EDGE.bottom + 20;
/** Axes that are nearer to each other scroll. */
const LEAST_STEP = 96;
/** So near the pointer has to be to a line. */
const NEAR = 14;
const LETTER = 6.2;

type Point = readonly [number, number];

/** An axis for each parameter and the metric, and a line for each trial. */
export function Parallel(props: {
  found: ITrials;
  axes: readonly IUpright[];
  /** The jobs of the trials that the ranges leave. */
  left: ReadonlySet<string>;
  ranges: Ranges;
  onRanges: (ranges: Ranges) => void;
  /** The job of the trial that is shown, and of one that is to be. */
  shown: string;
  onShow: (job: string) => void;
  onOpen: (job: string) => void;
  drawing: React.RefObject<SVGSVGElement>;
  alt: string;
}): JSX.Element {
  const { found, axes, left, ranges, shown } = props;
  const { trans } = useShared();
  const box = React.useRef<HTMLDivElement>(null);
  const room = useWidth(box);
  const step = Math.max(
    LEAST_STEP,
    (room - 2 * EDGE.side) / Math.max(1, axes.length - 1)
  );
  const width = 2 * EDGE.side + step * (axes.length - 1);
  const x = (at: number) => EDGE.side + step * at;
  const points = React.useMemo(
    () =>
      new Map(
        found.trials.map(trial => [
          trial.job,
          axes.map((axis, at): Point => {
            const there = axis.of(trial);
            return [
              EDGE.side + step * at,
              there === null ? NONE_AT : heightOf(axis, there)
            ];
          })
        ])
      ),
    [found, axes, step]
  );
  const lacking = axes.map(axis =>
    found.trials.some(trial => axis.of(trial) === null)
  );
  const shownTrial = found.trials.find(trial => trial.job === shown);

  const nearest = (event: React.PointerEvent): string => {
    const place = event.currentTarget.getBoundingClientRect();
    const [right, down] = [
      event.clientX - place.left,
      event.clientY - place.top
    ];
    const gap = Math.min(
      axes.length - 2,
      Math.max(0, Math.floor((right - EDGE.side) / step))
    );
    const share = Math.min(1, Math.max(0, (right - x(gap)) / step));
    let best = '';
    let distance = NEAR;
    for (const [job, line] of points) {
      const [from, to] = [line[gap], line[gap + 1] ?? line[gap]];
      const off = Math.abs(heightBetween(from[1], to[1], share) - down);
      if (off < distance && left.has(job)) {
        [best, distance] = [job, off];
      }
    }
    return best;
  };

  return (
    <div
      ref={box}
      className="jp-Hp-chartbox jp-Hp-parallel"
      tabIndex={width > room ? 0 : undefined}
      role="group"
      aria-label={trans.__('Parallel coordinates')}
    >
      <div className="jp-Hp-axes" style={{ width }}>
        <svg
          ref={props.drawing}
          className="jp-Hp-drawing"
          width={width}
          height={HEIGHT}
          viewBox={`0 0 ${width} ${HEIGHT}`}
          role="img"
          aria-label={props.alt}
          data-over={shown ? true : undefined}
          onPointerMove={event => props.onShow(nearest(event))}
          onPointerLeave={() => props.onShow('')}
          onClick={() => shown && props.onOpen(shown)}
        >
          <Lines found={found} points={points} left={left} />
          {axes.map((axis, at) => (
            <AxisDrawn
              key={axis.id}
              axis={axis}
              x={x(at)}
              room={step}
              last={at === axes.length - 1}
              range={ranges.get(axis.id) ?? null}
              note={noteOf(axis)}
              none={lacking[at] ? trans.__('no value') : ''}
            />
          ))}
        </svg>
        {shownTrial && (
          <svg
            className="jp-Hp-shown"
            width={width}
            height={HEIGHT}
            aria-hidden
          >
            <path
              d={path(points.get(shown)!)}
              strokeDasharray={dashOf(shownTrial.state) || undefined}
            />
            {points.get(shown)!.map(([right, down], at) => (
              <circle key={at} cx={right} cy={down} r={3.5} />
            ))}
          </svg>
        )}
        {axes.map((axis, at) => (
          <Handles
            key={axis.id}
            axis={axis}
            x={x(at)}
            range={ranges.get(axis.id) ?? null}
            onRange={(range: Range | null) =>
              props.onRanges(withRange(ranges, axis, range))
            }
          />
        ))}
      </div>
      {shownTrial && (
        <Readout
          found={found}
          trial={shownTrial}
          atLeft={readoutAtLeft(points.get(shown)!, width)}
        />
      )}
    </div>
  );

  function noteOf(axis: IUpright): string {
    const notes = axis.logarithmic ? [trans.__('logarithmic')] : [];
    if (axis.id === METRIC) {
      notes.unshift(
        found.maximize ? trans.__('large is good') : trans.__('small is good')
      );
    }
    return notes.join(', ');
  }
}

export function heightOf(axis: IUpright, coordinate: number): number {
  return EDGE.top + (1 - axis.up(coordinate)) * INNER;
}

/** The readout covers that side of the picture in which the line is lower, there is nothing above it. */
function readoutAtLeft(line: readonly Point[], width: number): boolean {
  const part = (of: readonly Point[]) =>
    of.reduce((sum, [, down]) => sum + down, 0) / Math.max(1, of.length);
  const leftOnes = line.filter(([right]) => right < width / 2);
  return part(leftOnes) > part(line.slice(leftOnes.length));
}

/** All trials: the better ones over the others, and the best one over all. */
const Lines = React.memo(function Lines(props: {
  found: ITrials;
  points: ReadonlyMap<string, readonly Point[]>;
  left: ReadonlySet<string>;
}): JSX.Element {
  const { found, points, left } = props;
  const layers = React.useMemo(() => {
    const graded = grades(found);
    const rank = (job: string) =>
      job === found.best ? -1 : (graded.get(job) ?? Infinity);
    return found.trials
      .map(({ job, state }) => ({
        job,
        drawn: path(points.get(job)!),
        dash: dashOf(state),
        grade: graded.get(job) ?? null,
        best: job === found.best
      }))
      .sort((a, b) => rank(b.job) - rank(a.job));
  }, [found, points]);
  return (
    <>
      {layers.map(line => (
        <Line key={line.job} {...line} out={!left.has(line.job)} />
      ))}
    </>
  );
});

/** One trial; thousands of them stay as they are while a range is chosen. */
const Line = React.memo(function Line(props: {
  job: string;
  drawn: string;
  dash: string;
  /** Null where it does not count. */
  grade: number | null;
  best: boolean;
  out: boolean;
}): JSX.Element {
  return (
    <path
      className="jp-Hp-trial"
      d={props.drawn}
      data-grade={props.grade ?? undefined}
      data-best={props.best || undefined}
      data-out={props.out || undefined}
      strokeDasharray={props.dash || undefined}
    />
  );
});

function AxisDrawn(props: {
  axis: IUpright;
  x: number;
  /** From this axis to the next one. */
  room: number;
  last: boolean;
  range: Range | null;
  note: string;
  /** What is said below it of those without a value; empty where all have one. */
  none: string;
}): JSX.Element {
  const { axis, x, last, range } = props;
  const side = last ? x + 13 : x - 13;
  const anchor = last ? 'start' : 'end';
  const fits = Math.floor(Math.min(props.room, 2 * EDGE.side) / LETTER);
  return (
    <g className="jp-Hp-upright">
      <line x1={x} x2={x} y1={EDGE.top} y2={HEIGHT - EDGE.bottom} />
      {range && (
        <rect
          className="jp-Hp-rangebar"
          x={x - 5}
          width={10}
          y={heightOf(axis, range[1])}
          height={Math.max(
            2,
            heightOf(axis, range[0]) - heightOf(axis, range[1])
          )}
        />
      )}
      <text className="jp-Hp-axisname" x={x} y={18} textAnchor="middle">
        <title>{axis.name}</title>
        {cut(axis.name, fits)}
      </text>
      {axis.ticks.map(({ at, text }) => (
        <g key={at}>
          <line
            x1={x - 3}
            x2={x + 3}
            y1={heightOf(axis, at)}
            y2={heightOf(axis, at)}
          />
          <text x={side} y={heightOf(axis, at) + 3.5} textAnchor={anchor}>
            {cut(text, 12)}
          </text>
        </g>
      ))}
      {props.none && (
        <text x={side} y={NONE_AT + 3.5} textAnchor={anchor}>
          {props.none}
        </text>
      )}
      {props.note && (
        <text x={x} y={HEIGHT - 8} textAnchor="middle">
          {props.note}
        </text>
      )}
    </g>
  );
}

function cut(text: string, most: number): string {
  return text.length > most ? `${text.slice(0, most - 1)}…` : text;
}

/** What the shown trial is; the table says the same to those who do not see it. */
function Readout(props: {
  found: ITrials;
  trial: ITrial;
  atLeft: boolean;
}): JSX.Element {
  const { found, trial } = props;
  const { trans } = useShared();
  return (
    <div
      className="jp-Hp-readouts"
      aria-hidden
      data-left={props.atLeft || undefined}
    >
      <span className="jp-Hp-strong">
        {titleOf(found, trial, trans)} · {stateLabel(trial.state, trans)}
      </span>
      {found.axes.map(
        ({ name }) =>
          Object.hasOwn(trial.told, name) && (
            <span key={name}>
              {name} {trial.told[name]}
            </span>
          )
      )}
      {trial.value_text !== '-' && (
        <span>
          {found.metric} {trial.value_text}
        </span>
      )}
    </div>
  );
}

/** What a trial is called: a job that is none has its own name. */
export function titleOf(
  found: ITrials,
  trial: ITrial,
  trans: ReturnType<typeof useShared>['trans']
): string {
  return found.sweep ? trans.__('trial %1', trial.number) : trial.name;
}
