import { ServerConnection } from '@jupyterlab/services';

import { Api, ApiError, backoffMs, Stream } from '../api';
import { fakeSockets } from './fakes';

describe('backoffMs', () => {
  it('doubles, and is bounded', () => {
    const delays = [0, 1, 2, 3, 10, 1000].map(n => backoffMs(n, 0));
    expect(delays).toEqual([500, 1000, 2000, 4000, 30_000, 30_000]);
  });

  it('is spread by up to a quarter', () => {
    expect(backoffMs(1, 0.999)).toBeGreaterThanOrEqual(750);
    expect(backoffMs(1, 0.5)).toBe(875);
  });
});

describe('Stream', () => {
  const cursors: Record<string, Record<string, number>> = {};
  let sockets: ReturnType<typeof fakeSockets>;
  let stream: Stream;

  beforeEach(() => {
    jest.useFakeTimers();
    sockets = fakeSockets();
    stream = new Stream({
      open: sockets.open,
      cursor: topic => cursors[topic],
      jitter: () => 0
    });
  });

  afterEach(() => {
    stream.dispose();
    jest.useRealTimers();
  });

  it('subscribes to what is watched when the connection opens', () => {
    stream.watch('cluster');
    stream.watch('jobs');
    expect(sockets.all).toHaveLength(1);
    expect(stream.state).toBe('connecting');
    sockets.all[0].accept();
    expect(sockets.all[0].sent).toEqual([
      { type: 'subscribe', watch: ['cluster', 'jobs'], cursors: {} }
    ]);
    stream.watch('a-job');
    stream.unwatch('a-job');
    expect(sockets.all[0].sent.slice(1)).toEqual([
      { type: 'subscribe', watch: ['a-job'], cursors: {} },
      { type: 'unsubscribe', topics: ['a-job'] }
    ]);
  });

  it('comes back later and later, and resumes from its cursors', () => {
    stream.watch('cluster');
    sockets.all[0].breakOff();
    expect(stream.state).toBe('waiting');
    jest.advanceTimersByTime(499);
    expect(sockets.all).toHaveLength(1);
    jest.advanceTimersByTime(1);
    expect(sockets.all).toHaveLength(2);
    sockets.all[1].breakOff();
    jest.advanceTimersByTime(999);
    expect(sockets.all).toHaveLength(2);
    jest.advanceTimersByTime(1);
    expect(sockets.all).toHaveLength(3);

    cursors.cluster = { supervisor: 7 };
    sockets.all[2].accept();
    expect(sockets.all[2].sent).toEqual([
      {
        type: 'subscribe',
        watch: ['cluster'],
        cursors: { cluster: { supervisor: 7 } }
      }
    ]);
    delete cursors.cluster;
  });

  it('is patient again once a message has come', () => {
    stream.watch('cluster');
    sockets.all[0].breakOff();
    jest.advanceTimersByTime(500);
    sockets.all[1].accept();
    sockets.all[1].say({ type: 'jobs', jobs: [] });
    sockets.all[1].breakOff();
    jest.advanceTimersByTime(500);
    expect(sockets.all).toHaveLength(3);
  });

  it('connects at once, and goes on, when the server asks it to sign in again', () => {
    const states: string[] = [];
    stream.watch('cluster');
    sockets.all[0].accept();
    stream.stateChanged.connect((_, state) => states.push(state));
    cursors.cluster = { supervisor: 7 };
    sockets.all[0].breakOff(4000);
    expect(sockets.all).toHaveLength(2);
    sockets.all[1].accept();
    expect(sockets.all[1].sent[0].cursors).toEqual(cursors);
    expect(states).toEqual(['connecting', 'open']);
    delete cursors.cluster;
  });

  it('tries at once when the browser is online again', () => {
    stream.watch('cluster');
    sockets.all[0].breakOff();
    window.dispatchEvent(new Event('online'));
    expect(sockets.all).toHaveLength(2);
    jest.advanceTimersByTime(60_000);
    expect(sockets.all).toHaveLength(2);
  });

  it('leaves out what is not of the protocol', () => {
    const received: unknown[] = [];
    stream.received.connect((_, message) => received.push(message));
    stream.watch('cluster');
    const [socket] = sockets.all;
    socket.accept();
    socket.say('not json');
    socket.say({ type: 'unheard of' });
    socket.say({ type: 'events', topic: 'cluster' });
    socket.say({ type: 'events', topic: 'cluster', events: [{ seq: 'x' }] });
    expect(received).toEqual([
      { type: 'events', topic: 'cluster', events: [] }
    ]);
  });

  it('is quiet after disposal', () => {
    stream.watch('cluster');
    sockets.all[0].breakOff();
    stream.dispose();
    jest.advanceTimersByTime(60_000);
    window.dispatchEvent(new Event('online'));
    expect(sockets.all).toHaveLength(1);
  });
});

describe('Api', () => {
  function api(answer: Response): { api: Api; requests: Request[] } {
    const requests: Request[] = [];
    const settings = ServerConnection.makeSettings({
      baseUrl: 'http://localhost/base/',
      wsUrl: 'ws://localhost/base/',
      fetch: async (request: RequestInfo | URL) => {
        requests.push(request as Request);
        return answer;
      }
    });
    return { api: new Api(settings), requests };
  }

  it('stands below any base URL', async () => {
    const made = api(new Response('{"version": "1"}'));
    expect(await made.api.settings()).toEqual({ version: '1' });
    expect(made.requests[0].url).toMatch(
      /^http:\/\/localhost\/base\/jupyter_hyperpod\/api\/v1\/settings\b/
    );
  });

  it('says what the server says when it refuses', async () => {
    const made = api(
      new Response('{"message": "no such job", "hint": "list the jobs"}', {
        status: 404
      })
    );
    const refusal: unknown = await made.api
      .scaleJob('a b', 3)
      .catch(error => error);
    expect(refusal).toBeInstanceOf(ApiError);
    expect(refusal).toMatchObject({
      status: 404,
      message: 'no such job',
      hint: 'list the jobs'
    });
    expect(made.requests[0].method).toBe('POST');
    expect(made.requests[0].url).toContain('/jobs/a%20b/scale');
  });

  it('has words for an answer that is not its own', async () => {
    const made = api(
      new Response('<html>', { status: 502, statusText: 'Bad' })
    );
    await expect(made.api.settings()).rejects.toThrow('502 Bad');
  });
});
