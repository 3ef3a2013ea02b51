import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import type { ISharing } from '../api';
import { useChanges, useShared, useTopics } from '../components/context';
import { sharingOf } from './source';

/** What is known of the sharing of the store; null until the server has said it. */
export function useSharing(): ISharing | null {
  const { model } = useShared();
  useTopics('connection');
  const source = sharingOf(model);
  useChanges(source);
  const online = model.connection === 'online';
  React.useEffect(() => {
    if (online) {
      void source.look();
    }
  }, [source, online]);
  return source.found;
}

/** What the person may do. */
function roleText(found: ISharing, trans: TranslationBundle): string {
  switch (found.role) {
    case 'owner':
      return trans.__('all rights are yours');
    case 'operate':
      return trans.__('you may operate');
    default:
      return trans.__('you may read');
  }
}

/** What the person may do, and with whom it is shared. */
export function rightsText(found: ISharing, trans: TranslationBundle): string {
  return found.role === 'owner' && !found.read
    ? trans.__('only you can see and operate these jobs')
    : `${roleText(found, trans)} · ${sharedText(found, trans)}`;
}

/** With whom it is shared. */
function sharedText(found: ISharing, trans: TranslationBundle): string {
  const { read, operate } = found;
  return !read
    ? trans.__('private')
    : !operate
      ? trans.__('the group %1 reads', read)
      : operate === read
        ? trans.__('the group %1 reads and operates', read)
        : trans.__('the group %1 reads, %2 operates', read, operate);
}

/** Whose a job is, in one quiet line. */
export function Belongs(): JSX.Element | null {
  const { trans } = useShared();
  const found = useSharing();
  return found ? (
    <p className="jp-Hp-quiet jp-Hp-belongs" title={found.store}>
      {trans.__('Owner: %1', found.owner)} · {rightsText(found, trans)}
    </p>
  ) : null;
}
