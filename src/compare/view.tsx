import * as React from 'react';

import { useShared } from '../components/context';
import { Button } from '../components/parts';
import type { Axis, IView } from './curves';

/** How curves are drawn. */
export function ViewChoice(props: {
  view: IView;
  onChange: (view: IView) => void;
  /** The only axis, where there is no choice. */
  only?: Axis;
}): JSX.Element {
  const { view, onChange } = props;
  const { trans } = useShared();
  const id = React.useId();
  return (
    <>
      {props.only === undefined && (
        <div
          className="jp-Hp-choices"
          role="group"
          aria-label={trans.__('Axis')}
        >
          {(['step', 'time'] as const).map(axis => (
            <button
              key={axis}
              type="button"
              aria-pressed={view.axis === axis}
              onClick={() => onChange({ ...view, axis, range: null })}
            >
              {axis === 'step' ? trans.__('Step') : trans.__('Time')}
            </button>
          ))}
        </div>
      )}
      <label className="jp-Hp-row">
        <input
          type="checkbox"
          checked={view.logarithmic}
          onChange={() => onChange({ ...view, logarithmic: !view.logarithmic })}
        />
        {trans.__('Logarithmic')}
      </label>
      <span className="jp-Hp-row">
        <label htmlFor={id}>{trans.__('Smoothing')}</label>
        <input
          id={id}
          type="range"
          min={0}
          max={0.99}
          step={0.01}
          value={view.smoothing}
          aria-valuetext={view.smoothing.toFixed(2)}
          onChange={event =>
            onChange({ ...view, smoothing: event.target.valueAsNumber })
          }
        />
        <span className="jp-Hp-small">{view.smoothing.toFixed(2)}</span>
      </span>
      <RangeChoice view={view} onChange={onChange} />
    </>
  );
}

/** The part of the axis that is shown, as two numbers: what a drag does, without a mouse. */
export function RangeChoice(props: {
  view: IView;
  onChange: (view: IView) => void;
  /** Of the axis, with its unit. */
  name?: string;
}): JSX.Element {
  const { view, onChange, name } = props;
  const { trans } = useShared();
  const [text, setText] = React.useState(['', '']);
  React.useEffect(() => {
    setText(
      view.range ? view.range.map(value => `${+value.toFixed(1)}`) : ['', '']
    );
  }, [view.range]);
  const take = () => {
    const [from, to] = text.map(Number);
    if (text.every(Boolean) && from < to) {
      onChange({ ...view, range: [from, to] });
    } else if (!text.some(Boolean)) {
      onChange({ ...view, range: null });
    }
  };
  return (
    <span
      className="jp-Hp-row jp-Hp-range"
      role="group"
      aria-label={name ?? trans.__('The part of the axis')}
      title={name}
    >
      {[trans.__('From'), trans.__('to')].map((label, at) => (
        <label key={at} className="jp-Hp-row">
          {label}
          <input
            className="jp-Hp-select"
            inputMode="decimal"
            value={text[at]}
            onChange={event => {
              const after = [...text];
              after[at] = event.target.value;
              setText(after);
            }}
            onBlur={take}
            onKeyDown={event => event.key === 'Enter' && take()}
          />
        </label>
      ))}
      <Button
        disabled={view.range === null}
        title={trans.__('Show the whole axis; so does a double click')}
        onClick={() => onChange({ ...view, range: null })}
      >
        {trans._p('axis', 'All')}
      </Button>
    </span>
  );
}
