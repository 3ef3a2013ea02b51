/** What people hear who do not see the page. */

import { nullTranslator } from '@jupyterlab/translation';
import { Signal } from '@lumino/signaling';

import { announceStates } from '../announce';
import type { HyperpodModel } from '../model/model';

it('a new state of a job or the cluster is told once, and nothing else', () => {
  const model = {
    jobs: [{ id: 'a-1', name: 'a', state: 'running' }],
    jobsKnown: true,
    cluster: { state: 'running' },
    changed: undefined as any
  };
  model.changed = new Signal(model);
  const trans = nullTranslator.load('jupyter_hyperpod');
  const told = announceStates(model as unknown as HyperpodModel, trans);
  const heard = document.querySelector<HTMLElement>('[role=status]')!;
  const emit = () => model.changed.emit(new Set(['jobs', 'cluster']));
  emit();
  expect(heard.textContent).toBe('');

  model.jobs[0] = { ...model.jobs[0], state: 'recovering' };
  model.jobs.push({ id: 'b-2', name: 'b', state: 'pending' });
  emit();
  expect(heard.textContent).toBe('a: Recovering');
  heard.textContent = '';
  emit();
  expect(heard.textContent).toBe('');

  model.cluster.state = 'lost';
  model.jobs[1] = { ...model.jobs[1], state: 'failed' };
  emit();
  expect(heard.textContent).toBe('Cluster: Lost. b: Failed');
  told.dispose();
  expect(document.querySelector('[role=status]')).toBeNull();
});
