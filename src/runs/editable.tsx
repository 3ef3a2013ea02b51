import { editIcon } from '@jupyterlab/ui-components';
import * as React from 'react';

/** A text that becomes a field where it is clicked: Enter and leaving it save, Escape does not. */
export function EditableCell(props: {
  value: string;
  label: string;
  hint: string;
  focusable: boolean;
  onSave: (text: string) => Promise<boolean>;
  children: React.ReactNode;
}): JSX.Element {
  const [text, setText] = React.useState<string | null>(null);
  const [hasIcon, setHasIcon] = React.useState(false); // an icon in every row would make the table slow
  const button = React.useRef<HTMLButtonElement>(null);
  const back = React.useRef(false);
  React.useEffect(() => {
    if (text === null && back.current) {
      back.current = false;
      button.current?.focus({ preventScroll: true });
    }
  }, [text]);
  if (text === null) {
    return (
      <button
        ref={button}
        type="button"
        className="jp-Hp-editable"
        aria-label={`${props.label}: ${props.value || '–'}`}
        title={props.value || props.hint}
        tabIndex={props.focusable ? 0 : -1}
        onPointerEnter={() => setHasIcon(true)}
        onFocus={() => setHasIcon(true)}
        onClick={() => setText(props.value)}
      >
        {props.children}
        {hasIcon && (
          <span className="jp-Hp-edit">
            <editIcon.react tag="span" elementSize="small" />
          </span>
        )}
      </button>
    );
  }
  const save = async () => {
    setText(null);
    if (text.trim() !== props.value && !(await props.onSave(text.trim()))) {
      setText(text); // refused: what was typed is not lost
    }
  };
  return (
    <input
      className="jp-Hp-editing"
      aria-label={props.label}
      placeholder={props.hint}
      value={text}
      autoFocus
      onChange={event => setText(event.target.value)}
      onBlur={() => void save()}
      onKeyDown={event => {
        event.stopPropagation();
        if (event.key === 'Enter') {
          event.preventDefault(); // else the button that comes back is pressed by it
          back.current = true;
          void save();
        } else if (event.key === 'Escape') {
          back.current = true;
          setText(null);
        }
      }}
    />
  );
}
