import { folderIcon, refreshIcon } from '@jupyterlab/ui-components';
import * as React from 'react';

import { ApiError, IMount } from '../api';
import { useShared, useTopics } from '../components/context';
import { Button, mountLabel, Section, StateChip } from '../components/parts';
import { formatBytes } from '../format';
import { said } from '../said/said';
import { SharingRow } from '../sharing/row';

/** Mounts change rarely, and each request to a mount costs a process on the server. */
const ASK_AGAIN_MS = 30_000;

/** The mounts of the cluster, with health and space. */
export function StorageSection(): JSX.Element {
  const { model, trans } = useShared();
  useTopics('connection');
  const online = model.connection === 'online';
  const [mounts, setMounts] = React.useState<readonly IMount[] | null>(null);
  const [problem, setProblem] = React.useState('');
  const shown = React.useRef(true);
  const ask = React.useCallback(async () => {
    try {
      const found = await model.api.mounts();
      if (shown.current) {
        setMounts(found);
        setProblem('');
      }
    } catch (error) {
      if (shown.current && error instanceof ApiError) {
        setProblem(error.message);
      }
    }
  }, [model]);
  React.useEffect(() => {
    shown.current = true;
    if (online) {
      void ask();
      const timer = setInterval(() => {
        if (!document.hidden) {
          void ask();
        }
      }, ASK_AGAIN_MS);
      return () => {
        shown.current = false;
        clearInterval(timer);
      };
    }
  }, [online, ask]);
  return (
    <Section
      title={trans.__('Storage')}
      count={mounts?.length}
      actions={
        <Button
          icon={refreshIcon}
          title={trans.__('Refresh the mounts')}
          onClick={ask}
        />
      }
    >
      {problem && (
        <p className="jp-Hp-quiet" role="status">
          {said(problem, trans)}
        </p>
      )}
      <SharingRow />
      {mounts?.map(mount => (
        <Mount key={mount.name} mount={mount} />
      ))}
    </Section>
  );
}

function Mount({ mount }: { mount: IMount }): JSX.Element {
  const { actions, trans } = useShared();
  const { total_bytes: total, free_bytes: free } = mount;
  return (
    <div className="jp-Hp-mount">
      <div className="jp-Hp-row">
        <span
          className="jp-Hp-strong"
          title={mount.notebook_path || mount.source}
        >
          {mount.name}
        </span>
        <span className="jp-Hp-small">
          {mount.driver}
          {mount.read_only && `, ${trans.__('read-only')}`}
        </span>
        <span className="jp-Hp-right">
          <StateChip
            state={mount.state}
            label={mountLabel(mount.state, trans)}
            trans={trans}
            title={said(mount.reason, trans)}
          />
          {['ready', 'remote'].includes(mount.state) && (
            <Button
              icon={folderIcon}
              title={trans.__('Show the files of %1', mount.name)}
              onClick={() => actions.showFiles(mount.name)}
            />
          )}
        </span>
      </div>
      {total !== null && free !== null && total > 0 && (
        <div className="jp-Hp-row">
          <div
            className="jp-Hp-space"
            role="meter"
            aria-label={trans.__('Space used on %1', mount.name)}
            aria-valuemin={0}
            aria-valuemax={100}
            aria-valuenow={Math.round((1 - free / total) * 100)}
          >
            <div style={{ width: `${(1 - free / total) * 100}%` }} />
          </div>
          <span className="jp-Hp-small">
            {trans.__('%1 free', formatBytes(free))}
          </span>
        </div>
      )}
      {['hangs', 'broken'].includes(mount.state) && (
        <p>{said(mount.reason, trans)}</p>
      )}
    </div>
  );
}
