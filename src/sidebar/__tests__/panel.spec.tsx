/** The panel as a person meets it: what a row, a tile and an empty panel say. */

import { nullTranslator } from '@jupyterlab/translation';
import { Signal } from '@lumino/signaling';
import * as React from 'react';
import { act } from 'react';
import { createRoot, Root } from 'react-dom/client';

import type { Actions } from '../../actions';
import { IShared, Shared } from '../../components/context';
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

(globalThis as any).IS_REACT_ACT_ENVIRONMENT = true;

/** Only what the views under test read; the real model is tested on its own. */
function shared(
  jobs: IJobView[],
  actions: Partial<Actions> = {},
  model: Partial<HyperpodModel> = {}
): IShared {
  return {
    model: {
      changed: new Signal({}),
      cluster: null,
      connection: 'online',
      jobs,
      jobsKnown: true,
      activeJobs: jobs.filter(job => job.state === 'running'),
      watch: () => ({ isDisposed: false, dispose: () => undefined }),
      summary: (id: string) => jobs.find(job => job.id === id) ?? null,
      job: (id: string) => jobs.find(job => job.id === id) ?? null,
      ...model
    } as unknown as HyperpodModel,
    actions: {
      preferences: { nodes: 4, spares: 1, finishedJobs: 5, allowFaults: true },
      faultsAllowed: true,
      ...actions
    } as unknown as Actions,
    trans: nullTranslator.load('jupyter_hyperpod')
  };
}

function job(fields: Partial<IJobView> = {}): IJobView {
  return {
    ...newJobView('tinylm-abcdefgh'),
    name: 'tinylm',
    state: 'running',
    ...fields
  };
}

let host: HTMLElement;
let root: Root;

beforeEach(() => {
  jest.spyOn(console, 'error');
  host = document.createElement('div');
  document.body.appendChild(host);
  root = createRoot(host);
});

afterEach(() => {
  act(() => root.unmount());
  host.remove();
  expect(console.error).not.toHaveBeenCalled();
});

function draw(element: JSX.Element, given: IShared): void {
  act(() =>
    root.render(<Shared.Provider value={given}>{element}</Shared.Provider>)
  );
}

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
    draw(<JobsSection />, shared([job({ state: 'failed', reason, error })]));
    expect(host.textContent!.split('boom')).toHaveLength(2);
    expect(host.querySelector('.jp-Hp-joberror')!.textContent).toBe(
      'ValueError: boom'
    );
    expect(host.querySelector('.jp-Hp-chip')!.getAttribute('title')).toBe(null);
  });

  it('says why it failed where no program is to blame, after steps too', () => {
    const lost = job({
      state: 'failed',
      reason: 'all nodes are gone',
      step: 7
    });
    draw(<JobsSection />, shared([lost]));
    expect(host.textContent!.split('all nodes are gone')).toHaveLength(2);
  });

  it('is said once on the dashboard and under its cell', () => {
    const failed = job({ state: 'failed', reason: 'no node started' });
    draw(
      <>
        <JobHeader job={failed} />
        <Failure job={failed} />
      </>,
      shared([failed])
    );
    expect(often('no node started')).toBe(1);
  });
});

/** A node as the server tells of it. */
function node(number: number, fields: Partial<INodeView> = {}): INodeView {
  return {
    node: `node-${number}`,
    state: 'busy',
    reason: '',
    spare: false,
    slots: 1,
    used: 1,
    jobs: ['tinylm-abcdefgh'],
    pid: number,
    incarnation: 1,
    since_s: 0,
    ...fields
  };
}

function find(selector: string): HTMLElement {
  const found = host.querySelector<HTMLElement>(selector);
  if (!found) {
    throw new Error(`${selector} is not in ${host.innerHTML}`);
  }
  return found;
}

const press = (selector: string) =>
  act(async () => {
    find(selector).click();
  });

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
      node(1),
      node(2, { incarnation: 2 }),
      node(3, { state: 'partitioned', reason: 'cut off from the network' }),
      node(4, { state: 'drained', jobs: [], used: 0 }),
      node(5, { spare: true }),
      node(6, { state: 'starting', incarnation: 3, jobs: [] }),
      node(7, { state: 'idle', jobs: [], used: 0 })
    ]
  };
  const given = (actions: Partial<Actions> = {}) =>
    shared([running], actions, { cluster });
  const says = (number: number) =>
    find(`[data-node=node-${number}] .jp-Hp-role`).textContent;

  it('are what they are now, not what they were started as', () => {
    draw(<ClusterSection />, given());
    expect([1, 2, 3, 4, 5, 6, 7].map(says)).toEqual([
      'training',
      'standby',
      'cut off',
      'drained',
      'training',
      'restarting',
      'free'
    ]);
    expect(find('[data-node=node-2]').title).toContain('restarted 1 time');
    expect(find('.jp-Hp-summary').textContent).toBe(
      '7 nodes2 training1 standby1 free1 restarting1 drained1 cut off'
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
    await press(`[data-node=node-${number}]`);
    const buttons = [...host.querySelectorAll('.jp-Hp-remedies button')];
    expect(buttons.map(button => button.textContent)).toEqual(words);
    await press('.jp-Hp-remedies button');
    expect(asked).toEqual([[`node-${number}`, words[0].toLowerCase()]]);
  });

  it('offer nothing while they come back by themselves', async () => {
    draw(<ClusterSection />, given());
    await press('[data-node=node-6]');
    expect(host.querySelector('.jp-Hp-remedies')).toBeNull();
  });

  it('of a scheduler are drained and returned in place, too', async () => {
    const health = { action: 'drain', labels: {}, findings: [], devices: {} };
    const elsewhere = {
      ...cluster,
      health: { n1: health as unknown as IHealth }
    };
    draw(<ClusterSection />, shared([], {}, { cluster: elsewhere }));
    const details = find('[data-elsewhere=n1]') as HTMLDetailsElement;
    await act(async () => {
      details.open = true;
      details.dispatchEvent(new Event('toggle'));
    });
    expect(find('[data-elsewhere] .jp-Hp-remedies').textContent).toBe('Resume');
  });
});

describe('the switch “Break something”', () => {
  const cluster = { ...newClusterView(), state: 'running', nodes: [node(1)] };

  it('is off at first, shows no fault, and is turned at the panel', async () => {
    const turned: boolean[] = [];
    const off = {
      faultsAllowed: false,
      breakSomething: async (on: boolean) => {
        turned.push(on);
      }
    };
    draw(<ClusterSection />, shared([job()], off, { cluster }));
    await press('[data-node=node-1]');
    expect(host.querySelector('.jp-Hp-faults')).toBeNull();
    const bolt = find('[aria-label^="Break something"]');
    expect(bolt.getAttribute('aria-pressed')).toBe('false');
    await press('[aria-label^="Break something"]');
    expect(turned).toEqual([true]);
  });

  it('is shown, and cannot be turned, where an administrator forbids it', () => {
    const veto = { faultsAllowed: false, faultsForbidden: true };
    draw(<ClusterSection />, shared([], veto, { cluster }));
    const bolt = find('[aria-label^="Break something"]') as HTMLButtonElement;
    expect(bolt.disabled).toBe(true);
    expect(bolt.title).toContain('administrator');
  });
});

describe('an empty panel', () => {
  it('says the two lines that make a job, and opens the example', async () => {
    const openExample = jest.fn(async () => undefined);
    draw(<JobsSection />, shared([], { openExample }));
    expect(host.textContent).toContain('%load_ext jupyter_hyperpod');
    expect(host.textContent).toContain('%%hyperpod');
    await press('.jp-Hp-start button');
    expect(openExample).toHaveBeenCalledTimes(1);
  });
});
