import * as React from 'react';
import { act } from 'react';

import type { IOutputPage } from '../../api';
import { IJobView, newJobView } from '../../model/views';
import { draw, fill, find, host, shared } from '../../__tests__/page';
import { Output } from '../output';

const texts = () =>
  [...host.querySelectorAll('.jp-Hp-text')].map(line => line.textContent);

function piece(number: number, text: string) {
  return {
    time_s: number,
    node: 'node-1',
    rank: 0,
    stream: 'stdout',
    text,
    notice: false,
    place: `${number}.0 output-node-1.ab ${number}`
  };
}

/** A job whose journal has the line 5 of 9. */
function job(state: IJobView['state'] = 'running'): IJobView {
  const written = {
    member: 'm',
    node: 'node-1',
    rank: 0,
    stream: 'stdout',
    text: 'line 5\n',
    time_s: 5
  };
  return { ...newJobView('a-job'), state, output: [written] };
}

/** Lets what was asked for be answered. */
async function settle(milliseconds: number): Promise<void> {
  await act(async () => {
    await jest.advanceTimersByTimeAsync(milliseconds);
  });
}

const output = jest.fn(
  async (_: string, query: Record<string, string>): Promise<IOutputPage> => {
    const all = [1, 2, 3, 4, 5, 6, 7, 8, 9]
      .map(number => piece(number, `line ${number}\n`))
      .filter(({ text }) => text.includes(query.text ?? ''));
    const before = query.before ? Number(query.before.split(' ')[0]) : 10;
    const found = all
      .filter(({ time_s }) => time_s < before)
      .slice(-Math.min(Number(query.tail), 3));
    const older = found.length > 0 && found[0].time_s > all[0].time_s;
    return {
      pieces: found,
      after: '',
      before: older ? found[0].place : '',
      more: false
    };
  }
);

beforeEach(() => {
  jest.useFakeTimers();
  output.mockClear();
});

afterEach(() => {
  jest.useRealTimers();
});

const given = () => shared({ api: { output } } as any);

it('shows what is newer than the journal, and reads back to the oldest', async () => {
  draw(<Output job={job('succeeded')} />, given());
  await settle(10);
  expect(texts()).toEqual(['line 7', 'line 8', 'line 9']);
  await act(async () => find('.jp-Hp-log .jp-Hp-more').click());
  await settle(10);
  expect(texts()).toEqual([4, 5, 6, 7, 8, 9].map(number => `line ${number}`));
  await act(async () => find('.jp-Hp-log .jp-Hp-more').click());
  await settle(10);
  expect(texts()).toHaveLength(9);
  expect(find('[role="status"]').textContent).toContain('oldest output');
  await act(async () => find('.jp-Hp-output-foot button').click());
  await settle(10);
  expect(texts()).toEqual(['line 7', 'line 8', 'line 9']);
});

it('asks now and then while nothing comes, and not at all while it is folded', async () => {
  draw(<Output job={job()} folded />, given());
  await settle(60_000);
  expect(output).not.toHaveBeenCalled();
  await act(async () => find('.jp-Hp-fold').click());
  await settle(3100);
  expect(texts()).toEqual(['line 7', 'line 8', 'line 9']);
  await settle(120_000);
  expect(output.mock.calls.length).toBeLessThan(12);
});

it('searches and marks what it finds', async () => {
  draw(<Output job={job('succeeded')} />, given());
  fill(find('input'), 'line 2');
  await settle(500);
  expect(texts()).toEqual(['line 2']);
  expect(find('mark').textContent).toBe('line 2');
  expect(find('[role="status"]').textContent).toBe('All output was searched.');
});

it('offers older output only where there is some', async () => {
  const only = jest.fn(async () => ({
    pieces: [piece(5, 'line 5\n')],
    after: '',
    before: '',
    more: false
  }));
  draw(
    <Output job={job('succeeded')} />,
    shared({ api: { output: only } } as any)
  );
  await settle(10);
  expect(texts()).toEqual(['line 5']);
  expect(host.querySelector('.jp-Hp-more')).toBeNull();
});

it('asks for nothing where the job was deleted', async () => {
  const ended = job('stopped');
  draw(<Output job={{ ...ended, deleted: true }} />, given());
  await settle(10);
  expect(texts()).toEqual(['line 5']);
  expect(host.querySelector('button, input')).toBeNull();
  expect(output).not.toHaveBeenCalled();
});
