import * as React from 'react';
import { act } from 'react';

import { draw, fill, find, host, shared } from '../../__tests__/page';
import type { IOutputPiece } from '../../api';
import { Output } from '../../components/output';
import { IJobView, newJobView } from '../../model/views';
import type { IOutputPart } from '../../model/outputPager';
import { jobPicture } from '../picture';
import { allOutput, OutputTools, partOf, textOf } from '../outputTools';

function piece(rank: number, text: string): IOutputPiece {
  return {
    time_s: 1,
    node: `node-${rank}`,
    rank,
    stream: 'stdout',
    text,
    notice: false,
    place: `1.0 w ${rank}`
  };
}

it('a part is asked for in the words of the server', () => {
  expect(partOf('steps', '100', '200')).toEqual({ steps: '100:200' });
  expect(partOf('steps', '', '5')).toEqual({ steps: ':5' });
  expect(partOf('time', '10min', '')).toEqual({ since: '10min' });
  expect(partOf('time', '', '')).toBeUndefined();
});

it('all pages are read, and lines have ranks where several have printed', async () => {
  const pages = [
    { pieces: [piece(0, 'a'), piece(1, 'b\n')], after: 'x', more: true },
    { pieces: [piece(0, 'c\n')], after: 'y', more: false }
  ].map(page => ({ ...page, before: '' }));
  const queries: Record<string, string>[] = [];
  const found = await allOutput(
    async query => {
      queries.push(query);
      return pages[queries.length - 1];
    },
    () => undefined
  );
  expect(queries).toEqual([{ limit: '1000' }, { limit: '1000', after: 'x' }]);
  expect(textOf(found)).toBe('[0] ac\n[1] b\n');
  expect(textOf([piece(3, 'alone\n')])).toBe('alone\n');
});

it('a part is asked for once, when it is written', () => {
  const parts: unknown[] = [];
  const query = { rank: null, text: '', part: { steps: '7:' } };
  draw(
    <OutputTools
      job={newJobView('a-job')}
      query={query}
      onPart={part => parts.push(part)}
      onLevels={() => undefined}
    />,
    shared()
  );
  const select = find('select') as HTMLSelectElement;
  fill(select, 'steps');
  const input = find('input') as HTMLInputElement;
  fill(input, '7');
  const enter = { key: 'Enter', bubbles: true };
  act(() => void input.dispatchEvent(new KeyboardEvent('keydown', enter)));
  expect(parts).toEqual([undefined]); // it is the one that is shown already
});

it('the picture of a job stands alone, whatever its name', () => {
  const job = {
    ...newJobView('a-job'),
    name: '<script>&"\u0000',
    history: [
      [1, 2, 10, 1],
      [2, null, 11, 1],
      [3, 1, 12, 1]
    ] as [number, number | null, number, number][],
    updated_s: 12,
    generations: [
      {
        generation: 1,
        time_s: 9,
        nodes: ['node-1'],
        spares: ['node-2'],
        reason: ''
      }
    ]
  };
  const text = jobPicture(job, 'Running', () => '');
  const drawn = new DOMParser().parseFromString(text, 'image/svg+xml');
  expect(drawn.querySelector('parsererror')).toBeNull();
  expect(drawn.querySelector('script')).toBeNull();
  expect(drawn.querySelectorAll('rect')).toHaveLength(3);
  expect(drawn.documentElement.textContent).toContain('<script>&"');
});

function choose(value: string): void {
  fill(find('select'), value);
}

it('fields stay while a part is changed, and go with the newest output', () => {
  let newest = () => {};
  function Parent(): JSX.Element {
    const [part, onPart] = React.useState<IOutputPart | undefined>({
      steps: '7:'
    });
    newest = () => onPart(undefined);
    const query = { rank: null, text: '', part };
    return (
      <OutputTools
        job={newJobView('a-job')}
        query={query}
        onPart={onPart}
        onLevels={() => undefined}
      />
    );
  }
  draw(<Parent />, shared());
  choose('time');
  expect(host.querySelectorAll('input')).toHaveLength(2);
  const input = find('input') as HTMLInputElement;
  const write = (text: string) => fill(input, text);
  const take = () => {
    const enter = new KeyboardEvent('keydown', { key: 'Enter', bubbles: true });
    act(() => void input.dispatchEvent(enter));
  };
  write('10min');
  take();
  write('');
  take();
  expect(host.querySelectorAll('input')).toHaveLength(2);
  write('20min');
  take();
  act(newest);
  expect(host.querySelectorAll('input')).toHaveLength(0);
});

it('levels are asked of the server, together with what else is looked for, until the newest is wanted', async () => {
  jest.useFakeTimers();
  const output = jest.fn(async () => ({
    pieces: [],
    after: '',
    before: '',
    more: false
  }));
  const written = { member: 'm', node: 'node-1', rank: 0, stream: 'stdout' };
  const job: IJobView = {
    ...newJobView('a-job'),
    state: 'succeeded',
    output: [{ ...written, text: 'line\n', time_s: 5 }]
  };
  draw(
    <Output job={job} tall Tools={OutputTools} />,
    shared({ api: { output } } as any)
  );
  const press = async (name: string) => {
    const button = [...host.querySelectorAll('button')].find(
      one => one.textContent === name
    )!;
    act(() => button.click());
    await act(async () => {
      await jest.advanceTimersByTimeAsync(10);
    });
    return button;
  };
  expect((await press('Errors')).getAttribute('aria-pressed')).toBe('true');
  await press('Warnings');
  expect(output).toHaveBeenLastCalledWith('a-job', {
    tail: '150',
    level: 'error,warning'
  });
  expect(host.textContent).toContain('No line has this level.');
  await press('Errors');
  expect(output).toHaveBeenLastCalledWith('a-job', {
    tail: '150',
    level: 'warning'
  });
  await press('Newest output');
  expect(host.querySelector('[aria-pressed="true"]')).toBeNull();
  expect(host.textContent).toContain('line');
  jest.useRealTimers();
});
