import type { IRun } from '../../api';

/** A run that ended well, but for these fields. */
export function run(id: string, fields: Partial<IRun> = {}): IRun {
  return {
    id,
    name: id.split('-')[0],
    person: 'ada',
    notebook: '/work/study.ipynb',
    state: 'succeeded',
    reason: 'every rank finished',
    priority: 0,
    queue: '',
    backend: 'local',
    nodes: 4,
    step: 100,
    steps: 100,
    loss: 0.5,
    metrics: {},
    incidents: 0,
    goodput: 0.99,
    submitted_s: 1000,
    started_s: 1001,
    ended_s: 1061,
    tags: [],
    note: '',
    archived: false,
    code: 'abc0',
    sweep: '',
    parameters: { seed: '0' },
    ...fields
  };
}
