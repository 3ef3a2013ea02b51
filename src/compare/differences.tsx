import * as React from 'react';

import type { IComparison } from '../api';
import { useShared } from '../components/context';
import { Sheet } from '../components/sheet';
import { TERMINAL_STATES } from '../model/events';
import { sideBySide } from './curves';

/** What differs of parameters and environment, and the last values of all that was logged. */
export function Differences({ found }: { found: IComparison }): JSX.Element {
  const { trans } = useShared();
  const titles: Record<string, string> = {
    parameters: trans.__('Parameters'),
    code: trans.__('Code, by its digests'),
    environment: trans.__('Environment'),
    packages: trans.__('Packages')
  };
  return (
    <>
      <section>
        <h3 className="jp-Hp-label">
          {found.runs.every(run => TERMINAL_STATES.has(run.state))
            ? trans.__('Values at the end')
            : trans.__('Values now')}
        </h3>
        <Table found={found} rows={found.metrics} marks />
      </section>
      {Object.keys(titles).map(part => {
        const rows = found.differences[part] ?? {};
        const withheld =
          !found.environments && ['environment', 'packages'].includes(part);
        const same = found.equal[part];
        return (
          <section key={part}>
            <h3 className="jp-Hp-label">{titles[part]}</h3>
            {Object.keys(rows).length > 0 && (
              <Table found={found} rows={rows} />
            )}
            <p className="jp-Hp-quiet">
              {withheld
                ? trans.__(
                    'What is known of environments is shown to the owner of this server.'
                  )
                : Object.keys(rows).length === 0 && !same
                  ? trans.__('Nothing is known.')
                  : Object.keys(rows).length === 0
                    ? trans.__('No differences. Equal: %1', same)
                    : same && trans.__('Equal: %1', same)}
            </p>
          </section>
        );
      })}
    </>
  );
}

/** Values of all runs side by side. */
function Table(props: {
  found: IComparison;
  rows: Record<string, string[]>;
  /** Set off rows whose values differ. */
  marks?: boolean;
}): JSX.Element {
  const { found, rows } = props;
  const { trans } = useShared();
  return (
    <Sheet label={trans.__('Table')}>
      <thead>
        <tr>
          <td />
          {found.runs.map((run, at) => (
            <th key={run.id} scope="col" data-colour={at} title={run.id}>
              <i />
              {run.name}
            </th>
          ))}
        </tr>
      </thead>
      <tbody>
        {Object.entries(rows).map(([name, values]) => (
          <tr
            key={name}
            data-differs={
              (props.marks && new Set(values).size > 1) || undefined
            }
          >
            <th scope="row">{name}</th>
            {values.map((value, at) => (
              <td key={at}>{value}</td>
            ))}
          </tr>
        ))}
      </tbody>
    </Sheet>
  );
}

/** The source of the first run beside that of each other. */
export function Sources({ found }: { found: IComparison }): JSX.Element {
  const { trans } = useShared();
  const first = found.runs[0];
  return (
    <section>
      <h3 className="jp-Hp-label">{trans.__('Code')}</h3>
      {found.runs.slice(1).map(other => (
        <details key={other.id} open={found.runs.length === 2}>
          <summary>
            {other.source_difference.length === 0
              ? trans.__('%1 has the same code as %2', other.id, first.id)
              : trans.__('%1 beside %2', first.id, other.id)}
          </summary>
          {other.source_difference.length > 0 && (
            <Sides lines={other.source_difference} label={other.id} />
          )}
        </details>
      ))}
    </section>
  );
}

function Sides(props: { lines: string[]; label: string }): JSX.Element {
  const { trans } = useShared();
  return (
    <div
      className="jp-Hp-diff"
      tabIndex={0}
      role="group"
      aria-label={trans.__('Differences to %1', props.label)}
    >
      {sideBySide(props.lines).map((row, at) =>
        row.kind === 'place' ? (
          <div key={at} className="jp-Hp-diffplace">
            {row.left}
          </div>
        ) : (
          <React.Fragment key={at}>
            <code data-side={row.kind === 'changed' ? 'gone' : undefined}>
              {row.left}
            </code>
            <code data-side={row.kind === 'changed' ? 'come' : undefined}>
              {row.right}
            </code>
          </React.Fragment>
        )
      )}
    </div>
  );
}
