import * as React from 'react';

import { useShared } from './context';

/** Page Up and Page Down pass this part of the values. */
const LEAP = 1 / 10;

/** Reads the values of a chart by keyboard, as the pointer does over it; it lies over the drawing. */
export function Reader(props: {
  /** Of the chart. */
  name: string;
  /** How many places have values; at least one. */
  count: number;
  /** The place that is read; null for none. */
  at: number | null;
  tell: (at: number) => string;
  onRead: (at: number | null) => void;
}): JSX.Element {
  const { name, count, tell, onRead } = props;
  const { trans } = useShared();
  const last = count - 1;
  const at = Math.min(props.at ?? last, last);
  const leap = Math.max(1, Math.round(count * LEAP));
  const onKeyDown = (event: React.KeyboardEvent) => {
    const places: Record<string, number> = {
      ArrowLeft: at - 1,
      ArrowDown: at - 1,
      ArrowRight: at + 1,
      ArrowUp: at + 1,
      PageDown: at - leap,
      PageUp: at + leap,
      Home: 0,
      End: last
    };
    if (Object.hasOwn(places, event.key)) {
      event.preventDefault();
      event.stopPropagation();
      onRead(Math.max(0, Math.min(last, places[event.key])));
    }
  };
  return (
    <div
      role="slider"
      tabIndex={0}
      className="jp-Hp-reader"
      aria-label={trans.__('%1, value by value', name)}
      aria-valuemin={0}
      aria-valuemax={last}
      aria-valuenow={at}
      aria-valuetext={tell(at)}
      onFocus={() => onRead(at)}
      onBlur={() => onRead(null)}
      onKeyDown={onKeyDown}
    />
  );
}
