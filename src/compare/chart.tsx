import * as React from 'react';

import { useShared } from '../components/context';
import { Reader } from '../components/reader';
import { formatDuration, formatInteger, formatLoss } from '../format';
import {
  heights,
  ILine,
  IPoint,
  IView,
  nearest,
  Range,
  scaled,
  span,
  ticks
} from './curves';
import { PictureButtons } from './saving';

const HEIGHT = 240;
const EDGE = { left: 56, right: 12, top: 10, bottom: 26 };
/** Half of a label of the axis: one that is nearer to the edge ends at its place. */
const LABEL = 24;
/** A shorter drag is a click. */
const LEAST_DRAG = 6;
/** The first line is wide, so that it is seen behind an equal one; the others have dashes of their own. */
export const DASHES = ['', '7 3', '2 3', '9 3 2 3', '5 5', '1 3'];

/** A place on the axis that is marked; one without a time is not shown on an axis of time. */
export interface IMark {
  step: number;
  /** Seconds since the start. */
  time_s?: number;
  text: string;
}

/** The curves of one logged value over each other: a drag chooses a part of the axis, a double click all of it; keys read its values. */
export function Chart(props: {
  name: string;
  lines: readonly ILine[];
  names: readonly string[];
  view: IView;
  marks: readonly IMark[];
  onRange: (range: Range | null) => void;
  /** A value in words; as a loss where it is not given. */
  said?: (value: number) => string;
  /** The values hold until the next one. */
  stepped?: boolean;
  /** Name the lines above the curves. */
  legend?: boolean;
  /** The scale begins at 0. */
  fromZero?: boolean;
}): JSX.Element {
  const { name, view, said = formatLoss } = props;
  const { trans } = useShared();
  const box = React.useRef<HTMLDivElement>(null);
  const drawing = React.useRef<SVGSVGElement>(null);
  const width = useWidth(box);
  const [pointer, setPointer] = React.useState<number | null>(null);
  const [drag, setDrag] = React.useState<number | null>(null);
  const clip = React.useId();

  const across =
    view.range ?? (props.lines.length ? span(props.lines) : [0, 1]);
  const smooths = view.smoothing > 0;
  const [low, high] = heights(props.lines, across, view.logarithmic, smooths);
  const up: Range = [props.fromZero ? Math.min(0, low) : low, high];
  const inner = {
    width: Math.max(10, width - EDGE.left - EDGE.right),
    height: HEIGHT - EDGE.top - EDGE.bottom
  };
  const toX = scaled(across, false);
  const toY = scaled(up, view.logarithmic);
  const x = (value: number) => EDGE.left + toX(value) * inner.width;
  const y = (value: number) => EDGE.top + (1 - toY(value)) * inner.height;
  const valueAt = (event: React.PointerEvent) => {
    const left = drawing.current!.getBoundingClientRect().left;
    const part = (event.clientX - left - EDGE.left) / inner.width;
    return across[0] + Math.max(0, Math.min(1, part)) * (across[1] - across[0]);
  };
  const onUp = (event: React.PointerEvent) => {
    const end = valueAt(event);
    if (drag !== null && Math.abs(x(end) - x(drag)) >= LEAST_DRAG) {
      props.onRange(drag < end ? [drag, end] : [end, drag]);
    }
    setDrag(null);
  };

  const place = (value: number) =>
    view.axis === 'step' ? formatInteger(value) : formatDuration(value);
  const read =
    pointer === null
      ? []
      : props.lines.flatMap(line => {
          const at = nearest(line, pointer, across);
          return at < 0 ? [] : [{ line, at }];
        });
  const last = props.lines.map(line => {
    const end = line.points[line.points.length - 1];
    return `${props.names[line.run]} ${said(end.y)}`;
  });
  const empty = props.lines.length === 0;
  const places = stops(props.lines, across);
  const readAt = (at: number) => {
    const there = props.lines.flatMap(line => {
      const found = nearest(line, places[at], across);
      return found < 0
        ? []
        : [`${props.names[line.run]} ${said(line.points[found].y)}`];
    });
    return `${place(places[at])}: ${there.join(', ')}`;
  };
  return (
    <section className="jp-Hp-chart">
      <header className="jp-Hp-row">
        <h3 className="jp-Hp-label">{name}</h3>
        {props.legend && (
          <span className="jp-Hp-lines">
            {props.lines.map(line => (
              <span key={line.run} data-colour={line.run}>
                <i />
                {props.names[line.run]}
              </span>
            ))}
          </span>
        )}
        <span className="jp-Hp-actions">
          <PictureButtons name={name} drawing={drawing} disabled={empty} />
        </span>
      </header>
      <div ref={box} className="jp-Hp-chartbox">
        <svg
          ref={drawing}
          className="jp-Hp-drawing"
          width={width}
          height={HEIGHT}
          viewBox={`0 0 ${width} ${HEIGHT}`}
          role="img"
          aria-label={trans.__('%1: at the end %2', name, last.join(', '))}
          onPointerMove={event => setPointer(valueAt(event))}
          onPointerLeave={() => setPointer(null)}
          onPointerDown={event => {
            if (event.button === 0) {
              event.currentTarget.setPointerCapture(event.pointerId);
              setDrag(valueAt(event));
            }
          }}
          onPointerUp={onUp}
          onPointerCancel={() => setDrag(null)}
          onDoubleClick={() => props.onRange(null)}
        >
          <clipPath id={clip}>
            <rect
              x={EDGE.left}
              y={EDGE.top - 2}
              width={inner.width}
              height={inner.height + 4}
            />
          </clipPath>
          {ticks(up, 4, view.logarithmic).map(value => (
            <g key={value}>
              <line
                className="jp-Hp-gridline"
                x1={EDGE.left}
                x2={width - EDGE.right}
                y1={y(value)}
                y2={y(value)}
              />
              <text x={EDGE.left - 8} y={y(value) + 3.5} textAnchor="end">
                {props.said ? said(value) : tickText(value)}
              </text>
            </g>
          ))}
          {ticks(across, Math.max(2, Math.floor(inner.width / 90))).map(
            value => (
              <text
                key={value}
                x={x(value)}
                y={HEIGHT - 8}
                textAnchor={x(value) > width - LABEL ? 'end' : 'middle'}
              >
                {place(value)}
              </text>
            )
          )}
          <g clipPath={`url(#${clip})`}>
            {props.marks.map((mark, at) => {
              const place = view.axis === 'step' ? mark.step : mark.time_s;
              return (
                place !== undefined && (
                  <line
                    key={at}
                    className="jp-Hp-apart"
                    x1={x(place)}
                    x2={x(place)}
                    y1={EDGE.top}
                    y2={EDGE.top + inner.height}
                  >
                    <title>{mark.text}</title>
                  </line>
                )
              );
            })}
            {props.lines.map((line, order) => (
              <Curve
                key={line.run}
                line={line}
                x={x}
                y={y}
                smooths={smooths}
                stepped={props.stepped}
                first={order === 0 && props.lines.length > 1}
              />
            ))}
          </g>
          {drag !== null && pointer !== null && (
            <rect
              className="jp-Hp-dragged"
              x={Math.min(x(drag), x(pointer))}
              y={EDGE.top}
              width={Math.abs(x(pointer) - x(drag))}
              height={inner.height}
            />
          )}
          {read.length > 0 && (
            <line
              className="jp-Hp-cross"
              x1={x(read[0].line.points[read[0].at].x)}
              x2={x(read[0].line.points[read[0].at].x)}
              y1={EDGE.top}
              y2={EDGE.top + inner.height}
            />
          )}
          {read.map(({ line, at }) => (
            <circle
              key={line.run}
              className="jp-Hp-point"
              data-colour={line.run}
              cx={x(line.points[at].x)}
              cy={y(smooths ? line.smooth[at] : line.points[at].y)}
              r={3}
            />
          ))}
        </svg>
        {places.length > 0 && (
          <Reader
            name={name}
            count={places.length}
            at={pointer === null ? null : closest(places, pointer)}
            tell={readAt}
            onRead={at => setPointer(at === null ? null : places[at])}
          />
        )}
        {read.length > 0 && (
          <div
            className="jp-Hp-readouts"
            aria-hidden
            data-left={
              x(read[0].line.points[read[0].at].x) > width / 2 || undefined
            }
          >
            <span>{place(read[0].line.points[read[0].at].x)}</span>
            {read.map(({ line, at }) => (
              <span key={line.run} data-colour={line.run}>
                <i />
                {said(line.points[at].y)}
              </span>
            ))}
          </div>
        )}
        {empty && (
          <p className="jp-Hp-quiet jp-Hp-nocurve">
            {view.logarithmic
              ? trans.__('No value above 0.')
              : trans.__('No values.')}
          </p>
        )}
      </div>
    </section>
  );
}

function Curve(props: {
  line: ILine;
  x: (value: number) => number;
  y: (value: number) => number;
  smooths: boolean;
  stepped?: boolean;
  first: boolean;
}): JSX.Element {
  const { line, x, y, stepped } = props;
  const { points, smooth } = line;
  const path = (value: (at: number) => number) =>
    points
      .map((point, at) => {
        const right = x(point.x).toFixed(1);
        const up = y(value(at)).toFixed(1);
        return at === 0 || point.apart
          ? `M${right} ${up}`
          : stepped
            ? `H${right}V${up}`
            : `L${right} ${up}`;
      })
      .join('');
  const band = points.some(point => point.low < point.high) && !props.smooths;
  const raw = path(at => points[at].y);
  return (
    <g data-colour={line.run}>
      {band && (
        <path
          className="jp-Hp-band"
          d={`${path(at => points[at].high)}${points
            .map((_, at) => points.length - 1 - at)
            .map(
              at =>
                `L${x(points[at].x).toFixed(1)} ${y(points[at].low).toFixed(1)}`
            )
            .join('')}Z`}
        />
      )}
      {props.smooths && <path className="jp-Hp-raw" d={raw} />}
      {points.map(
        (point, at) =>
          isAlone(points, at) && (
            <circle
              key={at}
              className="jp-Hp-point"
              cx={x(point.x)}
              cy={y(point.y)}
              r={3}
            />
          )
      )}
      {points.length > 1 && (
        <path
          className="jp-Hp-curve"
          data-first={props.first || undefined}
          strokeDasharray={DASHES[line.run % DASHES.length] || undefined}
          d={props.smooths ? path(at => smooth[at]) : raw}
        />
      )}
    </g>
  );
}

/** Whether no line leads to a point, and none from it. */
function isAlone(points: readonly IPoint[], at: number): boolean {
  const ends = at === points.length - 1 || points[at + 1].apart;
  return !!ends && (at === 0 || !!points[at].apart);
}

/** Where the keyboard stops: at the values of the line that has the most of them in this part of the axis. */
function stops(lines: readonly ILine[], [from, to]: Range): number[] {
  return lines
    .map(line =>
      line.points.map(({ x }) => x).filter(x => from <= x && x <= to)
    )
    .reduce((one, other) => (other.length > one.length ? other : one), []);
}

function closest(places: readonly number[], value: number): number {
  const away = places.map(place => Math.abs(place - value));
  return away.indexOf(Math.min(...away));
}

export function tickText(value: number): string {
  const size = Math.abs(value);
  return size !== 0 && (size < 1e-4 || size >= 1e5)
    ? Number(value.toPrecision(3)).toExponential().replace('e+', 'e')
    : `${Number(value.toPrecision(4))}`;
}

/** The width of an element, as it changes. */
export function useWidth(box: React.RefObject<HTMLElement>): number {
  const [width, setWidth] = React.useState(480);
  React.useLayoutEffect(() => {
    const host = box.current!;
    const look = () => host.clientWidth && setWidth(host.clientWidth);
    look();
    const size = new ResizeObserver(look);
    size.observe(host);
    return () => size.disconnect();
  }, [box]);
  return width;
}
