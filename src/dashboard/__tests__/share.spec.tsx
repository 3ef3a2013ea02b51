import * as React from 'react';

import { draw, host, shared } from '../../__tests__/page';
import { JobHeader } from '../../components/job';
import { newJobView } from '../../model/views';
import { Share } from '../share';

it('offers nothing of a deleted job, and says that it was deleted', () => {
  const job = { ...newJobView('a-job'), state: 'stopped' as const };
  const view = (deleted: boolean) => {
    const given = { ...job, deleted };
    draw(
      <>
        <JobHeader job={given} />
        <Share job={given} />
      </>,
      shared()
    );
    const open = host.querySelectorAll('button:not(:disabled)');
    return { words: host.textContent, open: open.length };
  };
  expect(view(false).words).not.toContain('deleted');
  expect(view(false).open).toBe(4);
  expect(view(true).words).toContain('This job was deleted.');
  expect(view(true).open).toBe(0);
});
