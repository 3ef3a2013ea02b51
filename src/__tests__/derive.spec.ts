import {
  byName,
  incidentDuration,
  lanes,
  outputLines,
  progress,
  ranksOf,
  remaining,
  stepAt,
  traffic,
  trendOf
} from '../derive';
import { stepTime, throughput } from '../model/throughput';
import {
  HistoryPoint,
  IIncident,
  IJobView,
  IOutput,
  newJobView
} from '../model/views';

function job(fields: Partial<IJobView>): IJobView {
  return { ...newJobView('tinylm-abcdefgh'), ...fields };
}

function piece(rank: number | null, text: string, stream = 'stdout'): IOutput {
  const member = `m${rank}`;
  return { member, node: `node-${rank}`, rank, stream, text, time_s: 0 };
}

const session = {
  total_steps: 200,
  global_batch: 64,
  micro_batch: 4,
  micro_batches: 16,
  parameters: 1,
  state_bytes: 1
};

describe('the small curve', () => {
  it('is of the same steps as in the list, the first and the last among them', () => {
    const history = Array.from({ length: 1000 }, (_, step): HistoryPoint => [
      step,
      step,
      0,
      1
    ]);
    const steps = trendOf(job({ history })).map(point => point[0]);
    expect([steps.length, ...steps.slice(0, 3), ...steps.slice(-2)]).toEqual([
      24, 0, 43, 86, 955, 999
    ]);
    expect(trendOf(job({ history: history.slice(0, 1) }))).toHaveLength(1);
    expect(trendOf(job({ history: [] }))).toEqual([]);
  });
});

describe('rates', () => {
  const commits: IJobView['commits'] = [
    [97, 100, 97 * 64],
    [98, 100.4, 98 * 64],
    [100, 101.5, 100 * 64]
  ];
  const running = job({ state: 'running', step: 100, session, commits });

  it('takes the last steps of a job that runs', () => {
    expect(remaining(running)).toBeCloseTo(50);
    expect(remaining({ ...running, state: 'succeeded' })).toBeNull();
  });

  it('counts wall time from commit to commit', () => {
    expect(throughput(commits)).toBeCloseTo(128);
    expect(stepTime(commits)).toBeCloseTo(0.55);
    expect(stepTime(commits.slice(0, 2))).toBeCloseTo(0.4);
  });

  it('knows nothing before the second commit, or of a clock that stands still', () => {
    expect(throughput(commits.slice(0, 1))).toBeNull();
    expect(stepTime(commits.slice(0, 1))).toBeNull();
    expect(
      throughput([
        [1, 5, 64],
        [2, 5, 128]
      ])
    ).toBeNull();
  });

  it('knows nothing of a job without steps', () => {
    expect(remaining(job({}))).toBeNull();
    expect(progress(job({}))).toBeNull();
    expect(progress(running)).toBe(0.5);
    // The session declared its first loop, and the cell began further ones.
    expect(progress({ ...running, step: 201 })).toBeNull();
  });
});

it('finds the step at which something happened', () => {
  const history: IJobView['history'] = [
    [10, 1, 100, 4],
    [20, 1, 110, 4],
    [30, 1, 120, 4]
  ];
  expect(stepAt(history, 115)).toBe(25);
  expect(stepAt(history, 90)).toBe(10);
  expect(stepAt(history, 500)).toBe(30);
  expect(stepAt([], 1)).toBeNull();
});

describe('outputLines', () => {
  it('puts lines together that came in pieces, each rank for itself', () => {
    const lines = outputLines([
      piece(0, 'a'),
      piece(1, 'x\ny'),
      piece(0, 'b\n'),
      piece(1, 'z\n')
    ]);
    expect(lines.map(line => [line.rank, line.text])).toEqual([
      [0, 'ab'],
      [1, 'x'],
      [1, 'yz']
    ]);
    expect(ranksOf(lines)).toEqual([0, 1]);
  });

  it('names a line the same when older pieces fall away', () => {
    const pieces = [piece(0, 'a\nb\n'), piece(1, 'c\n'), piece(0, 'd\ne')];
    const names = (from: number) =>
      outputLines(pieces.slice(from)).map(line => line.key);
    expect(new Set(names(0)).size).toBe(5);
    expect(names(1)).toEqual(names(0).slice(2));
  });

  it('keeps empty lines, and apart what is standard error', () => {
    const lines = outputLines([piece(0, 'a'), piece(0, 'e\n', 'stderr')]);
    expect(lines.map(line => line.text)).toEqual(['a', 'e']);
    expect(outputLines([piece(0, 'a\n\nb\n')]).map(l => l.text)).toEqual([
      'a',
      '',
      'b'
    ]);
  });

  it('shows what a terminal would: the last of a line drawn again, no escapes', () => {
    expect(outputLines([piece(0, '10 %\r50 %\r')])[0].text).toBe('50 %');
    expect(outputLines([piece(0, '\u001b[31mred\u001b[0m\n')])[0].text).toBe(
      'red'
    );
  });
});

describe('lanes', () => {
  const generation = (number: number, time_s: number, nodes: string[]) => ({
    generation: number,
    time_s,
    nodes,
    spares: number === 1 ? ['node-5'] : ['node-2'],
    reason: ''
  });

  const stages = (...names: string[]) =>
    names.map(stage => ({ stage, time_s: 0, took_s: 0, text: '' }));

  it('shows who trained, stood by and was lost', () => {
    const view = job({
      state: 'running',
      generations: [
        generation(1, 0, ['node-1', 'node-2']),
        generation(2, 10, ['node-1', 'node-5']),
        generation(3, 20, ['node-1', 'node-5'])
      ],
      incidents: [
        {
          incident: 1,
          cause: 'died',
          node: 'node-2',
          rank: 1,
          rung: 1,
          started_s: 8,
          detection_s: 1,
          resumed_s: 10.5,
          recovery_s: 2.5,
          stages: stages('detected', 'fenced', 'resumed')
        }
      ]
    });
    const rows = lanes(view, 30);
    expect(rows.map(row => row.node)).toEqual(['node-1', 'node-2', 'node-5']);
    const roles = rows.map(row =>
      row.spans.map(span => [span.role, span.from_s, span.to_s])
    );
    expect(roles).toEqual([
      [['member', 0, 30]],
      [
        ['member', 0, 8],
        ['lost', 8, 10],
        ['spare', 10, 30]
      ],
      [
        ['spare', 0, 10],
        ['member', 10, 30]
      ]
    ]);
  });

  it('shows nothing of a node that never comes back, once the incident is over', () => {
    const view = job({
      state: 'succeeded',
      ended_s: 50,
      generations: [
        { generation: 1, time_s: 0, nodes: ['a', 'b'], spares: [], reason: '' },
        { generation: 2, time_s: 11, nodes: ['a'], spares: [], reason: '' }
      ],
      incidents: [
        {
          incident: 1,
          cause: '',
          node: 'b',
          rank: 1,
          rung: 0,
          started_s: 10,
          detection_s: 0.5,
          resumed_s: 12,
          recovery_s: 2,
          stages: stages('detected', 'fenced', 'resumed')
        }
      ]
    });
    expect(lanes(view, 99)[1].spans).toEqual([
      { node: 'b', role: 'member', from_s: 0, to_s: 10 },
      { node: 'b', role: 'lost', from_s: 10, to_s: 12 }
    ]);
  });
});

describe('an incident', () => {
  const slow: IIncident = {
    incident: 'i1',
    cause: 'straggler',
    node: 'b',
    rank: 1,
    rung: null,
    started_s: 4,
    detection_s: 3,
    resumed_s: null,
    recovery_s: null,
    stages: []
  };
  const generations = [
    { generation: 1, time_s: 0, nodes: ['a', 'b'], spares: [], reason: '' }
  ];

  it('lasts from the fault to the next commit, or until now', () => {
    expect(incidentDuration(slow, 9)).toBe(5);
    const over = { ...slow, resumed_s: 8, recovery_s: 4 };
    expect(incidentDuration(over, 9)).toBe(4);
  });

  it('that cost no member leaves the lanes as they are', () => {
    const left_out = {
      ...slow,
      cause: 'non-finite loss',
      resumed_s: 8,
      recovery_s: 4,
      stages: [
        { stage: 'resumed', time_s: 8, took_s: 0, text: 'it was left out' }
      ]
    };
    for (const incident of [slow, left_out]) {
      const view = job({ generations, incidents: [incident], ended_s: 9 });
      expect(lanes(view, 9)[1].spans).toEqual([
        { node: 'b', role: 'member', from_s: 0, to_s: 9 }
      ]);
    }
  });
});

it('sorts names with numbers as people count', () => {
  expect(['node-10', 'node-2', 'node-1'].sort(byName)).toEqual([
    'node-1',
    'node-2',
    'node-10'
  ]);
});

describe('a deployment', () => {
  const deployment = {
    url: 'http://x',
    model: 'm',
    task: 't',
    host: 'h',
    loopback: 'l',
    replicas: []
  };
  const metrics = {
    target: 3,
    requests_per_s: 12.5,
    p50_s: 0.01,
    p99_s: 0.2,
    loading_bytes: 400,
    loaded_bytes: 100
  };
  const running = job({
    state: 'running',
    world_size: 2,
    deployment,
    metrics
  });

  it('is told by what its gateway said last', () => {
    expect(traffic(running)).toMatchObject({
      ready: 2,
      target: 3,
      requestsPerS: 12.5,
      medianS: 0.01,
      p99S: 0.2,
      failed: 0,
      loaded: 0.25
    });
  });

  it('has no latency while nobody asks, and no replicas after its end', () => {
    const calm = job({
      ...running,
      metrics: { ...metrics, requests_per_s: 0 }
    });
    expect(traffic(calm)).toMatchObject({ medianS: null, p99S: null });
    const ended = traffic(job({ ...running, state: 'stopped' }));
    expect(ended).toMatchObject({ ready: 0, requestsPerS: 0, loaded: null });
  });

  it('is none where a job trains', () => {
    expect(traffic(job({ state: 'running' }))).toBeNull();
  });
});
