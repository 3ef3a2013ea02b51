import * as React from 'react';

import { useShared } from '../components/context';
import { Button } from '../components/parts';
import { said } from '../said/said';
import { rightsText, useSharing } from './words';

/** The store of the jobs: whose it is, who else sees it, and the button that changes that. */
export function SharingRow(): JSX.Element | null {
  const { actions, trans } = useShared();
  const found = useSharing();
  return found ? (
    <div className="jp-Hp-mount jp-Hp-sharing">
      <div className="jp-Hp-row">
        <span className="jp-Hp-strong" title={found.store}>
          {trans.__('Jobs of %1', found.owner)}
        </span>
        {found.role === 'owner' && (
          <span className="jp-Hp-right">
            <Button
              title={trans.__('Let others see your jobs, or operate them')}
              onClick={() => actions.share(found)}
            >
              {trans.__('Share…')}
            </Button>
          </span>
        )}
      </div>
      <p>{rightsText(found, trans)}</p>
      {found.notes.map(note => (
        <p key={note}>{said(note, trans)}</p>
      ))}
    </div>
  ) : null;
}
