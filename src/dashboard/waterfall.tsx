import * as React from 'react';

import type { IAccount } from '../api';
import { useShared } from '../components/context';
import { formatDuration } from '../format';
import { said } from '../said/said';

/** Causes that have a row each; the rest share one. */
const SHOWN = 9;

/** From all of the members' time down to that in committed steps: what took the rest, by cause. */
export function Waterfall({
  account
}: {
  account: IAccount;
}): JSX.Element | null {
  const { trans } = useShared();
  const { goodput, useful, spare } = account;
  if (goodput === null) {
    return null;
  }
  const words: Record<string, string> = {
    'start, until the first step': trans.__('start, until the first step'),
    'between the steps': trans.__('between the steps'),
    'after the last step': trans.__('after the last step'),
    'joining and leaving': trans.__('joining and leaving'),
    checkpoints: trans.__('checkpoints'),
    'steps computed again': trans.__('steps computed again'),
    'other causes': trans.__('other causes')
  };
  const lost = account.lost.map(({ cause, node_seconds }) => ({
    name: words[cause] ?? said(cause, trans),
    seconds: node_seconds
  }));
  const rest = lost.splice(SHOWN);
  if (rest.length) {
    lost.push({
      name: words['other causes'],
      seconds: rest.reduce((sum, one) => sum + one.seconds, 0)
    });
  }
  const total = lost.reduce((sum, one) => sum + one.seconds, useful);
  let left = total;
  const rows = [
    { name: trans.__('All of the members’ time'), kind: 'all', seconds: total },
    ...lost.map(one => ({ ...one, kind: 'lost' })),
    { name: trans.__('In committed steps'), kind: 'useful', seconds: useful }
  ].map(row => {
    left -= row.kind === 'lost' ? row.seconds : 0;
    return { ...row, from: row.kind === 'lost' ? left / total : 0 };
  });
  return (
    <figure className="jp-Hp-waterfall">
      <figcaption className="jp-Hp-row">
        <span className="jp-Hp-label">{trans.__('Where the time went')}</span>
        <span className="jp-Hp-right jp-Hp-small">
          {trans.__('Goodput %1', percent(goodput))}
        </span>
      </figcaption>
      <table aria-label={trans.__('Where the time went')}>
        <tbody>
          {rows.map(({ name, kind, seconds, from }, at) => (
            <tr key={at} data-kind={kind}>
              <th scope="row" title={name}>
                {name}
              </th>
              <td aria-hidden>
                <span
                  style={{
                    marginInlineStart: `${from * 100}%`,
                    width: `${(seconds / total) * 100}%`
                  }}
                />
              </td>
              <td>{percent(seconds / total)}</td>
              <td title={trans.__('Of all nodes together')}>
                {formatDuration(seconds)}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      <p className="jp-Hp-small">
        {[
          spare > 0 &&
            trans.__('Spares stood by for %1 besides.', formatDuration(spare)),
          account.thinned &&
            trans.__(
              'Of older steps the journal keeps some: what was lost between them, except in incidents, is not known.'
            )
        ]
          .filter(Boolean)
          .join(' ')}
      </p>
    </figure>
  );
}

function percent(part: number): string {
  const fine = (0 < part && part < 0.1) || (0.99 < part && part < 1);
  return `${(100 * part).toFixed(fine ? 2 : 1)} %`;
}
