import { runIcon } from '@jupyterlab/ui-components';
import * as React from 'react';

import { frames } from '../derive';
import type { IJobView } from '../model/views';
import { useShared } from './context';
import { Button } from './parts';

/**
 * The program's error: its place, the traceback with the cell's line, and a button that runs the cell again.
 *
 * `folded`: the traceback is shown on request, where the kernel prints it, too.
 */
export function UserError(props: {
  job: IJobView;
  folded?: boolean;
}): JSX.Element | null {
  const { job, folded } = props;
  const { actions, trans } = useShared();
  const box = React.useRef<HTMLDivElement>(null);
  const calls = React.useRef<HTMLPreElement>(null);
  const { error } = job;
  React.useEffect(() => showRaised(calls.current), [error]);
  if (error === null) {
    return null;
  }
  const where =
    error.rank === null
      ? error.node
      : trans.__('rank %1 on %2', error.rank, error.node);
  const shown = frames(error);
  const traceback = (
    <pre ref={calls} tabIndex={0} aria-label={trans.__('Traceback')}>
      {shown.map((frame, index) => (
        <div
          key={index}
          data-cell={frame.cell || undefined}
          data-raised={frame.raised || undefined}
        >
          {frame.lines.join('\n')}
        </div>
      ))}
    </pre>
  );
  return (
    <div className="jp-Hp-error" ref={box}>
      <div className="jp-Hp-errorhead">
        <div role="alert">
          <span className="jp-Hp-strong">{error.type}</span>
          {error.message && `: ${error.message}`}
          <span className="jp-Hp-cause"> — {where}</span>
        </div>
        {actions.canRerun(job) && (
          <Button
            icon={runIcon}
            title={trans.__('Run the cell of %1 again', job.name)}
            onClick={() => actions.rerun(job, box.current)}
          >
            {trans.__('Rerun')}
          </Button>
        )}
      </div>
      {shown.length > 0 &&
        (folded ? (
          <details onToggle={() => showRaised(calls.current)}>
            <summary>{trans.__('Traceback')}</summary>
            {traceback}
          </details>
        ) : (
          traceback
        ))}
    </div>
  );
}

/** A long traceback begins at the line that the error came from. */
function showRaised(calls: HTMLPreElement | null): void {
  const raised = calls?.querySelector<HTMLElement>('[data-raised]');
  if (calls && raised) {
    calls.scrollTop = raised.offsetTop - calls.offsetTop;
  }
}
