import * as React from 'react';

import { draw, find } from '../../__tests__/page';
import { IIncident, newJobView } from '../../model/views';
import LossCurve from '../lossCurve';

jest.mock(
  'uplot',
  () =>
    class {
      static paths: object = {};
      setData() {}
      destroy() {}
    }
);

it.each([
  [0, '0 incidents marked'],
  [1, '1 incident marked'],
  [2, '2 incidents marked']
])('says of %s incidents: %s', (count, words) => {
  const incident = { started_s: 0, resumed_s: 1 } as IIncident;
  const job = newJobView('tinylm-abcdefgh');
  job.step = 2;
  job.loss = 1.5;
  job.history = [
    [1, 2, 0, 2],
    [2, 1.5, 1, 2]
  ] as typeof job.history;
  job.incidents = Array.from({ length: count }, () => incident);
  draw(<LossCurve job={job} height={100} />);
  expect(find('[role=img]').getAttribute('aria-label')).toBe(
    `Loss by step: 1.5000 at step 2, ${words}`
  );
});
