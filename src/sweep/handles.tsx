import * as React from 'react';

import type { Range } from '../compare/curves';
import { useShared } from '../components/context';
import { IUpright, stopFrom } from './axes';
import { EDGE, heightOf, INNER } from './parallel';

/** A shorter drag is a click, which takes the range away. */
const LEAST_DRAG = 4;
/** What is dragged: a new range, or one of its ends. */
type Drag = { end: 0 | 1 | null; from: number; start: number };

/** Chooses a part of an axis: a drag along it, or two handles that keys move. */
export function Handles(props: {
  axis: IUpright;
  x: number;
  range: Range | null;
  onRange: (range: Range | null) => void;
}): JSX.Element {
  const { axis, range, onRange } = props;
  const { trans } = useShared();
  const drag = React.useRef<Drag | null>(null);
  const host = React.useRef<HTMLDivElement>(null);
  const now = range ?? axis.ends;

  const at = (event: React.PointerEvent): number => {
    const { top } = host.current!.getBoundingClientRect();
    const share = 1 - (event.clientY - top) / INNER;
    return axis.back(Math.min(1, Math.max(0, share)));
  };
  const begin = (event: React.PointerEvent, end: 0 | 1 | null) => {
    if (event.button === 0) {
      event.stopPropagation();
      event.currentTarget.setPointerCapture(event.pointerId);
      drag.current = { end, from: at(event), start: event.clientY };
    }
  };
  const move = (event: React.PointerEvent) => {
    if (drag.current) {
      const { end, from } = drag.current;
      const there = at(event);
      onRange(sorted(end === null ? from : now[1 - end], there));
      if (end !== null && (end === 0 ? there > now[1] : there < now[0])) {
        drag.current.end = end === 0 ? 1 : 0; // the ends have passed each other
      }
    }
  };
  const finish = (event: React.PointerEvent) => {
    const short =
      drag.current?.end === null &&
      Math.abs(event.clientY - drag.current.start) < LEAST_DRAG;
    drag.current = null;
    if (short) {
      onRange(null);
    }
  };
  const moved = (end: 0 | 1, to: number): void =>
    onRange(
      end === 0
        ? [Math.min(to, now[1]), now[1]]
        : [now[0], Math.max(to, now[0])]
    );
  const onKeyDown = (event: React.KeyboardEvent, end: 0 | 1) => {
    const moves: Record<string, () => void> = {
      ArrowUp: () => moved(end, stopFrom(axis, now[end], 1)),
      ArrowRight: () => moved(end, stopFrom(axis, now[end], 1)),
      ArrowDown: () => moved(end, stopFrom(axis, now[end], -1)),
      ArrowLeft: () => moved(end, stopFrom(axis, now[end], -1)),
      Home: () => moved(end, axis.ends[0]),
      End: () => moved(end, axis.ends[1]),
      Delete: () => onRange(null),
      Escape: () => onRange(null)
    };
    if (Object.hasOwn(moves, event.key)) {
      event.preventDefault();
      event.stopPropagation();
      moves[event.key]();
    }
  };

  return (
    <div
      ref={host}
      className="jp-Hp-handles"
      style={{ left: props.x, top: EDGE.top, height: INNER }}
      title={trans.__('Drag along the axis to choose a part of it')}
      onPointerDown={event => begin(event, null)}
      onPointerMove={move}
      onPointerUp={finish}
      onPointerCancel={finish}
    >
      {([1, 0] as const).map(end => (
        <div
          key={end}
          role="slider"
          tabIndex={0}
          className="jp-Hp-handle"
          data-end={end === 0 ? 'from' : 'to'}
          data-set={range !== null || undefined}
          style={{ top: heightOf(axis, now[end]) - EDGE.top }}
          aria-orientation="vertical"
          aria-label={
            end === 0
              ? trans.__('%1, from', axis.name)
              : trans.__('%1, to', axis.name)
          }
          aria-valuemin={0}
          aria-valuemax={100}
          aria-valuenow={Math.round(100 * axis.up(now[end]))}
          aria-valuetext={axis.said(now[end])}
          onPointerDown={event => begin(event, end)}
          onPointerMove={move}
          onPointerUp={finish}
          onPointerCancel={finish}
          onKeyDown={event => onKeyDown(event, end)}
        />
      ))}
    </div>
  );
}

function sorted(one: number, other: number): Range {
  return one < other ? [one, other] : [other, one];
}
