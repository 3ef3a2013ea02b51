import * as React from 'react';

import { Part } from '../components/boundary';
import { useShared } from '../components/context';
import type { IJobView } from '../model/views';
import { said } from '../said/said';
import { useAccount } from './account';
import { Curves } from './curves';
import { Waterfall } from './waterfall';

/** What is known of a job only from its whole journal. */
export function Whole({ job }: { job: IJobView }): JSX.Element {
  const { trans } = useShared();
  const place = React.useRef<HTMLDivElement>(null);
  const { answer: account, problem } = useAccount(job, place);
  return (
    <div className="jp-Hp-whole" ref={place}>
      {problem && (
        <p className="jp-Hp-banner" role="status">
          {said(problem, trans)}
        </p>
      )}
      {account && (
        <>
          <Part name={trans.__('Where the time went')}>
            <Waterfall account={account} />
          </Part>
          <Part name={trans.__('The curves')}>
            <Curves job={job} account={account} />
          </Part>
        </>
      )}
    </div>
  );
}
