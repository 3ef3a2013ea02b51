import type { IOutputPage, IOutputPiece } from '../../api';
import { outputLines } from '../../derive';
import { MOST_LINES, OutputPager } from '../outputPager';

const COUNT = 2000;
const EVERY: IOutputPiece[] = Array.from({ length: COUNT }, (_, number) => ({
  time_s: number,
  node: 'node-1',
  rank: number % 2,
  stream: 'stdout',
  text: `line ${number}\n`,
  notice: false,
  place: `${number}.0 output-node-1.ab ${number + 1}`
}));

/** As the server gives them; a search reads 100 pieces for each page. */
function pages(asked: Record<string, string>[] = []) {
  return async (query: Record<string, string>): Promise<IOutputPage> => {
    asked.push(query);
    const has = (piece: IOutputPiece) =>
      (!query.rank || piece.rank === Number(query.rank)) &&
      piece.text.includes(query.text ?? '');
    const at = (place: string) => Number(place.split(' ')[0]);
    if (query.tail) {
      const end = query.before ? at(query.before) : COUNT;
      const begin = Math.max(0, end - Math.min(100, Number(query.tail)));
      return {
        pieces: EVERY.slice(begin, end).filter(has),
        after: '',
        before: begin > 0 ? EVERY[begin].place : '',
        more: false
      };
    }
    const begin = at(query.after) + 1;
    const end = begin + Math.min(100, Number(query.limit));
    return {
      pieces: EVERY.slice(begin, end).filter(has),
      after: EVERY[Math.min(end, COUNT) - 1].place,
      before: '',
      more: end < COUNT
    };
  };
}

const numbers = (pager: OutputPager) =>
  pager.window!.pieces.map(piece => piece.time_s);

function expectRun(pager: OutputPager): void {
  const found = numbers(pager);
  expect(found).toEqual(found.map((_, index) => found[0] + index));
  expect(found.length).toBeLessThanOrEqual(MOST_LINES);
}

it('goes back to the first piece and forward to the last in bounded memory', async () => {
  const pager = new OutputPager(pages(), () => undefined);
  await pager.open({ rank: null, text: '' });
  expect(numbers(pager)[99]).toBe(COUNT - 1);
  while (pager.window!.before) {
    await pager.older();
    expectRun(pager);
  }
  expect(numbers(pager)[0]).toBe(0);
  while (pager.window!.after) {
    await pager.newer();
    expectRun(pager);
  }
  expect(numbers(pager)[numbers(pager).length - 1]).toBe(COUNT - 1);
});

it('searches as far back as it takes, and further when asked', async () => {
  const pager = new OutputPager(pages(), () => undefined);
  await pager.open({ rank: null, text: 'line 100' });
  expect(numbers(pager)).toEqual(
    Array.from({ length: 10 }, (_, n) => 1000 + n)
  );
  await pager.older();
  expect(numbers(pager)[0]).toBe(100);
  await pager.older();
  expect(pager.window!.before).toBe('');
  await pager.open({ rank: 1, text: 'nowhere' });
  expect(pager.window).toEqual({
    pieces: [],
    before: '',
    after: '',
    above: [],
    below: []
  });
});

it('asks for the rank, and forgets what a new query has overtaken', async () => {
  const asked: Record<string, string>[] = [];
  const pager = new OutputPager(pages(asked), () => undefined);
  const first = pager.open({ rank: null, text: 'line 5' });
  const second = pager.open({ rank: 1, text: '' });
  await Promise.all([first, second]);
  expect(asked.map(query => query.rank)).toEqual([undefined, '1']);
  expect(new Set(pager.window!.pieces.map(piece => piece.rank))).toEqual(
    new Set([1])
  );
});

it('goes through pieces of many lines in bounded memory, and neither loses nor repeats a line', async () => {
  const lengths = [1, 8000, 3, 650, 100, 101, 1, 299, 1200];
  let line = 0;
  const long: IOutputPiece[] = lengths.map((length, number) => ({
    ...EVERY[number],
    text: Array.from({ length }, () => `${line++}\n`).join('')
  }));
  const one = async (query: Record<string, string>): Promise<IOutputPage> => {
    const of = (place: string) => long.findIndex(one => one.place === place);
    const at = query.after
      ? of(query.after) + 1
      : (query.before ? of(query.before) : long.length) - 2;
    const pieces = long.slice(Math.max(0, at), Math.max(0, at) + 2);
    return {
      pieces: at === -1 ? long.slice(0, 1) : pieces,
      after: pieces.at(-1)?.place ?? '',
      before: (at > 0 && long[at]?.place) || '',
      more: at + 2 < long.length
    };
  };
  const lines = (pager: OutputPager) =>
    outputLines(pager.window!.pieces).map(({ text }) => Number(text));
  const expectLines = (pager: OutputPager) => {
    const found = lines(pager);
    expect(found).toEqual(found.map((_, index) => found[0] + index));
    expect(found.length).toBeLessThanOrEqual(MOST_LINES);
    const keys = outputLines(pager.window!.pieces).map(({ key }) => key);
    expect(new Set(keys).size).toBe(found.length);
    return found;
  };
  const pager = new OutputPager(one, () => undefined);
  await pager.open({ rank: null, text: '' });
  expect(expectLines(pager).at(-1)).toBe(line - 1);
  while (lines(pager)[0] > 0) {
    const [top] = lines(pager);
    await pager.older();
    expect(expectLines(pager)[0]).toBeLessThan(top);
    expect(lines(pager)).toContain(top); // the reader's place
  }
  expect([pager.window!.before, pager.window!.above]).toEqual(['', []]);
  while (lines(pager).at(-1)! < line - 1) {
    const end = lines(pager).at(-1)!;
    await pager.newer();
    expect(expectLines(pager).at(-1)).toBeGreaterThan(end);
    expect(lines(pager)).toContain(end);
  }
  await pager.newer(); // whether there is more
  expect([pager.window!.after, pager.window!.below]).toEqual(['', []]);
});

it('says why a page was refused, and asks again', async () => {
  let refuse = true;
  const given = pages();
  const pager = new OutputPager(
    query => (refuse ? Promise.reject(new Error('no such job')) : given(query)),
    () => undefined
  );
  await pager.open({ rank: null, text: '' });
  expect([pager.problem, pager.busy]).toEqual(['no such job', null]);
  refuse = false;
  await pager.open({ rank: null, text: '' });
  expect(pager.problem).toBe('');
  expectRun(pager);
});
