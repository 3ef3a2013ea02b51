/** Which blocks of tiles of the smallest size are near the part of the list that can be seen. */

/** Blocks so many pixels beyond the edges are drawn, so that scrolling shows no gap. */
const OVERSCAN = 160;

/** How tiles are laid out, in pixels, as it was measured: with some zooms of the page it is not what base.css says. */
export interface ITileSize {
  /** The width of a tile. */
  tile: number;
  /** From a tile to the next one, and from a row to the next one. */
  pitch: number;
  /** A heading and the gap below it. */
  heading: number;
  /** The width of a row. */
  width: number;
}

/** What is seen of a list that scrolls, in pixels. */
export interface IPlace extends ITileSize {
  top: number;
  height: number;
}

/** The height of a block of so many tiles, with the gap below it. */
export function heightOf(
  tiles: number,
  headed: boolean,
  { tile, pitch, heading, width }: ITileSize
): number {
  const columns = Math.max(1, Math.floor((width + pitch - tile) / pitch));
  return Math.ceil(tiles / columns) * pitch + (headed ? heading : 0);
}

/** The first block that is drawn, and the one after the last. */
export function near(
  heights: readonly number[],
  place: { top: number; height: number }
): [number, number] {
  const [from, to] = [
    place.top - OVERSCAN,
    place.top + place.height + OVERSCAN
  ];
  let first = 0;
  let above = 0;
  while (first < heights.length - 1 && above + heights[first] <= from) {
    above += heights[first++];
  }
  let last = first;
  while (last < heights.length && above < to) {
    above += heights[last++];
  }
  return [first, last];
}
