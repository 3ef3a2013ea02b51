import { FakeSocket, fakeSockets } from '../../__tests__/fakes';
import { Api, ApiError, Stream } from '../../api';
import { HyperpodModel } from '../model';
import { newClusterView, newJobView } from '../views';

const ID = 'tinylm-abcdefgh';
const SETTINGS = { version: '1', store: '/store', allow_faults: true };

function step(seq: number, number: number) {
  return {
    writer: 'worker',
    seq,
    time_s: 1000 + seq,
    kind: 'step.committed',
    data: {
      step: number,
      generation: 1,
      loss: 2,
      loss_hex: '',
      step_time_s: 0.1,
      samples: 8,
      world_size: 2,
      assignment: {},
      redone: 0
    }
  };
}

describe('HyperpodModel', () => {
  let sockets: ReturnType<typeof fakeSockets>;
  let model: HyperpodModel;
  let settings: jest.Mock;

  const socket = (): FakeSocket => sockets.all[sockets.all.length - 1];

  async function connected(): Promise<void> {
    await model.connect();
    socket().accept();
  }

  beforeEach(() => {
    jest.useFakeTimers();
    sockets = fakeSockets();
    settings = jest.fn().mockResolvedValue(SETTINGS);
    const stream: Stream = new Stream({
      open: sockets.open,
      cursor: topic => model.cursor(topic),
      jitter: () => 0
    });
    model = new HyperpodModel({ settings } as unknown as Api, stream);
  });

  afterEach(() => {
    model.dispose();
    jest.useRealTimers();
  });

  it('tells at once of a topic that was quiet, and of a busy one after a pause', async () => {
    await connected();
    jest.advanceTimersByTime(1000);
    const told: string[][] = [];
    model.changed.connect((_, changed) => told.push([...changed]));
    const view = newJobView(ID);
    model.watch(ID);
    const snapshot = () =>
      socket().say({ type: 'snapshot', topic: ID, cursor: {}, view });
    snapshot();
    jest.advanceTimersByTime(1);
    expect(told).toEqual([[ID]]);
    snapshot();
    socket().say({
      type: 'snapshot',
      topic: 'cluster',
      cursor: {},
      view: newClusterView()
    });
    jest.advanceTimersByTime(1);
    expect(told).toEqual([[ID], ['cluster']]);
    snapshot();
    jest.advanceTimersByTime(40);
    expect(told).toHaveLength(2);
    jest.advanceTimersByTime(20);
    expect(told).toEqual([[ID], ['cluster'], [ID]]);
    jest.advanceTimersByTime(1000);
    expect(told).toHaveLength(3);
  });

  it('draws what a person has chosen at once, also while news come', async () => {
    await connected();
    const told: string[][] = [];
    model.changed.connect((_, changed) => told.push([...changed]));
    model.refresh();
    model.refresh();
    expect(told).toEqual([['connection'], ['connection']]);
    model.dispose();
    model.refresh();
    expect(told).toHaveLength(2);
  });

  it('tells of the panel and of a job one after the other, so that each is a short task', async () => {
    await connected();
    jest.advanceTimersByTime(1000);
    const told: string[][] = [];
    model.changed.connect((_, changed) => told.push([...changed]));
    model.watch(ID);
    for (const [topic, view] of [
      [ID, newJobView(ID)],
      ['cluster', newClusterView()]
    ] as const) {
      socket().say({ type: 'snapshot', topic, cursor: {}, view });
    }
    jest.advanceTimersByTime(100);
    expect(told).toEqual([['cluster'], [ID]]);
  });

  it('follows the cluster and the list of jobs from the start', async () => {
    await connected();
    expect(model.connection).toBe('online');
    expect(model.settings).toEqual(SETTINGS);
    expect(sockets.all[0].sent[0].watch).toEqual(['cluster', 'jobs']);
  });

  it('folds events on top of a snapshot, each once', async () => {
    await connected();
    const watch = model.watch(ID);
    expect(model.job(ID)).toBeNull();
    const view = newJobView(ID);
    socket().say({ type: 'snapshot', topic: ID, view });
    socket().say({ type: 'events', topic: ID, events: [step(1, 1)] });
    socket().say({
      type: 'events',
      topic: ID,
      events: [step(1, 1), step(2, 2)]
    });
    expect(model.job(ID)).toMatchObject({ step: 2, samples: 16 });
    watch.dispose();
  });

  it('resumes where it stood, without a snapshot', async () => {
    await connected();
    model.watch(ID);
    socket().say({ type: 'snapshot', topic: ID, view: newJobView(ID) });
    socket().say({ type: 'events', topic: ID, events: [step(1, 1)] });
    socket().breakOff();
    expect(model.connection).toBe('offline');
    jest.advanceTimersByTime(1000);
    socket().accept();
    expect(model.connection).toBe('online');
    const [subscribe] = socket().sent;
    expect(subscribe.watch).toContain(ID);
    expect(subscribe.cursors).toEqual({ [ID]: { worker: 1 } });
    socket().say({ type: 'events', topic: ID, events: [step(2, 2)] });
    expect(model.job(ID)?.step).toBe(2);
  });

  it('asks again what the server allows when it is back', async () => {
    await connected();
    socket().breakOff();
    settings.mockResolvedValue({ ...SETTINGS, allow_faults: false });
    jest.advanceTimersByTime(1000);
    socket().accept();
    await Promise.resolve();
    await Promise.resolve();
    expect(model.settings?.allow_faults).toBe(false);
  });

  it('tells of many events once, and only what changed', async () => {
    await connected();
    jest.advanceTimersByTime(100);
    const told: string[][] = [];
    model.changed.connect((_, changed) => told.push([...changed]));
    model.watch(ID);
    socket().say({ type: 'snapshot', topic: ID, view: newJobView(ID) });
    for (let seq = 1; seq <= 100; seq++) {
      socket().say({ type: 'events', topic: ID, events: [step(seq, seq)] });
    }
    jest.advanceTimersByTime(100);
    expect(told).toEqual([[ID]]);
    socket().say({ type: 'events', topic: ID, events: [step(3, 3)] });
    jest.advanceTimersByTime(100);
    expect(told).toHaveLength(1);
  });

  it('subscribes once for many who watch, and lets go with the last', async () => {
    await connected();
    const sent = socket().sent;
    sent.length = 0;
    const watches = [model.watch(ID), model.watch(ID)];
    expect(sent).toHaveLength(1);
    watches[0].dispose();
    watches[0].dispose();
    expect(sent).toHaveLength(1);
    watches[1].dispose();
    expect(sent[1]).toEqual({ type: 'unsubscribe', topics: [ID] });
  });

  it('watches what was asked for before there was a connection', async () => {
    model.watch(ID);
    await connected();
    expect(socket().sent[0].watch).toContain(ID);
  });

  it('keeps why a job cannot be followed until it can', async () => {
    await connected();
    model.watch(ID);
    socket().say({ type: 'problem', topic: ID, text: 'no such job' });
    expect(model.problem(ID)).toBe('no such job');
    socket().sent.length = 0;
    socket().say({ type: 'jobs', jobs: [newJobView(ID)] });
    expect(socket().sent).toEqual([
      { type: 'subscribe', watch: [ID], cursors: {} }
    ]);
    socket().say({ type: 'snapshot', topic: ID, view: newJobView(ID) });
    expect(model.problem(ID)).toBeNull();
  });

  it('knows that a job was deleted while the connection was away', async () => {
    await connected();
    model.watch(ID);
    socket().say({ type: 'snapshot', topic: ID, view: newJobView(ID) });
    socket().say({ type: 'problem', topic: ID, text: 'too many topics' });
    expect(model.job(ID)!.deleted).toBeUndefined();
    const text = `no job ${ID}; a list shows the jobs`;
    socket().say({ type: 'problem', topic: ID, text });
    expect(model.job(ID)!.deleted).toBe(true);
  });

  it('lists a followed job as fresh as its last event', async () => {
    await connected();
    model.watch(ID);
    socket().say({ type: 'jobs', jobs: [newJobView(ID)] });
    socket().say({ type: 'snapshot', topic: ID, view: newJobView(ID) });
    socket().say({ type: 'events', topic: ID, events: [step(1, 1)] });
    expect(model.jobs[0].step).toBe(1);
    expect(model.activeJobs).toHaveLength(1);
  });

  describe('the list of jobs', () => {
    const listed = (...ids: string[]) => ids.map(id => newJobView(id));
    const ids = () => model.jobs.map(job => job.id);
    let jobsBefore: jest.Mock;

    beforeEach(async () => {
      jobsBefore = jest.fn();
      Object.assign(model.api, { jobsBefore });
      await connected();
      const jobs = listed('c', 'b', 'old');
      socket().say({ type: 'jobs', jobs, older: 3, before: 'b' });
    });

    it('takes the fields that changed, and keeps the others', () => {
      const jobs = [{ id: 'b', step: 7 }];
      socket().say({ type: 'jobs.changed', jobs, older: 3, before: 'b' });
      expect(ids()).toEqual(['c', 'b', 'old']);
      expect(model.jobs[1]).toEqual({ ...newJobView('b'), step: 7 });
    });

    it('takes a new job, and forgets one that left', () => {
      const order = ['d', 'c', 'b'];
      const jobs = listed('d');
      socket().say({
        type: 'jobs.changed',
        jobs,
        order,
        older: 3,
        before: 'b'
      });
      expect(ids()).toEqual(order);
    });

    it('adds older jobs page by page, each once, and keeps them while the list moves', async () => {
      jobsBefore.mockResolvedValueOnce({ jobs: listed('a', 'old'), older: 2 });
      await model.loadOlder();
      expect(jobsBefore).toHaveBeenLastCalledWith('b');
      expect([ids(), model.olderJobs]).toEqual([['c', 'b', 'old', 'a'], 2]);
      const order = ['d', 'c', 'old'];
      const jobs = listed('d');
      socket().say({
        type: 'jobs.changed',
        jobs,
        order,
        older: 4,
        before: 'c'
      });
      expect([ids(), model.olderJobs]).toEqual([
        ['d', 'c', 'old', 'b', 'a'],
        2
      ]);
      jobsBefore.mockResolvedValueOnce({ jobs: listed('z', 'y'), older: 0 });
      await model.loadOlder();
      expect(jobsBefore).toHaveBeenLastCalledWith('old');
      expect(model.olderJobs).toBe(0);
    });

    it('forgets the pages where jobs have been deleted', async () => {
      jobsBefore.mockResolvedValueOnce({ jobs: listed('a', 'z'), older: 1 });
      await model.loadOlder();
      socket().say({ type: 'jobs.changed', jobs: [], older: 1, before: 'b' });
      expect([ids(), model.olderJobs]).toEqual([['c', 'b', 'old'], 1]);
    });

    it('leaves archived jobs out of the pages, and asks on where a page has nothing else', async () => {
      const archived = (id: string) => ({
        ...newJobView(id),
        state: 'succeeded' as const,
        labels: { ...newJobView(id).labels, archived: true }
      });
      jobsBefore.mockResolvedValueOnce({ jobs: [archived('a')], older: 4 });
      jobsBefore.mockResolvedValueOnce({
        jobs: [archived('y'), ...listed('z')],
        older: 2
      });
      await model.loadOlder();
      expect(jobsBefore).toHaveBeenLastCalledWith('a');
      expect([ids(), model.olderJobs]).toEqual([['c', 'b', 'old', 'z'], 2]);
      // Somebody archives one of those that are shown: the server counts one less.
      socket().say({ type: 'jobs.changed', jobs: [], older: 2, before: 'b' });
      expect([ids(), model.olderJobs]).toEqual([['c', 'b', 'old'], 2]);
    });

    it('shows what the list says of a job that nobody watches any more', () => {
      const watch = model.watch('b');
      socket().say({ type: 'snapshot', topic: 'b', view: newJobView('b') });
      watch.dispose();
      const jobs = [{ id: 'b', step: 9 }];
      socket().say({ type: 'jobs.changed', jobs, older: 3, before: 'b' });
      expect([model.jobs[1].step, model.summary('b')!.step]).toEqual([9, 9]);
    });
  });

  it('replaces the cluster with its snapshot', async () => {
    await connected();
    const view = { ...newClusterView(), state: 'running' };
    socket().say({ type: 'snapshot', topic: 'cluster', view });
    expect(model.cluster?.state).toBe('running');
  });

  it('does not open a socket where the extension is absent', async () => {
    settings.mockRejectedValue(new ApiError(404, 'not found'));
    await model.connect();
    expect(model.connection).toBe('absent');
    expect(sockets.all).toHaveLength(0);
  });

  it('tries again while the server does not answer', async () => {
    settings.mockRejectedValue(new ApiError(0, 'no answer'));
    await model.connect();
    expect(model.connection).toBe('offline');
    settings.mockResolvedValue(SETTINGS);
    await jest.advanceTimersByTimeAsync(6000);
    expect(sockets.all).toHaveLength(1);
  });
});
