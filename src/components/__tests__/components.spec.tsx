import { readFileSync } from 'fs';
import { join } from 'path';

import * as React from 'react';
import { act } from 'react';

import { click, draw, find, host, node, shared } from '../../__tests__/page';
import { ApiError } from '../../api';
import type { EventKind, IEvent } from '../../model/events';
import type { IFacts } from '../../model/facts';
import { foldCluster } from '../../model/fold';
import type { HyperpodModel } from '../../model/model';
import {
  IIncident,
  IJobView,
  INodeView,
  IUserError,
  newClusterView,
  newJobView
} from '../../model/views';
import type { NodeRole } from '../../nodes';
import { ClusterSection } from '../../sidebar/cluster';
import { NodeGrid } from '../../sidebar/nodes';
import { StorageSection } from '../../sidebar/storage';
import { Part } from '../boundary';
import { DeploymentStats, loadText, Replicas } from '../deployment';
import { Incident } from '../incidents';
import { JobHeader, JobProgress, JobStats } from '../job';
import { Output } from '../output';
import { Button, sparkPath } from '../parts';
import { Rules } from '../rules';
import { UserError } from '../traceback';

const JOB: IJobView = {
  ...newJobView('tinylm-abcdefgh'),
  name: 'tinylm',
  state: 'running',
  minimum: 2,
  maximum: 8,
  target: 4,
  world_size: 3,
  step: 250,
  loss: 2.5,
  step_time_s: 0.13,
  samples_per_s: 246.15,
  redone: 4,
  session: {
    total_steps: 1000,
    global_batch: 64,
    micro_batch: 4,
    micro_batches: 16,
    parameters: 1e6,
    state_bytes: 1e7
  }
};

const NONE = new Map<string, NodeRole>();
const all = (nodes: INodeView[]) => [{ key: '', label: '', nodes }];

let laidOut: jest.SpyInstance[] = [];

/** Lay the grid out as a browser does: so wide, a window of 320 pixels. */
function layOut(width: number): void {
  const page = HTMLElement.prototype;
  laidOut = [
    jest
      .spyOn(page, 'getBoundingClientRect')
      .mockReturnValue({ width } as DOMRect),
    jest.spyOn(page, 'clientHeight', 'get').mockReturnValue(320)
  ];
}

afterEach(() => laidOut.forEach(spy => spy.mockRestore()));

const tiles = () => [...host.querySelectorAll<HTMLElement>('[role=option]')];

function press(key: string): void {
  act(() => {
    document.activeElement!.dispatchEvent(
      new KeyboardEvent('keydown', { key, bubbles: true })
    );
  });
}

/** A grid whose selection is remembered. */
function Selecting(props: { nodes: INodeView[]; began?: string }): JSX.Element {
  const [selected, setSelected] = React.useState(props.began ?? null);
  return (
    <NodeGrid
      groups={all(props.nodes)}
      parts={NONE}
      selected={selected}
      onSelect={setSelected}
    />
  );
}

describe('NodeGrid', () => {
  it('says each node and its state, one of them reachable by Tab', () => {
    const nodes = [node(1), node(2, { state: 'busy', jobs: ['j-1'] })];
    draw(
      <NodeGrid
        groups={all(nodes)}
        parts={NONE}
        selected={null}
        onSelect={() => undefined}
      />
    );
    expect(tiles().map(tile => tile.getAttribute('aria-label'))).toEqual([
      'node-1, free',
      'node-2, joining, j-1'
    ]);
    expect(tiles().map(tile => tile.tabIndex)).toEqual([0, -1]);
  });

  it('is walked with the keyboard', () => {
    const selected: string[] = [];
    draw(
      <NodeGrid
        groups={all([node(1), node(2), node(3)])}
        parts={NONE}
        selected="node-1"
        onSelect={name => selected.push(name)}
      />
    );
    find('[data-node=node-1]').focus();
    press('Enter');
    expect(selected).toEqual(['node-1']);
    selected.pop();
    press('ArrowRight');
    press('End');
    press('ArrowRight');
    press('Home');
    expect(selected).toEqual(['node-2', 'node-3', 'node-1']);
  });

  it('of thousands of nodes draws those near what is seen, and tells how many there are', () => {
    layOut(269); // 30 tiles of 8 pixels and the gaps between them
    draw(
      <Selecting nodes={Array.from({ length: 10000 }, (_, i) => node(i))} />
    );
    const grid = find('[role=listbox]');
    const blocks = [...grid.children] as HTMLElement[];
    const heights = blocks.map(block => block.style.height);
    expect(heights.filter(height => height === '').length).toBe(
      tiles().length / 100
    );
    expect(new Set(heights)).toEqual(new Set(['', '35px'])); // 4 rows, without the last gap
    expect(blocks).toHaveLength(100);
    expect(tiles().length).toBe(1600); // 320 pixels, two steps of scrolling, 160 beyond
    act(() => {
      grid.scrollTop = 1800;
      grid.dispatchEvent(new Event('scroll'));
    });
    const names = tiles().map(tile => tile.dataset.node);
    expect(names.slice(0, 100)).toContain('node-0'); // Tab comes to it
    expect(names[100]).toBe('node-4400');
    expect(names.length).toBeLessThan(2500);
    expect(find('[data-node=node-4400]').getAttribute('aria-posinset')).toBe(
      '4401'
    );
    expect(find('[data-node=node-4400]').getAttribute('aria-setsize')).toBe(
      '10000'
    );
  });

  it('is walked with the keyboard to nodes that have no tile yet', () => {
    layOut(269);
    draw(
      <Selecting nodes={Array.from({ length: 10000 }, (_, i) => node(i))} />
    );
    find('[data-node=node-0]').focus();
    press('End');
    expect((document.activeElement as HTMLElement).dataset.node).toBe(
      'node-9999'
    );
    expect(find('[aria-selected=true]').dataset.node).toBe('node-9999');
    press('ArrowLeft');
    expect((document.activeElement as HTMLElement).dataset.node).toBe(
      'node-9998'
    );
    press('Home');
    expect((document.activeElement as HTMLElement).dataset.node).toBe('node-0');
    expect(tiles().filter(tile => tile.tabIndex === 0)).toHaveLength(1);
  });

  it('leaves blocks without news alone', () => {
    layOut(6000);
    const nodes = Array.from({ length: 2000 }, (_, i) => node(i));
    const grid = (list: INodeView[]) => (
      <NodeGrid
        groups={all(list)}
        parts={NONE}
        selected={null}
        onSelect={jest.fn()}
      />
    );
    draw(grid(nodes));
    expect(tiles()).toHaveLength(2000);
    const changed = [...nodes];
    changed[1500] = node(1500, { state: 'lost' });
    const seen: string[] = [];
    const watch = new MutationObserver(records =>
      records.forEach(record =>
        seen.push((record.target as HTMLElement).dataset.node ?? '')
      )
    );
    watch.observe(host, { subtree: true, attributes: true, childList: true });
    draw(grid(changed));
    watch
      .takeRecords()
      .forEach(record =>
        seen.push((record.target as HTMLElement).dataset.node ?? '')
      );
    expect(new Set(seen)).toEqual(new Set(['node-1500']));
  });
});

describe('ClusterSection', () => {
  const busy = node(2, { state: 'busy', jobs: [JOB.id] });
  const cluster = {
    state: 'running',
    reason: '',
    pid: 1,
    queues: {},
    idle: null,
    nodes: [node(1), busy],
    health: {},
    incidents: [],
    decisions: [],
    warnings: [],
    updated_s: 0,
    seen: {}
  };

  it('tells what is known of a node and what is done about it', async () => {
    const view = newClusterView();
    const says = <K extends EventKind>(kind: K, seq: number, data: IFacts[K]) =>
      foldCluster(view, {
        writer: 'health',
        seq,
        time_s: seq,
        kind,
        data
      } as IEvent);
    const finding = {
      text: 'NVLink error',
      severity: 'isolate',
      device: '',
      fault: ''
    };
    says('node.findings', 1, {
      nodes: ['node-2'],
      findings: [
        {
          ...finding,
          probe: 'kernel-log',
          outcome: 'fail',
          fault: 'NvidiaXid74'
        },
        { ...finding, probe: 'efa', outcome: 'skipped', text: 'no EFA here' }
      ]
    });
    says('node.health', 2, {
      node: 'node-2',
      action: 'replace',
      fault: 'NvidiaXid74',
      reason: 'no reboot mends that',
      labels: {
        'sagemaker.amazonaws.com/node-health-status':
          'UnschedulablePendingReplacement'
      },
      recovery: 'Automatic',
      devices: { type: 'p5.48xlarge', expected: 8, found: 7, busy: 3 },
      boot: ''
    });
    draw(
      <ClusterSection />,
      shared({ cluster: { ...cluster, health: view.health } })
    );
    await click('[data-node=node-2]');
    const text = host.querySelector('.jp-Hp-detail')!.textContent;
    for (const words of [
      'UnschedulablePendingReplacement',
      'no reboot mends that',
      '7 of 8 there, 3 busy',
      'NVLink error',
      'skipped: no EFA here'
    ]) {
      expect(text).toContain(words);
    }
    const alone = { ...cluster, nodes: [], health: view.health };
    draw(<ClusterSection />, shared({ cluster: alone }));
    expect(host.textContent).toContain('No local nodes');
    const elsewhere = host.querySelector<HTMLDetailsElement>(
      '[data-elsewhere=node-2]'
    )!;
    expect(elsewhere.textContent).toContain('UnschedulablePendingReplacement');
    act(() => {
      elsewhere.open = true;
      elsewhere.dispatchEvent(new Event('toggle'));
    });
    expect(elsewhere.textContent).toContain('no reboot mends that');
  });

  it('offers to start a cluster that is stopped', async () => {
    const startCluster = jest.fn().mockResolvedValue(undefined);
    const given = shared(
      { cluster: { ...cluster, state: 'stopped', nodes: [] } },
      { startCluster }
    );
    draw(<ClusterSection />, given);
    await click('.jp-Hp-button');
    expect(startCluster).toHaveBeenCalled();
  });

  it('injects a fault into the selected node where that is allowed', async () => {
    const injectFault = jest.fn().mockResolvedValue(undefined);
    draw(<ClusterSection />, shared({ cluster }, { injectFault }));
    await click('[data-node=node-2]');
    await click('.jp-Hp-detail [data-danger]');
    expect(injectFault).toHaveBeenCalledWith(JOB.id, 'kill', {
      node: 'node-2'
    });
  });

  it('lists the faults that fit a target, each with what it does', async () => {
    const injectFault = jest.fn().mockResolvedValue(undefined);
    draw(<ClusterSection />, shared({ cluster }, { injectFault }));
    await click('[data-node=node-2]');
    const button = find('.jp-Hp-detail [aria-haspopup=menu]');
    button.focus();
    button.click();
    const menu = document.querySelector<HTMLElement>('.lm-Menu')!;
    const items = [...menu.querySelectorAll('.lm-Menu-itemLabel')];
    expect(items.map(item => item.textContent)).toEqual([
      expect.stringMatching(
        /^node-2 · partition: .*its network reaches nobody/
      ),
      expect.stringMatching(/^node-2 · preempt: /)
    ]);
    const press = (key: string, keyCode: number) =>
      menu.dispatchEvent(
        new KeyboardEvent('keydown', { key, keyCode, bubbles: true } as any)
      );
    press('ArrowDown', 40);
    expect(injectFault).not.toHaveBeenCalled();
    press('Enter', 13);
    expect(injectFault).toHaveBeenCalledWith(JOB.id, 'preempt', {
      node: 'node-2'
    });
    expect(document.activeElement).toBe(button);
  });

  it('hides faults where they are not allowed', async () => {
    const given = shared({ cluster }, { faultsAllowed: false });
    draw(<ClusterSection />, given);
    await click('[data-node=node-2]');
    expect(host.querySelector('[data-danger]')).toBeNull();
  });
});

describe('rules', () => {
  it('say how each rank stands, and are left out where there are none', () => {
    const rule = {
      rule: 'loss',
      state: 'HANGING' as const,
      member: 'node-1.a',
      rank: 1,
      value: 2.5,
      text: 'rank 1: loss was not printed again within 3 s',
      time_s: 1
    };
    draw(<Rules job={{ ...JOB, rules: [rule] }} />, shared());
    expect(host.textContent).toContain('loss HANGING');
    expect(host.textContent).toContain(rule.text);
    draw(<Rules job={JOB} />, shared());
    expect(host.querySelector('.jp-Hp-rule')).toBeNull();
  });
});

describe('job', () => {
  it('shows state, progress and figures', () => {
    draw(
      <>
        <JobHeader job={JOB} />
        <JobStats job={JOB} />
      </>
    );
    const bar = find('[role=progressbar]');
    expect(bar.getAttribute('aria-valuenow')).toBe('25');
    expect(host.textContent).toContain('Running');
    expect(host.textContent).toContain('250 / 1\u202f000');
    expect(host.textContent).toContain('2.5000');
    expect(host.textContent).toContain('130 ms');
    expect(host.textContent).toContain('3 of 4');
    expect(host.textContent).toContain('246 samples/s');
  });

  it('says why it runs on fewer nodes than it wants', () => {
    const waits = 'none is free, held by other-abcdefgh';
    const reason = `runs on 3 nodes and waits for 1 more: ${waits}`;
    draw(<JobProgress job={{ ...JOB, reason, waits }} />);
    expect(host.textContent).toContain(reason);
    draw(<JobProgress job={{ ...JOB, reason: '3 of 3 members' }} />);
    expect(host.textContent).not.toContain('3 of 3 members');
  });

  it('shows how far the model is while members load it', () => {
    const load = {
      member: 'node-1.a',
      node: 'node-1',
      state: 'loading' as const,
      url: 's3://models/llama',
      bytes_done: 3e8,
      bytes_total: 1e9,
      elapsed_s: 1,
      first_layer_s: null,
      time_s: 100
    };
    const other = { ...load, member: 'node-2.a', bytes_done: 5e8 };
    draw(<JobHeader job={{ ...JOB, loads: [load, other] }} />);
    expect(find('[role=progressbar]').getAttribute('aria-valuenow')).toBe('40');
    expect(host.textContent).toContain('loading model, 800 MB/s');
    expect(host.textContent).toContain('40 %');
    expect(host.textContent).toContain('2 s left');
    const loaded = { ...load, state: 'loaded' as const };
    draw(<JobHeader job={{ ...JOB, loads: [loaded] }} />);
    expect(host.textContent).toContain('step 250');
  });

  it('offers to stop only what runs', () => {
    const buttons = () =>
      [...host.querySelectorAll('button')].map(button => button.title);
    draw(<JobHeader job={JOB} />);
    const promote = 'Promote tinylm to another cluster…';
    expect(buttons()).toEqual([promote, 'Scale tinylm…', 'Stop tinylm…']);
    draw(<JobHeader job={{ ...JOB, state: 'succeeded' }} />);
    expect(buttons()).toEqual([promote]);
    draw(<JobHeader job={{ ...JOB, minimum: 4, maximum: 4 }} />);
    expect(buttons()).toEqual([promote, 'Stop tinylm…']);
  });
});

describe('Incident', () => {
  const incident: IIncident = {
    incident: 1,
    cause: 'process died',
    node: 'node-2',
    rank: 1,
    rung: 1,
    started_s: 98,
    detection_s: 2,
    resumed_s: 100.4,
    recovery_s: 2.4,
    stages: [
      {
        stage: 'detected',
        time_s: 100,
        took_s: 2,
        text: 'connection closed'
      },
      {
        stage: 'fenced',
        time_s: 100.1,
        took_s: 0.1,
        text: 'generation 1 closed'
      },
      { stage: 'resumed', time_s: 100.4, took_s: 0.3, text: 'the same step' }
    ]
  };

  it('says what broke, why, how long each stage took and what was said', () => {
    draw(<Incident incident={incident} ended={false} expanded />);
    const text = host.textContent!;
    expect(text).toContain('node-2 · rank 1');
    expect(text).toContain('process died');
    expect(text).toContain('resumed in 2.4 s');
    expect(text).toContain('by a spare');
    const stages = [...host.querySelectorAll('li')].map(li => li.textContent);
    expect(stages).toEqual([
      'Detected+2.0 sconnection closed',
      'Fenced+100 msgeneration 1 closed',
      'Resumed+300 msthe same step'
    ]);
  });

  it('shows detection as the longest part of its bar, in a colour of its own', () => {
    draw(<Incident incident={incident} ended={false} />);
    const parts = [
      ...host.querySelectorAll<HTMLElement>('.jp-Hp-stagebar > span')
    ];
    expect(parts.map(part => part.dataset.stage)).toEqual([
      'detected',
      'fenced',
      'resumed'
    ]);
    expect(parts.map(part => Number(part.style.flexGrow))).toEqual([
      20000, 1000, 3000
    ]);
    expect(parts[0].title).toBe('Detected · +2.0 s');
  });

  it('says of recorded incidents what every other face says', () => {
    const view: IJobView = JSON.parse(
      readFileSync(
        join(__dirname, '../../../tests/journals/recoveries.view.json'),
        'utf8'
      )
    );
    const said = view.incidents.map(recorded => {
      draw(<Incident incident={recorded} ended />);
      return find('.jp-Hp-took').textContent;
    });
    // the same figures as in tests/test_one_figure.py
    expect(said).toEqual([
      'resumed in 74 ms',
      'resumed in 2.4 s',
      'resumed in 2.0 s',
      'resumed 250 ms after detection',
      'resumed in 250 ms',
      'resumed 250 ms after detection'
    ]);
  });

  it('says in words what a person did and what a later version knows', () => {
    const drained = { ...incident, cause: 'ByHand', rung: 9 };
    draw(<Incident incident={drained} ended={false} expanded />);
    const text = host.textContent!;
    expect(text).toContain('drained by hand');
    expect(text).toContain('· in another way');
    expect(text).not.toContain('ByHand');
  });

  it('says where a journal does not tell when the fault was', () => {
    const [detected, ...others] = incident.stages;
    const old = {
      ...incident,
      started_s: 100,
      detection_s: null,
      recovery_s: 0.4,
      stages: [{ ...detected, took_s: null }, ...others]
    };
    draw(<Incident incident={old} ended={false} expanded />);
    expect(host.textContent).toContain('resumed 400 ms after detection');
    expect(host.querySelector('li')!.textContent).toContain('time not known');
  });

  it('unfolds by its button', async () => {
    draw(<Incident incident={incident} ended={false} />);
    expect(host.querySelector('li')).toBeNull();
    await click('button');
    expect(find('button').getAttribute('aria-expanded')).toBe('true');
    expect(host.querySelectorAll('li')).toHaveLength(3);
  });

  it('does not count on when the job has ended', () => {
    const open = { ...incident, resumed_s: null };
    draw(<Incident incident={open} ended />);
    expect(host.textContent).toContain('not resumed');
  });
});

describe('Output', () => {
  const output = [0, 1, 0].map((rank, index) => ({
    member: `m${rank}`,
    node: `node-${rank}`,
    rank,
    stream: 'stdout',
    text: `line ${index}\n`,
    time_s: index
  }));

  it('shows all ranks, or one', async () => {
    draw(<Output job={{ ...JOB, output }} />);
    const lines = () =>
      [...host.querySelectorAll('.jp-Hp-text')].map(line => line.textContent);
    expect(lines()).toEqual(['line 0', 'line 1', 'line 2']);
    await click('[aria-label="Rank 1"]');
    expect(lines()).toEqual(['line 1']);
    expect(find('[aria-label="Rank 1"]').getAttribute('aria-pressed')).toBe(
      'true'
    );
  });

  it('opens on request where the same text stands below', async () => {
    draw(<Output job={{ ...JOB, output }} folded />);
    const button = () => find('.jp-Hp-fold');
    expect(host.querySelector('.jp-Hp-text')).toBeNull();
    expect(button().getAttribute('aria-expanded')).toBe('false');
    await click('.jp-Hp-fold');
    expect(button().getAttribute('aria-expanded')).toBe('true');
    expect(host.querySelectorAll('.jp-Hp-text')).toHaveLength(3);
  });

  it('never reads text as markup', () => {
    const text = '<img src=x onerror=alert(1)>\n';
    draw(<Output job={{ ...JOB, output: [{ ...output[0], text }] }} />);
    expect(host.querySelector('img')).toBeNull();
  });

  it("shows the user's exception with its traceback", async () => {
    const error = {
      member: 'm',
      node: 'node-1',
      rank: 0,
      type: 'ValueError',
      message: 'bad shape',
      traceback: [
        'Traceback (most recent call last):',
        '  File "Cell In[3]", line 9, in <module>',
        '    train()',
        '  File "Cell In[3]", line 4, in train',
        '    model(\u001b[31minputs\u001b[0m)',
        '  File "/site/torch/nn.py", line 700, in linear',
        '    return linear(x)',
        'ValueError: bad shape'
      ],
      line: 4
    };
    const rerun = jest.fn();
    const origin = { notebook: 'a.ipynb', cell_id: 'c0ffee' };
    draw(
      <UserError job={{ ...JOB, origin, error }} />,
      shared({}, { canRerun: () => true, rerun })
    );
    expect(host.textContent).toContain('ValueError: bad shape');
    expect(host.textContent).toContain('rank 0 on node-1');
    expect(find('pre').textContent).toContain('model(inputs)');
    expect(find('[data-raised]').textContent).toBe(
      '  File "Cell In[3]", line 4, in train\n    model(inputs)'
    );
    expect(host.querySelectorAll('[data-cell]')).toHaveLength(2);
    await click('button');
    expect(rerun).toHaveBeenCalledTimes(1);
  });

  it('shows a traceback of another version, and none', () => {
    const error = {
      member: 'm',
      node: 'n',
      rank: null,
      type: 'E',
      message: ''
    };
    const told = (traceback: unknown) =>
      ({ ...error, traceback }) as IUserError;
    const actions = { canRerun: () => false };
    for (const traceback of ['line 3', undefined, null, [1, null]]) {
      draw(
        <UserError job={{ ...JOB, error: told(traceback) }} />,
        shared({}, actions)
      );
      expect(find('.jp-Hp-error').textContent).toContain('E — n');
    }
  });
});

describe('Part', () => {
  it('says in its place that it cannot be shown, and comes back on request', async () => {
    const complaint = console.error as unknown as jest.SpyInstance;
    complaint.mockImplementation(() => undefined);
    let broken = true;
    const Fragile = () => {
      if (broken) {
        throw new Error('e.replace is not a function');
      }
      return <p>whole</p>;
    };
    draw(
      <>
        <Part name="The figures">
          <Fragile />
        </Part>
        <p>other</p>
      </>
    );
    expect(host.textContent).toContain('The figures cannot be shown');
    expect(host.textContent).toContain('other');
    broken = false;
    await click('button');
    expect(host.textContent).toBe('wholeother');
    complaint.mockClear();
  });
});

describe('StorageSection', () => {
  const mount = {
    name: 'fsx',
    driver: 'lustre',
    source: 'fs@tcp:/a',
    notebook_path: '/fsx',
    read_only: true,
    state: 'ready',
    reason: '',
    total_bytes: 1000,
    free_bytes: 250
  };
  const hung = { ...mount, name: 'old', state: 'hangs', reason: 'no answer' };
  const given = (mounts: () => Promise<unknown>) =>
    shared({ api: { mounts } } as unknown as Partial<HyperpodModel>);

  it('shows how mounts are and what room they have', async () => {
    const rows = [mount, { ...hung, total_bytes: null, free_bytes: null }];
    await act(async () =>
      draw(
        <StorageSection />,
        given(() => Promise.resolve(rows))
      )
    );
    const meters = host.querySelectorAll('[role=meter]');
    expect(meters).toHaveLength(1);
    expect(meters[0].getAttribute('aria-valuenow')).toBe('75');
    expect(host.textContent).toContain('lustre, read-only');
    expect(host.textContent).toContain('250 B free');
    expect(host.textContent).toContain('Hangs');
    expect(host.textContent).toContain('no answer');
  });

  it('says why the server cannot tell', async () => {
    const refused = () => Promise.reject(new ApiError(500, 'table damaged'));
    await act(async () => draw(<StorageSection />, given(refused)));
    expect(find('[role=status]').textContent).toBe('table damaged');
  });
});

it('keeps a button busy until what it asked for is answered', async () => {
  let answer: () => void = () => undefined;
  const onClick = jest.fn(
    () => new Promise<void>(resolve => (answer = resolve))
  );
  draw(<Button onClick={onClick}>Go</Button>);
  act(() => find('button').click());
  act(() => find('button').click());
  expect(onClick).toHaveBeenCalledTimes(1);
  expect(find('button').getAttribute('aria-disabled')).toBe('true');
  // Otherwise the keyboard would begin anew at the top of the page.
  expect((find('button') as HTMLButtonElement).disabled).toBe(false);
  await act(async () => answer());
  expect(find('button').getAttribute('aria-disabled')).toBeNull();
});

it('draws a sparkline only of what there is', () => {
  expect(sparkPath([[1, 2, 0, 4]])).toBe('');
  const path = sparkPath([
    [1, 2, 0, 4],
    [2, null, 1, 4],
    [3, 1, 2, 4]
  ]);
  expect(path).toBe('M0.0 1.5L96.0 18.5');
});

describe('a deployment', () => {
  const stages = ['started', 'loading', 'loaded', 'ready', 'answered'].map(
    (stage, index) => ({ stage, took_s: index / 10, time_s: 100 + index / 10 })
  );
  const job: IJobView = {
    ...newJobView('chat-abcdefgh'),
    state: 'running',
    world_size: 2,
    target: 2,
    metrics: { requests_per_s: 50.3, p50_s: 0.012, p99_s: 0.19, answered: 7 },
    deployment: {
      url: 'http://127.0.0.1:1',
      model: 'm',
      task: 'completions',
      host: 'login1',
      loopback: 'l',
      replicas: [{ replica: 'node-1.1', node: 'node-1', stages }]
    }
  };

  it('says on which host its address is', () => {
    draw(<JobHeader job={job} />);
    expect(host.textContent).toContain('http://127.0.0.1:1 on login1');
    expect(host.innerHTML).toContain(
      'ssh -o ExitOnForwardFailure=yes -N -L 1:127.0.0.1:1 login1'
    );
  });

  it('says its load in a line', () => {
    const { trans } = shared();
    expect(loadText(job, trans, true)).toBe(
      '2/2 · 50.3 requests/s · p99 190 ms'
    );
    expect(loadText(job, trans)).toContain('2 of 2 replicas');
    const waiting = { ...job, world_size: 0, reason: 'requests wait' };
    expect(loadText(waiting, trans)).toBe('requests wait');
  });

  it('shows its figures, and how fast replicas came', () => {
    draw(
      <>
        <DeploymentStats job={job} />
        <Replicas job={job} />
      </>
    );
    expect(host.textContent).toContain('50.3/s');
    expect(host.textContent).toContain('first answer after 400 ms');
    expect(host.querySelectorAll('.jp-Hp-stagebar > span')).toHaveLength(5);
  });
});
