import * as React from 'react';

/** A table that scrolls sideways in a box of its own, by keyboard too. */
export function Sheet(props: {
  label: string;
  children: React.ReactNode;
}): JSX.Element {
  return (
    <div
      className="jp-Hp-sheetbox"
      tabIndex={0}
      role="group"
      aria-label={props.label}
    >
      <table className="jp-Hp-sheet jp-Hp-sides">{props.children}</table>
    </div>
  );
}
