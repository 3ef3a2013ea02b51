import * as React from 'react';

import { draw, find } from '../../__tests__/page';
import type { IComparison } from '../../api';
import { Differences } from '../differences';

it.each([
  ['succeeded', 'Values at the end'],
  ['running', 'Values now']
])('says of a run that is %s: %s', (state, title) => {
  const runs = ['failed', state].map((each, at) => ({
    id: `run-${at}`,
    name: 'run',
    state: each
  }));
  const found = {
    runs,
    metrics: { loss: ['1', '2'] },
    differences: {},
    equal: {},
    environments: true
  } as unknown as IComparison;
  draw(<Differences found={found} />);
  expect(find('h3').textContent).toBe(title);
});
