/** The fields of a form: each has a label, a sentence of help, and says what is wrong with it. */

import * as React from 'react';

interface IField {
  label: string;
  help?: React.ReactNode;
  /** What is wrong; empty where nothing is. */
  problem?: string;
}

/** The frame of a field: its name, what is shown or chosen, and below it the help, or what is wrong. */
export function Frame(props: {
  name: React.ReactNode;
  help: React.ReactNode;
  problem?: string;
  /** Of the help. */
  id?: string;
  /** The name stands behind. */
  tick?: boolean;
  children: React.ReactNode;
}): JSX.Element {
  const { name, help, problem, id, tick, children } = props;
  return (
    <div
      className="jp-Hp-field"
      data-wrong={!!problem || undefined}
      data-tick={tick || undefined}
    >
      {!tick && name}
      {children}
      {tick && name}
      <div id={id} className="jp-Hp-fieldhelp">
        {problem ? (
          <span className="jp-Hp-wrong jp-mod-error">{problem}</span>
        ) : (
          help
        )}
      </div>
    </div>
  );
}

/** Draws a control with its label and its help. */
function Field(
  props: IField & {
    tick?: boolean;
    draw: (ids: {
      id: string;
      'aria-describedby': string;
      'aria-invalid': boolean | undefined;
    }) => React.ReactNode;
  }
): JSX.Element {
  const id = React.useId();
  const told = `${id}-told`;
  return (
    <Frame
      name={<label htmlFor={id}>{props.label}</label>}
      help={props.help}
      problem={props.problem}
      id={told}
      tick={props.tick}
    >
      {props.draw({
        id,
        'aria-describedby': told,
        'aria-invalid': !!props.problem || undefined
      })}
    </Frame>
  );
}

export function NumberField(
  props: IField & {
    value: number | null;
    min: number;
    max: number;
    placeholder?: string;
    onChange: (value: number | null) => void;
  }
): JSX.Element {
  const { value, min, max, placeholder, onChange } = props;
  return (
    <Field
      {...props}
      draw={ids => (
        <input
          {...ids}
          type="number"
          className="jp-mod-styled"
          min={min}
          max={max}
          step={1}
          placeholder={placeholder}
          value={value ?? ''}
          onChange={event => {
            const number = event.target.valueAsNumber;
            onChange(Number.isNaN(number) ? null : number);
          }}
        />
      )}
    />
  );
}

export function TextField(
  props: IField & {
    value: string;
    placeholder?: string;
    /** Words that are offered. */
    choices?: readonly string[];
    onChange: (value: string) => void;
  }
): JSX.Element {
  const { value, placeholder, choices, onChange } = props;
  const list = React.useId();
  return (
    <Field
      {...props}
      draw={ids => (
        <>
          <input
            {...ids}
            type="text"
            className="jp-mod-styled"
            spellCheck={false}
            autoComplete="off"
            list={choices?.length ? list : undefined}
            placeholder={placeholder}
            value={value}
            onChange={event => onChange(event.target.value)}
          />
          {choices?.length ? (
            <datalist id={list}>
              {choices.map(choice => (
                <option key={choice} value={choice} />
              ))}
            </datalist>
          ) : null}
        </>
      )}
    />
  );
}

export function SelectField(
  props: IField & {
    value: string;
    options: readonly { value: string; label: string; disabled?: boolean }[];
    onChange: (value: string) => void;
  }
): JSX.Element {
  const { value, options, onChange } = props;
  return (
    <Field
      {...props}
      draw={ids => (
        <select
          {...ids}
          className="jp-mod-styled"
          value={value}
          onChange={event => onChange(event.target.value)}
        >
          {options.map(option => (
            <option
              key={option.value}
              value={option.value}
              disabled={option.disabled}
            >
              {option.label}
            </option>
          ))}
        </select>
      )}
    />
  );
}

/** A box to tick, with its label behind it. */
export function TickField(
  props: IField & { value: boolean; onChange: (value: boolean) => void }
): JSX.Element {
  return (
    <Field
      {...props}
      tick
      draw={ids => (
        <input
          {...ids}
          type="checkbox"
          checked={props.value}
          onChange={event => props.onChange(event.target.checked)}
        />
      )}
    />
  );
}
