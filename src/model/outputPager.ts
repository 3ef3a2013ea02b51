/**
 * A window on all that a job has printed, which a person moves back and forward. It holds a bounded part: what is
 * added at one end is left out at the other, and fetched again when the person comes back.
 */

import type { IOutputPage, IOutputPiece } from '../api';

/** The most lines that a window holds; a line is three elements of the page. */
export const MOST_LINES = 600;
/** Of a page no more is taken at once, so that the reader's place stays in the window. */
const PAGE_LINES = MOST_LINES / 2;
/** A piece is held in excerpts of so many lines. */
const EXCERPT_LINES = 100;
const PAGE_PIECES = '150';

/** What a line says of itself; `other` where it says nothing. */
export const LEVELS = ['error', 'warning', 'info', 'debug', 'other'] as const;
export type Level = (typeof LEVELS)[number];

/** What is looked for: empty for everything. */
export interface IOutputQuery {
  rank: number | null;
  text: string;
  /** Only lines of these; of all where there is none. */
  levels?: readonly Level[];
  /** The part of the time; missing for all of it. */
  part?: IOutputPart;
}

/** Steps of the newest session such as `100:200`, or times such as `10min` ago or `15:00`. */
export interface IOutputPart {
  steps?: string;
  since?: string;
  until?: string;
}

/** What the server is asked for. */
export function asked(query: IOutputQuery): Record<string, string> {
  const { rank, text, levels = [], part } = query;
  return {
    ...part,
    ...(rank !== null && { rank: String(rank) }),
    ...(text && { text }),
    ...(levels.length > 0 && { level: levels.join() })
  };
}

/** Some lines of a piece. */
export interface IExcerpt extends IOutputPiece {
  /** The number of its lines that come before. */
  offset: number;
}

export interface IOutputWindow {
  pieces: readonly IExcerpt[];
  /** Where older output ends; empty where there is none. */
  before: string;
  /** Behind which newer output is that was left out; empty where the window reaches the newest. */
  after: string;
  /** The other excerpts of the first piece, and of the last one. */
  above: readonly IExcerpt[];
  below: readonly IExcerpt[];
}

const NOTHING: IOutputWindow = {
  pieces: [],
  before: '',
  after: '',
  above: [],
  below: []
};

/** The window with a page of older output before it; of a long page, what is next to the window. */
export function withOlder(
  window: IOutputWindow | null,
  page: IOutputPage
): IOutputWindow {
  const { pieces, after, below } = window ?? NOTHING;
  const found = page.pieces.flatMap(excerpts);
  const [left, taken] = ending(found, PAGE_LINES);
  const [kept, over] = beginning([...taken, ...pieces], MOST_LINES);
  const cut = over.length > 0;
  return {
    pieces: kept,
    ...(left.length > 0
      ? { before: taken[0].place, above: sharing(left, taken[0]) }
      : { before: page.before, above: [] }),
    after: cut ? kept[kept.length - 1].place : after,
    below: cut ? sharing([...over, ...below], kept[kept.length - 1]) : below
  };
}

/** The window with a page of newer output behind it; of a long page, what is next to the window. */
export function withNewer(
  window: IOutputWindow,
  page: IOutputPage
): IOutputWindow {
  const { pieces, before, above } = window;
  const found = page.pieces.flatMap(excerpts);
  const [taken, left] = beginning(found, PAGE_LINES);
  const [over, kept] = ending([...pieces, ...taken], MOST_LINES);
  const cut = over.length > 0;
  const last = taken[taken.length - 1];
  return {
    pieces: kept,
    before: cut ? kept[0].place : before,
    above: cut ? sharing([...above, ...over], kept[0]) : above,
    ...(left.length > 0
      ? { after: last.place, below: sharing(left, last) }
      : { after: page.more ? page.after : '', below: [] })
  };
}

/** Excerpts that a window already has, as a page; what comes before or after them stays as it is. */
function heldPage(
  pieces: readonly IExcerpt[],
  ends: { before?: string; after?: string }
): IOutputPage {
  const { before = '', after = '' } = ends;
  return { pieces: [...pieces], before, after, more: after !== '' };
}

/** A piece in excerpts; of one nothing is cut off. */
function excerpts(piece: IOutputPiece | IExcerpt): IExcerpt[] {
  if ('offset' in piece) {
    return [piece];
  }
  const lines = piece.text.split(/(?<=\n)/);
  const found: IExcerpt[] = [];
  for (let offset = 0; offset < lines.length; offset += EXCERPT_LINES) {
    const text = lines.slice(offset, offset + EXCERPT_LINES).join('');
    found.push({ ...piece, text, offset });
  }
  return found;
}

/** Those of the same piece as `one`. */
function sharing(given: readonly IExcerpt[], one: IExcerpt): IExcerpt[] {
  return given.filter(other => other.place === one.place);
}

/** As many of the first excerpts as have up to so many lines, at least one, and the others. */
function beginning(
  given: readonly IExcerpt[],
  most: number
): [IExcerpt[], IExcerpt[]] {
  const count = fits(given, most);
  return [given.slice(0, count), given.slice(count)];
}

/** As many of the last excerpts as have up to so many lines, at least one, behind the others. */
function ending(
  given: readonly IExcerpt[],
  most: number
): [IExcerpt[], IExcerpt[]] {
  const first = given.length - fits([...given].reverse(), most);
  return [given.slice(0, first), given.slice(first)];
}

function fits(given: readonly IExcerpt[], most: number): number {
  let lines = 0;
  for (let index = 0; index < given.length; index++) {
    lines += given[index].text.split(/\n(?!$)/).length;
    if (index > 0 && lines > most) {
      return index;
    }
  }
  return given.length;
}

/** Fetches pages as they are asked for, one at a time; what was asked for before a new query is forgotten. */
export class OutputPager {
  window: IOutputWindow | null = null;
  /** The direction in which a page is on its way. */
  busy: 'older' | 'newer' | null = null;
  /** The server's sentence where a page was refused. */
  problem = '';
  query: IOutputQuery = { rank: null, text: '' };

  constructor(
    private readonly _fetch: (
      query: Record<string, string>
    ) => Promise<IOutputPage>,
    private readonly _changed: () => void
  ) {}

  /** Show the newest of what is looked for. */
  open(query: IOutputQuery): Promise<void> {
    this.close();
    this.query = query;
    return this._back('');
  }

  /** Forget everything; a page that is on its way, too. */
  close(): void {
    this._turn++;
    this.window = null;
    this.busy = null;
    this.problem = '';
  }

  /** Older output, as far back as it takes to find some. */
  async older(): Promise<void> {
    if (!this.window || this.busy) {
      return;
    }
    const { above, before } = this.window;
    if (above.length > 0) {
      this.window = withOlder(this.window, heldPage(above, { before }));
      this._changed();
    } else if (before) {
      await this._back(before);
    }
  }

  /** Newer output that was left out. */
  async newer(): Promise<void> {
    if (this.window?.below.length && !this.busy) {
      const { below, after } = this.window;
      this.window = withNewer(this.window, heldPage(below, { after }));
      this._changed();
      return;
    }
    if (!this.window?.after || this.busy) {
      return;
    }
    const turn = this._turn;
    this.busy = 'newer';
    this._changed();
    let count = 0;
    while (turn === this._turn && this.window?.after && count === 0) {
      const page = await this._page(turn, {
        after: this.window.after,
        limit: PAGE_PIECES
      });
      if (page && this.window) {
        this.window = withNewer(this.window, page);
        count = page.pieces.length;
        this._changed();
      }
    }
    this._done(turn);
  }

  private async _back(before: string): Promise<void> {
    const turn = this._turn;
    let at = before;
    let count = 0;
    this.busy = 'older';
    this._changed();
    do {
      const page = await this._page(turn, {
        tail: PAGE_PIECES,
        ...(at && { before: at })
      });
      if (!page) {
        break;
      }
      this.window = withOlder(this.window, page);
      at = page.before;
      count += page.pieces.length;
      this._changed();
    } while (at && count === 0);
    this._done(turn);
  }

  /** A page; null where it was refused, or comes too late. */
  private async _page(
    turn: number,
    part: Record<string, string>
  ): Promise<IOutputPage | null> {
    try {
      const page = await this._fetch({
        ...part,
        ...asked(this.query)
      });
      return turn === this._turn ? page : null;
    } catch (error) {
      if (turn === this._turn) {
        this._turn++; // no further page of this query
        this.busy = null;
        this.problem = error instanceof Error ? error.message : String(error);
        this._changed();
      }
      return null;
    }
  }

  private _done(turn: number): void {
    if (turn === this._turn) {
      this.busy = null;
      this._changed();
    }
  }

  private _turn = 0;
}
