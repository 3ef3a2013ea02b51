/** A small sweep as a server tells of it. */

import type { ITrial, ITrials } from '../../api';

export function trial(
  number: number,
  values: ITrial['values'],
  counted: number | null,
  fields: Partial<ITrial> = {}
): ITrial {
  return {
    number,
    job: `first-${number}-abcdefgh`,
    name: `first-${number}`,
    values,
    told: Object.fromEntries(
      Object.entries(values).map(([name, value]) => [name, `${value}`])
    ),
    state: counted === null ? 'pruned' : 'succeeded',
    step: 4,
    value_text: `${counted ?? '-'}`,
    counted,
    reason: '',
    ...fields
  };
}

export function found(fields: Partial<ITrials> = {}): ITrials {
  return {
    id: 'first-abcdefgh',
    sweep: true,
    sentence: '',
    metric: 'accuracy',
    maximize: true,
    metrics: ['accuracy'],
    wanted: 4,
    live: false,
    axes: [
      {
        kind: 'numbers',
        name: 'lr',
        low: 1e-4,
        high: 1,
        logarithmic: true,
        whole: false,
        at: null
      },
      { kind: 'words', name: 'kind', values: ['adam', 'sgd', null] }
    ],
    metric_axis: {
      kind: 'numbers',
      name: 'accuracy',
      low: 0.5,
      high: 0.9,
      logarithmic: false,
      whole: false,
      at: null
    },
    best: 'first-3-abcdefgh',
    trials: [
      trial(1, { lr: 1e-4, kind: 'adam' }, 0.5),
      trial(2, { lr: 0.01, kind: 'sgd' }, 0.7),
      trial(3, { lr: 1, kind: 'adam' }, 0.9),
      trial(4, { lr: 0.1, kind: null }, null)
    ],
    ...fields
  };
}
