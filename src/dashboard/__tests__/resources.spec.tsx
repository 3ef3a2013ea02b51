import { nullTranslator } from '@jupyterlab/translation';
import * as React from 'react';
import { act } from 'react';

import { draw, find, host, shared } from '../../__tests__/page';
import { ApiError, IResources } from '../../api';
import { IJobView, newJobView } from '../../model/views';
import { lines, Nodes, Resources, sentences } from '../resources';
import { strokes } from '../strokes';

const trans = nullTranslator.load('jupyter_hyperpod');

/** Two nodes; the second one came later. */
function used(fields: Partial<IResources> = {}): IResources {
  return {
    nodes: 2,
    left_out: 0,
    many: false,
    lines: ['node-1', 'node-2'],
    start_s: 100,
    times_s: [0, 10, 20],
    curves: {
      cpu: [
        [50, 100, 0],
        [null, 25, 75]
      ],
      memory: [
        [1e9, 2e9, 2e9],
        [null, 1e9, 1e9]
      ]
    },
    sparks: {
      'node-1': { cpu: [50, 100, 0] },
      'node-2': { cpu: [null, 25, 75] }
    },
    limits: { cores: 2, limit: 16e9, gpus: 0, gpu_limit: 0 },
    ...fields
  };
}

function job(fields: Partial<IJobView> = {}): IJobView {
  return {
    ...newJobView('a-job'),
    state: 'succeeded',
    started_s: 100,
    ended_s: 120,
    updated_s: 120,
    generations: [
      {
        generation: 1,
        time_s: 100,
        nodes: ['node-1', 'node-2'],
        spares: [],
        reason: ''
      }
    ],
    ...fields
  };
}

const NONE = { nodes: 0, lines: [], times_s: [], curves: {}, sparks: {} };
const told = (found: IResources, of = job()) =>
  sentences(of, found, trans).join(' ');

it('has a chart of each quantity with a line for each node', () => {
  draw(<Resources job={job()} used={used()} />);
  const charts = [...host.querySelectorAll('.jp-Hp-chart')];
  expect(
    charts.map(chart => [
      chart.querySelector('h3')!.textContent,
      chart.querySelectorAll('.jp-Hp-curve').length,
      chart.querySelector('svg')!.getAttribute('aria-label')
    ])
  ).toEqual([
    [
      'CPU, of 2 cores',
      2,
      'CPU, of 2 cores: at the end node-1 0 %, node-2 75 %'
    ],
    [
      'Memory, of 16 GB',
      2,
      'Memory, of 16 GB: at the end node-1 2 GB, node-2 1 GB'
    ]
  ]);
});

it('counts time from the start of the job and leaves out what is not known', () => {
  const [first, second] = lines(used(), 'cpu', 5);
  expect(first.points.map(({ x, y }) => [x, y])).toEqual([
    [5, 50],
    [15, 100],
    [25, 0]
  ]);
  expect(second.points.map(({ x }) => x)).toEqual([15, 25]);
  expect(lines(used(), 'gpu', 0)).toEqual([]);
});

it('says what the lines stand for', () => {
  expect(told(used())).toContain('The network is not sampled');
  const many = used({
    many: true,
    nodes: 1100,
    left_out: 76,
    lines: ['lowest', 'median', 'highest'],
    curves: { received: [[1], [2], [3]] }
  });
  expect(told(many)).toContain('the network is that of the whole node');
  expect(told(many)).toContain('Of 1024 nodes');
  expect(told(many)).toContain('76 more nodes are left out');
});

it('says why there is no line', () => {
  draw(<Resources job={job()} used={used(NONE)} />);
  expect(host.textContent).toContain('No samples: the job was too short');
  expect(host.querySelector('.jp-Hp-chart')).toBeNull();
  const runs = job({ state: 'running', ended_s: null });
  expect(told(used(NONE), runs)).toContain('No samples so far');
});

it('draws what each node used over its lane', async () => {
  const api: any = { resources: async () => used() };
  draw(<Nodes job={job()} />, shared({ api }));
  await act(async () => undefined);
  const paths = [...host.querySelectorAll('.jp-Hp-sparks path')];
  expect(paths.map(path => path.getAttribute('d'))).toEqual([
    'M0.00 50L50.00 0L100.00 100',
    'M50.00 75L100.00 25'
  ]);
  expect(find('.jp-Hp-legend').textContent).toContain('CPU use');
});

it('shows the lanes where the server does not know what they used', async () => {
  const api: any = {
    resources: async () => {
      throw new ApiError(403, 'not allowed');
    }
  };
  draw(<Nodes job={job()} />, shared({ api }));
  await act(async () => undefined);
  expect(host.querySelectorAll('.jp-Hp-lanes').length).toBe(1);
  expect(find('.jp-Hp-banner').textContent).toBe('not allowed');
  expect(host.querySelector('.jp-Hp-chart')).toBeNull();
});

it('a node that was away has no line for that time', () => {
  expect(strokes([])).toEqual([]);
  expect(strokes([10])).toEqual([true]);
  expect(strokes([0, 10, 20, 80, 90])).toEqual([
    ...[true, false, false],
    ...[true, false]
  ]);
  const back = {
    ...used(),
    times_s: [0, 10, 20, 80, 90],
    curves: { cpu: [[1, 2, 3, 4, 5]] }
  } as unknown as IResources;
  const [line] = lines(back, 'cpu', 0);
  expect(line.points.map(point => point.apart ?? false)).toEqual([
    ...[false, false, false],
    ...[true, false]
  ]);
});

it('a sample between two gaps is a point', () => {
  const back = used({
    lines: ['node-1'],
    times_s: [0, 10, 20, 80, 140],
    curves: { cpu: [[1, 2, 3, 4, 5]] }
  });
  draw(<Resources job={job()} used={back} />);
  expect(host.querySelectorAll('.jp-Hp-point').length).toBe(2);
  const path = find('.jp-Hp-curve').getAttribute('d')!;
  expect(path.split('M').map(one => one.split('L').length - 1)).toEqual([
    ...[0, 2, 0, 0]
  ]);
});
