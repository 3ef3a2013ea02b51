import { readdirSync, readFileSync } from 'fs';
import { basename, join } from 'path';

import { IEvent, isEvent } from '../events';
import { foldCluster, foldJob } from '../fold';
import { newClusterView, newJobView } from '../views';

const JOURNALS = join(__dirname, '../../../tests/journals');
const names = readdirSync(JOURNALS)
  .filter(name => name.endsWith('.jsonl'))
  .map(name => basename(name, '.jsonl'));

/** The events of a journal; lines that are no known event are skipped, as the server does. */
function events(name: string): IEvent[] {
  const found: IEvent[] = [];
  const text = readFileSync(join(JOURNALS, `${name}.jsonl`), 'utf8');
  for (const line of text.split('\n')) {
    try {
      const value: unknown = JSON.parse(line);
      if (isEvent(value)) {
        found.push(value);
      }
    } catch {
      continue; // a torn or corrupt line
    }
  }
  return found;
}

function fold(name: string, list: IEvent[]): object {
  if (name.startsWith('cluster')) {
    const view = newClusterView();
    list.forEach(event => foldCluster(view, event));
    return view;
  }
  const id = list.find(event => event.kind === 'job.submitted')!.data.id;
  const view = newJobView(id);
  list.forEach(event => foldJob(view, event));
  return view;
}

describe('fold', () => {
  it('has golden journals to be tested against', () => {
    expect(names.length).toBeGreaterThan(0);
  });

  it.each(names)('gives what Python gives for %s', name => {
    const golden = JSON.parse(
      readFileSync(join(JOURNALS, `${name}.view.json`), 'utf8')
    );
    expect(fold(name, events(name))).toEqual(golden);
  });

  it.each(names)('is idempotent for %s', name => {
    const list = events(name);
    expect(
      fold(
        name,
        list.flatMap(event => [event, event])
      )
    ).toEqual(fold(name, list));
    expect(fold(name, [...list, ...list])).toEqual(fold(name, list));
  });

  it('names a bounded number of nodes in the generations of a wide job', () => {
    const view = newJobView('wide-abcdefgh');
    const form = (number: number, nodes: number) => {
      const members = Array.from({ length: nodes }, (_, rank) => ({
        member: `node-${rank}.a`,
        node: `node-${rank}`,
        rank
      }));
      foldJob(view, {
        writer: 'coordinator',
        seq: number,
        time_s: number,
        kind: 'generation.formed',
        data: { generation: number, members, spares: [], target: 1, reason: '' }
      });
      return view.generations.map(({ generation }) => generation);
    };
    [1, 2, 3, 4].forEach(number => form(number, 1500));
    expect(form(5, 1500)).toEqual([4, 5]);
    expect(form(6, 4500)).toEqual([6]);
  });

  it('keeps few long pieces of output and many short ones', () => {
    const view = newJobView('loud-abcdefgh');
    const write = (text: string) => {
      const number = (view.seen['agent'] ?? 0) + 1;
      foldJob(view, {
        writer: 'agent',
        seq: number,
        time_s: number,
        kind: 'output.written',
        data: {
          member: 'node-0.a',
          node: 'node-0',
          rank: 0,
          stream: 'stdout',
          text
        }
      });
    };
    const lengths = () => view.output.map(piece => [...piece.text].length);
    const four = Array(4).fill(65536);
    for (let number = 0; number < 9; number++) {
      write('\u2603'.repeat(65536));
    }
    write('\u{1F600}'.repeat(655));
    expect(lengths()).toEqual([...four, 655]);
    write('\u{1F600}'.repeat(656));
    expect(lengths()).toEqual([...four.slice(1), 655, 656]);
    write('a'.repeat(300000));
    expect(lengths()).toEqual([300000]);
    for (let number = 0; number < 500; number++) {
      write('a'.repeat(600));
    }
    expect(view.output.length).toBe(400);
  });
});
