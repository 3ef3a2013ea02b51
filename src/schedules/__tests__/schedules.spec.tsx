/** The list of schedules as a person meets it. */

import { Dialog } from '@jupyterlab/apputils';
import { act } from 'react';
import * as React from 'react';

import { click, draw, find, host, shared } from '../../__tests__/page';
import { Api, ApiError, ISchedule } from '../../api';
import type { IShared } from '../../components/context';
import { ScheduleList } from '../list';
import { Schedules } from '../schedules';
import { rules, timeIn, until } from '../words';

const NIGHTLY: ISchedule = {
  name: 'nightly',
  cron: '30 6 * * mon-fri',
  zone: 'Europe/Berlin',
  words: 'At 06:30 on Monday through Friday',
  paused: false,
  next_s: Date.UTC(2026, 10, 30, 5, 30) / 1000,
  filename: '/work/nightly.ipynb',
  backend: 'local',
  created_s: 1.79e9,
  by: 'ada',
  catch_up: 'once',
  overlap: 'skip',
  keep_runs: 0,
  runs: [1, 2, 3, 4, 5].map(day => ({
    due_s: 1.79e9 + 86_400 * day,
    job: day === 4 ? '' : `nightly-abcdefg${day}`,
    state: day === 1 ? '' : day === 4 ? '' : 'succeeded',
    said: day === 4 ? 'the disk is full' : 'due at its time',
    asked: false
  }))
};

/** A view of schedules, and what it has asked for. */
async function view(found: ISchedule[], api: Partial<Api> = {}) {
  const asked: unknown[] = [];
  const opened: string[] = [];
  const asks = {
    schedules: async () => ({ schedules: found, notes: ['nothing runs now'] }),
    askSchedule: async (name: string, action: string) => {
      asked.push([name, action]);
      return '';
    },
    ...api
  };
  const given: IShared = shared(
    { api: asks as unknown as Api },
    { openJob: (id: string) => void opened.push(id) }
  );
  const list = new ScheduleList(given.model);
  draw(<Schedules list={list} />, given);
  await act(() => list.refresh());
  return { list, asked, opened };
}

it('shows when, what and the newest runs, and opens their jobs', async () => {
  const { list, opened } = await view([NIGHTLY]);
  const text = host.textContent!;
  expect(text).toContain('At 06:30 on Monday through Friday');
  expect(text).toContain('nothing runs now');
  expect(text).toContain('nightly.ipynb');
  const rows = () => [...host.querySelectorAll('tbody tr')];
  expect(rows()).toHaveLength(3);
  expect(rows()[0].textContent).toContain('nightly-abcdefg5');
  expect(rows()[1].textContent).toContain('the disk is full');
  await click('tbody .jp-Hp-link');
  expect(opened).toEqual(['nightly-abcdefg5']);
  await click('.jp-Hp-schedule > div:last-child button');
  expect(rows()).toHaveLength(5);
  expect(rows()[4].textContent).toContain('deleted');
  list.dispose();
});

it('pauses, runs, and deletes only after a question', async () => {
  const { list, asked } = await view([NIGHTLY]);
  const button = (word: string) =>
    [...host.querySelectorAll('button')].find(one => one.textContent === word)!;
  await act(async () => button('Run now').click());
  await act(async () => button('Pause').click());
  const launch = jest.spyOn(Dialog.prototype, 'launch');
  const answer = (accept: boolean) =>
    launch.mockResolvedValueOnce({
      button: accept ? Dialog.okButton() : Dialog.cancelButton(),
      isChecked: null,
      value: null
    });
  answer(false);
  await act(async () => button('Delete…').click());
  expect(asked).toEqual([
    ['nightly', 'run'],
    ['nightly', 'pause']
  ]);
  answer(true);
  await act(async () => button('Delete…').click());
  expect(asked[2]).toEqual(['nightly', 'delete']);
  list.dispose();
});

it('says what a paused one is, that there is none, and why it cannot know', async () => {
  const paused = { ...NIGHTLY, paused: true, next_s: null, runs: [] };
  const one = await view([paused]);
  expect(host.textContent).toContain('Not until it is resumed');
  expect(host.textContent).toContain('It has not run yet.');
  one.list.dispose();
  const none = await view([]);
  expect(find('.jp-Hp-start').textContent).toContain('No schedules yet');
  none.list.dispose();
  const refused = await view([], {
    schedules: () => Promise.reject(new ApiError(403, 'not authorized'))
  });
  expect(host.textContent).toContain('not authorized');
  refused.list.dispose();
});

it('has times of the zone of the schedule', () => {
  const trans = shared().trans;
  expect(timeIn('Europe/Berlin', NIGHTLY.next_s!)).toContain('06:30');
  expect(timeIn('UTC', NIGHTLY.next_s!)).toContain('05:30');
  expect(timeIn('Mars/Olympus', NIGHTLY.next_s!)).not.toBe('');
  expect(until(100, 58, trans)).toBe('in 42 s');
  expect(until(260_000, 0, trans)).toBe('in 3 days');
  expect(until(0, 5, trans)).toBe('now');
  const other = { catch_up: 'none', overlap: 'allow', keep_runs: 10 };
  expect(rules({ ...NIGHTLY, ...other }, trans)).toBe(
    'Missed times are left out; a run begins although the last one goes on; the newest 10 runs that have ended are kept'
  );
});
