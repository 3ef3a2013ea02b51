import { Pace } from '../pace';

describe('Pace', () => {
  let now_ms: number;

  beforeEach(() => {
    jest.useFakeTimers();
    now_ms = 1000;
    jest.spyOn(performance, 'now').mockImplementation(() => now_ms);
  });

  afterEach(() => {
    jest.restoreAllMocks();
    jest.useRealTimers();
  });

  function draw(pace: Pace, took_ms: number, ...topics: string[]): void {
    pace.begin(new Set(topics), now_ms);
    now_ms += took_ms;
    jest.runAllTimers();
  }

  it('lets a topic that was quiet be told of at once, and another one beside it', () => {
    const pace = new Pace();
    expect(pace.due('job')).toBeLessThan(now_ms);
    draw(pace, 1, 'job');
    expect(pace.due('job')).toBe(1050);
    expect(pace.due('cluster')).toBeLessThan(now_ms);
  });

  it('waits for six times as long as a redraw took, and for no longer than half a second', () => {
    const pace = new Pace();
    draw(pace, 20, 'job', 'cluster');
    expect([pace.due('job'), pace.due('cluster')]).toEqual([1120, 1120]);
    now_ms = 2000;
    draw(pace, 5000, 'job');
    expect(pace.due('job')).toBe(2500);
  });

  it('forgets topics whose time has come', () => {
    const pace = new Pace();
    draw(pace, 1, 'job');
    now_ms = 1050;
    draw(pace, 1, 'cluster');
    expect(pace.due('job')).toBe(-Infinity);
  });
});
