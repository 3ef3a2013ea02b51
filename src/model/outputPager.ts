/**
 * A window on all that a job has printed, which a person moves back and forward. It holds a bounded part: what is
 * added at one end is left out at the other, and fetched again when the person comes back.
 */

import type { IOutputPage, IOutputPiece } from '../api';

/** The most pieces and lines that a window holds, beyond its newest page. */
export const MOST_PIECES = 600;
export const MOST_LINES = 3000;
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

export interface IOutputWindow {
  pieces: readonly IOutputPiece[];
  /** Where older output ends; empty where there is none. */
  before: string;
  /** Behind which newer output is that was left out; empty where the window reaches the newest. */
  after: string;
}

/** The window with a page of older output before it; of a long page, what is next to the window. */
export function withOlder(
  window: IOutputWindow | null,
  page: IOutputPage
): IOutputWindow {
  const first = page.pieces.length - fits([...page.pieces].reverse());
  const pieces = [...page.pieces.slice(first), ...(window?.pieces ?? [])];
  const kept = fits(pieces);
  return {
    pieces: pieces.slice(0, kept),
    before: first > 0 ? page.pieces[first].place : page.before,
    after: kept < pieces.length ? pieces[kept - 1].place : (window?.after ?? '')
  };
}

/** The window with a page of newer output behind it; of a long page, what is next to the window. */
export function withNewer(
  window: IOutputWindow,
  page: IOutputPage
): IOutputWindow {
  const last = fits(page.pieces);
  const pieces = [...window.pieces, ...page.pieces.slice(0, last)];
  const first = pieces.length - fits([...pieces].reverse());
  const more = page.more ? page.after : '';
  return {
    pieces: pieces.slice(first),
    before: first > 0 ? pieces[first].place : window.before,
    after: last < page.pieces.length ? page.pieces[last - 1].place : more
  };
}

/** How many of the first pieces a window holds; at least one. */
function fits(pieces: readonly IOutputPiece[]): number {
  let lines = 0;
  for (let index = 0; index < pieces.length; index++) {
    lines += pieces[index].text.split('\n').length;
    if (index > 0 && (index >= MOST_PIECES || lines > MOST_LINES)) {
      return index;
    }
  }
  return pieces.length;
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
    if (this.window?.before && !this.busy) {
      await this._back(this.window.before);
    }
  }

  /** Newer output that was left out. */
  async newer(): Promise<void> {
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
