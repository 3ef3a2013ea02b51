import { node } from '../../__tests__/page';
import { newClusterView } from '../../model/views';
import {
  bounds,
  capacity,
  including,
  initial,
  kept,
  needed,
  offered,
  outlook,
  problems,
  settled
} from '../choice';
import { NOTHING } from '../line';

it('begins with the line of the cell, else with the last choice, else with the usual nodes', () => {
  expect(initial('%%hyperpod --nodes 3', { nodes: 8 }, 4).nodes).toBe(3);
  expect(initial('', { nodes: 8, elastic: '2:8' }, 4)).toEqual({
    ...NOTHING,
    nodes: 8,
    elastic: '2:8'
  });
  expect(initial('', {}, 4)).toEqual({ ...NOTHING, nodes: 4 });
  expect(initial(`%%hyperpod 'x`, {}, 4).nodes).toBe(4);
});

it('takes nothing from settings that are of another type', () => {
  const wrong = { nodes: '8', slurm: 3, name: 'x' } as any;
  expect(initial('', wrong, 4)).toEqual({ ...NOTHING, nodes: 4 });
});

it('keeps nothing of one cell, and nothing that may be secret', () => {
  const choice = {
    ...NOTHING,
    nodes: 2,
    name: 'x',
    push: 'a',
    other: '--env A=b'
  };
  expect(JSON.stringify(kept(choice))).not.toMatch(/x|a,|--env/);
  expect(initial('', kept(choice), 4)).toEqual({ ...NOTHING, nodes: 2 });
});

it('writes the backend where it is not the usual one', () => {
  const slurm = { partition: 'gpu' };
  const on = (backend: string, usual: string) =>
    settled({ ...NOTHING, backend, slurm }, usual);
  expect(on('', 'local')).toEqual(NOTHING);
  expect(on('local', 'local')).toEqual(NOTHING);
  expect(on('slurm', 'local')).toEqual({ ...NOTHING, backend: 'slurm', slurm });
  expect(on('', 'slurm')).toEqual({ ...NOTHING, slurm });
  expect(on('local', 'slurm')).toEqual({ ...NOTHING, backend: 'local' });
});

it('knows ranges', () => {
  expect(bounds('2:4')).toEqual([2, 4]);
  expect(bounds('2:8:2')).toBeNull();
  expect(including('2:4', 6)).toBe('2:6');
  expect(including('2:4', 1)).toBe('1:4');
  expect(including('1,2,4', 6)).toBe('1,2,4');
  expect([1, 2, 5].map(offered)).toEqual(['1:1', '1:2', '2:5']);
});

it.each([
  [{ nodes: 0 }, { nodes: 'nodes' }],
  [{ nodes: 2, elastic: '3:4' }, { elastic: 'outside' }],
  [{ nodes: 2, elastic: '4:2' }, { elastic: 'range' }],
  [{ nodes: 2, elastic: '0:2' }, { elastic: 'range' }],
  [{ name: 'a b' }, { name: 'name' }],
  [{ priority: 1001 }, { priority: 'priority' }],
  [{ spares: -1 }, { spares: 'spares' }],
  [{ python: 'python3' }, { python: 'python' }],
  [{ nodes: 2, elastic: '1:2', name: 'a', priority: 0, python: '~/x' }, {}]
])('finds what is wrong: %j', (fields, found) => {
  expect(problems({ ...NOTHING, ...fields } as any)).toEqual(found);
});

describe('a cluster', () => {
  const cluster = {
    ...newClusterView(),
    state: 'ready',
    nodes: [
      node(0),
      node(1, { state: 'busy' }),
      node(2, { state: 'lost' }),
      node(3, { spare: true })
    ]
  };

  it('has nodes', () => {
    expect(capacity(cluster)).toEqual({ total: 2, free: 1, spares: 1 });
    expect(capacity(null)).toBeNull();
    expect(capacity({ ...cluster, state: 'stopped' })).toBeNull();
  });

  it.each([
    [{ nodes: 2 }, 'now'],
    [{ nodes: 3 }, 'waits'],
    [{ nodes: 4 }, 'never'],
    [{ nodes: 4, elastic: '1:4' }, 'fewer'],
    [{ elastic: '3:4' }, 'waits']
  ])('lets a job begin: %j', (fields, expected) => {
    const choice = { ...NOTHING, ...fields };
    expect(outlook(choice, capacity(cluster)!)).toBe(expected);
  });

  it('is started large enough', () => {
    expect(needed({ ...NOTHING, nodes: 2 }, 4)).toBe(4);
    expect(needed({ ...NOTHING, nodes: 2, elastic: '2:9' }, 4)).toBe(9);
    expect(needed({ ...NOTHING, nodes: 999 }, 4)).toBe(64);
  });
});
