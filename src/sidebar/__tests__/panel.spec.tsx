/** The panel as a person meets it: what a row, a tile and an empty panel say. */

import * as React from 'react';
import { act } from 'react';

import {
  click,
  draw,
  fill,
  find,
  host,
  node,
  shared
} from '../../__tests__/page';
import type { Actions } from '../../actions';
import type { IStanding } from '../../api';
import type { IShared } from '../../components/context';
import { Failure, JobHeader } from '../../components/job';
import type { HyperpodModel } from '../../model/model';
import {
  IHealth,
  IJobView,
  INodeView,
  newClusterView,
  newJobView
} from '../../model/views';
import { ClusterSection } from '../cluster';
import { JobsSection } from '../jobs';
import { Room } from '../sidebar';

/** What the panel reads of a model with these jobs. */
function panel(
  jobs: IJobView[],
  actions: Partial<Actions> = {},
  model: Partial<HyperpodModel> = {}
): IShared {
  const read = {
    jobs,
    olderJobs: 0,
    jobsKnown: true,
    activeJobs: jobs.filter(job => job.state === 'running'),
    watch: () => ({ isDisposed: false, dispose: () => undefined }),
    summary: (id: string) => jobs.find(job => job.id === id) ?? null,
    job: (id: string) => jobs.find(job => job.id === id) ?? null,
    ...model
  };
  return shared(read as Partial<HyperpodModel>, actions);
}

function job(fields: Partial<IJobView> = {}): IJobView {
  return {
    ...newJobView('tinylm-abcdefgh'),
    name: 'tinylm',
    state: 'running',
    ...fields
  };
}

describe('the list of jobs', () => {
  it('shows more of the jobs that ended when it is asked to', async () => {
    const ended = Array.from({ length: 7 }, (_, number) =>
      job({ id: `tinylm-abcdefg${number}`, state: 'succeeded' })
    );
    const loadOlder = jest.fn().mockResolvedValue(undefined);
    draw(<JobsSection />, panel(ended, {}, { olderJobs: 90, loadOlder }));
    expect(host.querySelectorAll('.jp-Hp-job')).toHaveLength(5);
    expect(host.textContent).toContain('92 older jobs are not shown.');
    await click('.jp-Hp-more button');
    expect(host.querySelectorAll('.jp-Hp-job')).toHaveLength(7);
    expect(loadOlder).toHaveBeenCalledTimes(1);
    expect(host.textContent).toContain('90 older jobs are not shown.');
  });

  it('says why a job runs on fewer nodes than it wants', () => {
    const reason = 'runs on 2 nodes and waits for 1 more: none is free';
    const waits = 'none is free';
    draw(<JobsSection />, panel([job({ step: 4, reason, waits })]));
    expect(host.textContent).toContain(reason);
  });

  it('draws the losses of a job that is not followed', () => {
    const { history, ...rest } = job({ step: 4 });
    const listed = {
      ...rest,
      trend: [
        [2, 3],
        [4, 2.5]
      ]
    } as unknown as IJobView;
    draw(<JobsSection />, panel([listed]));
    expect(history).toEqual([]);
    expect(find('.jp-Hp-spark path').getAttribute('d')).toContain('M');
  });
});

describe('jobs of one name', () => {
  it('are told apart by their ids, others need none', () => {
    const jobs = [
      job({ id: 'longa-z4ba4hm7', name: 'longa' }),
      job({ id: 'longa-x5xumxz3', name: 'longa' }),
      job()
    ];
    draw(<JobsSection />, panel(jobs));
    const ids = [...host.querySelectorAll('.jp-Hp-job')].map(
      row => row.querySelector('.jp-Hp-id')?.textContent
    );
    expect(ids).toEqual(['z4ba4hm7', 'x5xumxz3', undefined]);
  });
});

describe('a full disk', () => {
  it('is told above everything, for as long as it lasts', () => {
    const room = 'the disk of the store is full; what is shown may be old';
    draw(<Room />, panel([], {}, { cluster: { ...newClusterView(), room } }));
    expect(find('[role="alert"]').textContent).toBe(room);
    draw(<Room />, panel([], {}, { cluster: newClusterView() }));
    expect(host.textContent).toBe('');
  });
});

describe('a row of a failed job', () => {
  const error = {
    member: 'node-1.a',
    node: 'node-1',
    rank: 0,
    type: 'ValueError',
    message: 'boom',
    traceback: ['ValueError: boom']
  };
  const reason = 'rank 0: ValueError: boom';
  const often = (text: string) => host.innerHTML.split(text).length - 1;

  it('says the error of its program once, before any step', () => {
    draw(<JobsSection />, panel([job({ state: 'failed', reason, error })]));
    expect(host.textContent!.split('boom')).toHaveLength(2);
    expect(host.querySelector('.jp-Hp-joberror')!.textContent).toBe(
      'ValueError: boom'
    );
    expect(host.querySelector('.jp-Hp-chip')!.getAttribute('title')).toBe(null);
  });

  it('has nothing between its name and its error, and no progress on its card', () => {
    const failed = job({ state: 'failed', reason, error });
    draw(
      <>
        <JobsSection />
        <JobHeader job={failed} />
      </>,
      panel([failed])
    );
    expect(find('.jp-Hp-job .jp-Hp-small:not(.jp-Hp-right)').innerHTML).toBe(
      ''
    );
    expect(host.querySelector('[role="progressbar"]')).toBeNull();
  });

  it('says why it failed where no program is to blame, after steps too', () => {
    const lost = job({
      state: 'failed',
      reason: 'all nodes are gone',
      step: 7
    });
    draw(<JobsSection />, panel([lost]));
    expect(host.textContent!.split('all nodes are gone')).toHaveLength(2);
  });

  it('is said once on the dashboard and under its cell', () => {
    const failed = job({ state: 'failed', reason: 'no node started' });
    draw(
      <>
        <JobHeader job={failed} />
        <Failure job={failed} />
      </>,
      panel([failed])
    );
    expect(often('no node started')).toBe(1);
  });
});

/** A node that trains. */
function busy(number: number, fields: Partial<INodeView> = {}): INodeView {
  const jobs = ['tinylm-abcdefgh'];
  return node(number, { state: 'busy', used: 1, jobs, ...fields });
}

describe('nodes', () => {
  const member = (name: string, rank: number) => ({ node: name, rank });
  /** node-2 was killed, the spare node-5 took its place, and what came back as node-2 stands by. */
  const running = job({
    members: [member('node-1', 0), member('node-5', 1)] as any,
    spares: [{ node: 'node-2' }] as any
  });
  const cluster = {
    ...newClusterView(),
    state: 'running',
    nodes: [
      busy(1),
      busy(2, { incarnation: 2 }),
      busy(3, { state: 'partitioned', reason: 'cut off from the network' }),
      busy(4, { state: 'drained', jobs: [], used: 0 }),
      busy(5, { spare: true }),
      busy(6, { state: 'starting', incarnation: 3, jobs: [] }),
      node(7)
    ]
  };
  const given = (actions: Partial<Actions> = {}) =>
    panel([running], actions, { cluster });
  const says = (number: number) =>
    find(`[data-node=node-${number}] .jp-Hp-role`).textContent;

  it('keep what a person has chosen of them while the section is folded', async () => {
    draw(<ClusterSection />, given());
    await click('[data-node=node-3]');
    await click('.jp-Hp-tally');
    const chosen = () => [
      find('.jp-Hp-detail').getAttribute('aria-label'),
      find('.jp-Hp-tally').getAttribute('aria-pressed')
    ];
    expect(chosen()).toEqual(['node-3', 'true']);
    await click('h3 button');
    expect(host.querySelector('.jp-Hp-detail')).toBeNull();
    await click('h3 button');
    expect(chosen()).toEqual(['node-3', 'true']);
  });

  it('are what they are now, not what they were started as', () => {
    draw(<ClusterSection />, given());
    expect([1, 2, 3, 4, 5, 6, 7].map(says)).toEqual([
      'training',
      'spare',
      'cut off',
      'drained',
      'training',
      'restarting',
      'free'
    ]);
    expect(find('[data-node=node-2]').getAttribute('aria-label')).toContain(
      'restarted 1 time'
    );
    expect(find('.jp-Hp-summary').textContent).toBe(
      '7 nodes2 training1 spare1 free1 restarting1 drained1 cut off'
    );
  });

  it.each([
    [3, ['Heal', 'Drain', 'Reboot']],
    [4, ['Resume']],
    [1, ['Drain', 'Reboot']],
    [7, ['Drain', 'Reboot']]
  ])('offer at node-%d what makes sense: %p', async (number, words) => {
    const asked: string[][] = [];
    draw(
      <ClusterSection />,
      given({
        remedy: async (name, action) => {
          asked.push([name, action]);
        }
      })
    );
    await click(`[data-node=node-${number}]`);
    const buttons = [...host.querySelectorAll('.jp-Hp-remedies button')];
    expect(buttons.map(button => button.textContent)).toEqual(words);
    await click('.jp-Hp-remedies button');
    expect(asked).toEqual([[`node-${number}`, words[0].toLowerCase()]]);
  });

  it('offer nothing while they come back by themselves', async () => {
    draw(<ClusterSection />, given());
    await click('[data-node=node-6]');
    expect(host.querySelector('.jp-Hp-remedies')).toBeNull();
  });

  it('of a scheduler are drained and returned in place, too', async () => {
    const health = { action: 'drain', labels: {}, findings: [], devices: {} };
    const elsewhere = {
      ...cluster,
      health: { n1: health as unknown as IHealth }
    };
    draw(<ClusterSection />, panel([], {}, { cluster: elsewhere }));
    const details = find('[data-elsewhere=n1]') as HTMLDetailsElement;
    await act(async () => {
      details.open = true;
      details.dispatchEvent(new Event('toggle'));
    });
    expect(find('[data-elsewhere] .jp-Hp-remedies').textContent).toBe('Resume');
  });
});

describe('a cluster that nobody uses', () => {
  const idle = (left_s: number) => ({
    since_s: Date.now() / 1000 - 60,
    ends_s: Date.now() / 1000 + left_s
  });
  const running = { ...newClusterView(), state: 'running', nodes: [node(1)] };

  it('says when it ends, and goes on if it is asked to', async () => {
    const keepCluster = jest.fn(async () => undefined);
    const cluster = { ...running, idle: idle(720) };
    draw(<ClusterSection />, panel([], { keepCluster }, { cluster }));
    expect(find('.jp-Hp-idle').textContent).toBe(
      'Idle: ends by itself in 12 minKeep'
    );
    await click('.jp-Hp-idle button');
    expect(keepCluster).toHaveBeenCalledTimes(1);
    draw(<ClusterSection />, panel([], {}, { cluster: running }));
    expect(host.querySelector('.jp-Hp-idle')).toBeNull();
  });

  it('is heard of a few times, not each minute', () => {
    const heard = (left_s: number) => {
      const cluster = { ...running, idle: idle(left_s) };
      draw(<ClusterSection />, panel([], {}, { cluster }));
      return find('.jp-Hp-idle [role=status]').textContent;
    };
    expect(heard(13_800)).toBe('');
    const ends = 'Idle: ends by itself in';
    expect([590, 400, 310].map(heard)).toEqual(Array(3).fill(`${ends} 10 min`));
    expect([299, 70].map(heard)).toEqual(Array(2).fill(`${ends} 5 min`));
    expect(heard(20)).toBe(`${ends} 1 min`);
  });

  it('says why it has ended, and comes back as it was', async () => {
    const startCluster = jest.fn(async () => undefined);
    const reason = 'it ended by itself after 4 h without a job';
    const stopped = { ...newClusterView(), reason };
    const cluster = { ...stopped, idle: idle(-60) };
    draw(<ClusterSection />, panel([], { startCluster }, { cluster }));
    expect(find('.jp-Hp-start').textContent).toContain(reason);
    await click('.jp-Hp-start button');
    draw(<ClusterSection />, panel([], { startCluster }, { cluster: stopped }));
    expect(find('.jp-Hp-start').textContent).not.toContain(reason);
    await click('.jp-Hp-start button');
    expect(startCluster.mock.calls).toEqual([[true], [false]]);
  });
});

describe('many nodes', () => {
  const names = (selector = '[data-node]') =>
    [...host.querySelectorAll<HTMLElement>(selector)].map(
      one => one.dataset.node
    );
  const cluster = {
    ...newClusterView(),
    state: 'running',
    nodes: Array.from({ length: 30 }, (_, index) =>
      index < 3
        ? busy(index + 1)
        : node(index + 1, { state: index === 9 ? 'lost' : 'idle' })
    )
  };
  const type = (value: string, selector: string) =>
    act(async () => fill(find(selector), value));

  it('are filtered by words and states, and grouped', async () => {
    draw(<ClusterSection />, panel([job()], {}, { cluster }));
    expect(names()).toHaveLength(30);
    await type('tinylm', '.jp-Hp-filter');
    expect(names()).toEqual(['node-1', 'node-2', 'node-3']);
    expect(host.textContent).toContain('3 of 30 nodes');
    await type('', '.jp-Hp-filter');
    await type('state', '.jp-Hp-nodechoice select');
    const labels = [...host.querySelectorAll('.jp-Hp-block')].map(block =>
      block.getAttribute('aria-label')
    );
    expect(labels).toEqual(['joining (3)', 'free (26)', 'lost (1)']);
    const lost = [...host.querySelectorAll<HTMLElement>('.jp-Hp-tally')].find(
      tally => tally.textContent!.includes('lost')
    )!;
    await act(async () => lost.click());
    expect(lost.getAttribute('aria-pressed')).toBe('true');
    expect(names()).toEqual(['node-10']);
    await act(async () => lost.click());
    expect(names()).toHaveLength(30);
  });

  it('can be shown again after no node is what was chosen', async () => {
    const tally = (word: string) =>
      [...host.querySelectorAll<HTMLElement>('.jp-Hp-tally')].find(one =>
        one.textContent!.includes(word)
      );
    draw(<ClusterSection />, panel([job()], {}, { cluster }));
    await type('node', '.jp-Hp-filter');
    await act(async () => tally('lost')!.click());
    expect(names()).toEqual(['node-10']);
    const found = { ...cluster, nodes: cluster.nodes.slice(0, 9) };
    draw(<ClusterSection />, panel([job()], {}, { cluster: found }));
    expect(names()).toEqual([]);
    expect(tally('lost')!.textContent).toBe('0 lost');
    await act(async () => tally('lost')!.click());
    expect(tally('lost')).toBeUndefined();
    expect(names()).toHaveLength(9);
    await type('', '.jp-Hp-filter');
    expect(host.querySelector('.jp-Hp-filter')).toBeNull();
  });

  it('have the names of their jobs without a search through all jobs', async () => {
    const summary = jest.fn(() => null);
    draw(<ClusterSection />, panel([job()], {}, { cluster, summary }));
    await type('tinylm', '.jp-Hp-filter');
    expect(names()).toHaveLength(3);
    expect(summary).not.toHaveBeenCalled();
  });

  it('say how much of them is allocated, and on how many a job works', () => {
    const training = job({ members: [{ node: 'node-1', rank: 0 }] as any });
    draw(<ClusterSection />, panel([training], {}, { cluster }));
    expect(find('.jp-Hp-use').textContent).toBe('3 of 29 allocated, 1 at work');
  });
});

describe('several clusters', () => {
  const at = (fields: Partial<IStanding>): IStanding => ({
    backend: 'local',
    title: 'This machine',
    context: '',
    usual: true,
    owns_nodes: false,
    asked: false,
    problem: '',
    states: {},
    ...fields
  });
  const local = at({ owns_nodes: true });
  const slurm = at({
    backend: 'slurm',
    title: 'SLURM',
    asked: true,
    states: { idle: 3, down: 1 }
  });
  const cloud = { backend: 'kubernetes', title: 'Kubernetes' };
  const clusters = [
    local,
    slurm,
    at({ ...cloud, context: 'near' }),
    at({ ...cloud, context: 'far', usual: false })
  ];
  const drawn = async (
    found: IStanding[],
    remember: Actions['remember'] = async () => undefined
  ) => {
    const api = {
      clusters: jest.fn(async (context: string) =>
        context
          ? [
              at({
                ...cloud,
                context,
                usual: false,
                asked: true,
                problem: 'It refuses.'
              })
            ]
          : found
      )
    };
    const preferences = { run: {}, nodes: 4, spares: 1 } as any;
    const model = { api: api as any, cluster: newClusterView() };
    await act(async () =>
      draw(<ClusterSection />, panel([], { preferences, remember }, model))
    );
    return api.clusters;
  };
  const rows = () =>
    [...host.querySelectorAll('[data-cluster]')].map(row => row.textContent);

  it('stand side by side, and one is chosen for cells', async () => {
    const remember = jest.fn(async () => undefined);
    const asked = await drawn(clusters, remember);
    expect(rows()).toEqual([
      'This machineno cluster runs',
      'SLURMNodes: 3 idle, 1 down.',
      'Kubernetes: nearLook',
      'Kubernetes: farLook'
    ]);
    expect(find('[data-cluster="local/"] input')).toHaveProperty(
      'checked',
      true
    );
    await click('[data-cluster="slurm/"] input');
    expect(remember.mock.calls).toEqual([[{ backend: 'slurm' }]]);
    await click('[data-cluster="kubernetes/far"] button');
    expect(asked).toHaveBeenLastCalledWith('far');
    expect(rows()[3]).toBe('Kubernetes: farIt refuses.Look');
    await click('[data-cluster="kubernetes/far"] button');
    expect(asked.mock.calls.filter(([name]) => name === 'far')).toHaveLength(2);
  });

  it('are not mentioned where this machine is the only one', async () => {
    await drawn([local]);
    expect(host.querySelector('.jp-Hp-picker')).toBeNull();
  });
});

describe('what waits', () => {
  const waits = (id: string, fields: Partial<IJobView>) =>
    job({ id, name: id, state: 'pending', members: [], ...fields });

  it('is in its order with its reasons, below what queues hold', () => {
    const research = job({ id: 'held', queue: 'research' });
    const jobs = [
      waits('late', { submitted_s: 2, reason: 'waits behind first' }),
      waits('first', { submitted_s: 1, reason: 'waits for 2 nodes more' }),
      waits('urgent', { submitted_s: 3, priority: 10 }),
      waits('own', { submitted_s: 4, queue: 'teaching', nodes_wanted: 2 }),
      research
    ];
    const cluster = {
      ...newClusterView(),
      state: 'running',
      queues: { research: 1, teaching: 2 },
      nodes: [1, 2, 3].map(number => busy(number, { jobs: ['held'] }))
    };
    draw(<ClusterSection />, panel(jobs, {}, { cluster, activeJobs: jobs }));
    const rows = [...host.querySelectorAll<HTMLElement>('[data-waits]')];
    expect(rows.map(row => row.textContent)).toEqual([
      'ownteaching',
      'urgentpriority 10',
      'firstwaits for 2 nodes more',
      'latewaits behind first'
    ]);
    const held = [...host.querySelectorAll('.jp-Hp-queue dd')];
    expect(held.map(one => one.textContent)).toEqual([
      '1 of 1 guaranteed, 2 borrowed',
      '0 of 2 guaranteed, 2 lent'
    ]);
  });

  it('is not said twice where only one job waits', () => {
    const jobs = [waits('only', {})];
    const cluster = { ...newClusterView(), state: 'running', nodes: [node(1)] };
    draw(<ClusterSection />, panel(jobs, {}, { cluster, activeJobs: jobs }));
    expect(host.querySelector('.jp-Hp-queue')).toBeNull();
  });
});

describe('the switch “Break something”', () => {
  const cluster = { ...newClusterView(), state: 'running', nodes: [busy(1)] };

  it('is off at first, shows no fault, and is turned at the panel', async () => {
    const turned: boolean[] = [];
    const off = {
      faultsAllowed: false,
      breakSomething: async (on: boolean) => {
        turned.push(on);
      }
    };
    draw(<ClusterSection />, panel([job()], off, { cluster }));
    await click('[data-node=node-1]');
    expect(host.querySelector('.jp-Hp-faults')).toBeNull();
    const bolt = find('[aria-label^="Break something"]');
    expect(bolt.getAttribute('aria-pressed')).toBe('false');
    await click('[aria-label^="Break something"]');
    expect(turned).toEqual([true]);
  });

  it('is shown, and cannot be turned, where an administrator forbids it', () => {
    const veto = { faultsAllowed: false, faultsForbidden: true };
    draw(<ClusterSection />, panel([], veto, { cluster }));
    const bolt = find('[aria-label^="Break something"]') as HTMLButtonElement;
    expect(bolt.disabled).toBe(true);
    expect(bolt.title).toContain('administrator');
  });
});

describe('the details of a node', () => {
  it('tell a screen reader the role when it changes, not each second, and not what the tile has told', async () => {
    const shown = (...nodes: INodeView[]) => {
      const cluster = { ...newClusterView(), state: 'running', nodes };
      draw(<ClusterSection />, panel([], {}, { cluster } as any));
    };
    shown(node(1), node(2));
    await click('[data-node=node-1]');
    expect(host.querySelector('.jp-Hp-detail [aria-live]')).toBeNull();
    const heard = () => find('.jp-Hp-detail [role=status]');
    expect(heard().closest('[aria-live]')).toBeNull();
    expect(heard().textContent).toBe('');
    shown(node(1, { state: 'lost' }), node(2));
    expect(heard().textContent).toBe('node-1: lost');
    shown(node(1, { state: 'lost' }), node(2));
    expect(heard().textContent).toBe('node-1: lost');
    await click('[data-node=node-2]');
    expect(heard().textContent).toBe('');
    const tile = find('[data-node=node-2]');
    expect(tile.title).toBe('');
    act(() => {
      tile.dispatchEvent(new MouseEvent('mouseover', { bubbles: true }));
    });
    expect(tile.title).toBe('node-2, free');
  });
});

describe('an empty panel', () => {
  it('says the two ways to make a job, and opens the example', async () => {
    const openExample = jest.fn(async () => undefined);
    draw(<JobsSection />, panel([], { openExample }));
    expect(host.textContent).toContain('Run on cluster');
    expect(host.textContent).toContain('%%hyperpod');
    await click('.jp-Hp-start button');
    expect(openExample).toHaveBeenCalledTimes(1);
  });
});
