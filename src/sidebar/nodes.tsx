import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { useShared } from '../components/context';
import { watchLayout } from '../components/layout';
import type { INodeView } from '../model/views';
import { NodeRole, roleLabel, roleOf } from '../nodes';
import type { INodeGroup } from './filters';
import { heightOf, IPlace, ITileSize, near } from './tiles';

/** Up to this number of nodes, tiles show names. */
export const NAMED = 24;
/** Above this number, tiles have the smallest size. */
const SMALL = 600;
/** Tiles per block; a block without news is not drawn again. */
const BLOCK = 100;
/** A row so many pixels away is not the next one: what lies between is not drawn. */
const FAR = 120;
/** Scrolling by fewer pixels draws nothing anew. */
const STEP = 80;

/** Nodes below a heading; the only group of all nodes has none. */
export interface IHeadedGroup extends INodeGroup {
  label: string;
}

interface INodeGrid {
  groups: readonly IHeadedGroup[];
  /** The roles of nodes in a job. */
  parts: ReadonlyMap<string, NodeRole>;
  selected: string | null;
  onSelect: (node: string) => void;
}

/** Health of all nodes, one tile each. Arrow keys move, Enter selects. Of thousands, only blocks near those that can be seen exist. */
export function NodeGrid(props: INodeGrid): JSX.Element {
  const { groups, parts, selected, onSelect } = props;
  const { trans } = useShared();
  const box = React.useRef<HTMLDivElement>(null);
  const nodes = groups.flatMap(group => group.nodes);
  const size =
    nodes.length <= NAMED ? 'named' : nodes.length <= SMALL ? 'tile' : 'small';
  const chosen = nodes.find(node => node.node === selected) ?? null;
  const current = chosen ?? nodes[0] ?? null;
  const focus = useFocus(box);
  const onKeyDown = (event: React.KeyboardEvent<HTMLDivElement>) => {
    const to = destination(event.key, event.target as HTMLElement, nodes);
    if (to !== null) {
      event.preventDefault();
      onSelect(nodes[to].node);
      focus(nodes[to].node);
    }
  };
  // One listener for all tiles: thousands of listeners would make collections of garbage longer.
  const onClick = (event: React.MouseEvent<HTMLDivElement>) => {
    const tile = (event.target as Element).closest<HTMLElement>(
      '[role=option]'
    );
    if (tile) {
      onSelect(tile.dataset.node!);
    }
  };
  // A tile that had its title always would be read twice to those who hear the page.
  const onMouseOver = (event: React.MouseEvent<HTMLDivElement>) => {
    const tile = (event.target as Element).closest<HTMLElement>(
      '[role=option]'
    );
    if (tile) {
      tile.title = tile.getAttribute('aria-label')!;
    }
  };
  const blocks = blocksOf(groups);
  const place = usePlace(box, size === 'small');
  const heights = blocks.map(block =>
    heightOf(block.nodes.length, block.label !== '', place)
  );
  const [first, last] =
    size === 'small' ? near(heights, place) : [0, blocks.length];
  return (
    <div
      ref={box}
      className="jp-Hp-nodes"
      data-size={size}
      role="listbox"
      aria-label={trans.__('Nodes')}
      onKeyDown={onKeyDown}
      onClick={onClick}
      onMouseOver={onMouseOver}
    >
      {blocks.map((block, index) => {
        const holds = (node: INodeView | null) =>
          node && block.nodes.includes(node) ? node.node : null;
        const here = holds(current);
        // what has the focus must not vanish when it is scrolled away
        return (index < first || index >= last) && !here ? (
          <div
            key={block.key}
            className="jp-Hp-block"
            role="presentation"
            style={{ height: heights[index] - (place.pitch - place.tile) }}
          />
        ) : (
          <Block
            key={block.key}
            label={block.label}
            nodes={block.nodes}
            roles={block.nodes.map(node => roleOf(node, parts.get(node.node)))}
            selected={holds(chosen)}
            current={here}
            named={size === 'named'}
            start={size === 'small' ? block.start : 0}
            total={size === 'small' ? nodes.length : null}
          />
        );
      })}
    </div>
  );
}

interface IPart extends IHeadedGroup {
  /** How many nodes stand in blocks before. */
  start: number;
}

function blocksOf(groups: readonly IHeadedGroup[]): IPart[] {
  const blocks: IPart[] = [];
  let before = 0;
  for (const { key, label, nodes } of groups) {
    for (let from = 0; from < nodes.length; from += BLOCK) {
      const head = from === 0 && label ? `${label} (${nodes.length})` : '';
      const part = nodes.slice(from, from + BLOCK);
      blocks.push({
        key: `${key} ${from}`,
        label: head,
        nodes: part,
        start: before + from
      });
    }
    before += nodes.length;
  }
  return blocks;
}

/** As base.css has tiles of the smallest size. */
const UNSEEN: IPlace = {
  top: 0,
  height: 320,
  width: 0,
  tile: 8,
  pitch: 9,
  heading: 23
};

/** The sizes of tiles and headings, as far as some are drawn. */
function measured(host: Element): Partial<ITileSize> {
  const tile = host.querySelector('[role=option]');
  const one = tile?.getBoundingClientRect();
  const next = tile?.nextElementSibling?.getBoundingClientRect();
  if (!one || !next) {
    return {};
  }
  const pitch = Math.abs(next.left - one.left);
  const heading = host
    .querySelector('.jp-Hp-block > .jp-Hp-label')
    ?.getBoundingClientRect().height;
  return {
    ...(pitch > one.width && { tile: one.width, pitch }),
    ...(heading && pitch > 0 && { heading: heading + pitch - one.width })
  };
}

/** What is seen of a list of the smallest tiles; while it is hidden, what was seen last. */
function usePlace(
  box: React.RefObject<HTMLDivElement>,
  small: boolean
): IPlace {
  const [place, setPlace] = React.useState<IPlace>(UNSEEN);
  React.useLayoutEffect(() => {
    const host = box.current!;
    const look = () => {
      const row = host.firstElementChild?.getBoundingClientRect();
      if (!row?.width || !small) {
        return;
      }
      const top = Math.floor(host.scrollTop / STEP) * STEP;
      const height = host.clientHeight + STEP;
      setPlace(before => {
        const now = { ...before, ...measured(host), width: row.width };
        const same = Object.entries({ ...now, top, height }).every(
          ([name, value]) => before[name as keyof IPlace] === value
        );
        return same ? before : { ...now, top, height };
      });
    };
    return watchLayout(host, look);
  }, [box, small]);
  return place;
}

/** Give a node's tile the focus, now or as soon as it is drawn. */
function useFocus(
  box: React.RefObject<HTMLDivElement>
): (node: string) => void {
  const wanted = React.useRef<string>();
  const look = () => {
    const tile = tilesOf(box.current!).find(
      one => one.dataset.node === wanted.current
    );
    if (tile) {
      wanted.current = undefined;
      tile.focus();
    }
  };
  React.useEffect(() => {
    if (wanted.current !== undefined) {
      look();
    }
  });
  return node => {
    wanted.current = node;
    look();
  };
}

function tilesOf(box: Element): HTMLElement[] {
  return [...box.querySelectorAll<HTMLElement>('[role=option]')];
}

/** The number of the node that a key selects; rows are found by the tiles' positions. */
function destination(
  key: string,
  tile: HTMLElement,
  nodes: readonly INodeView[]
): number | null {
  const box = tile.closest('[role=listbox]')!;
  const leftwards = getComputedStyle(box).direction === 'rtl';
  const at = nodes.findIndex(node => node.node === tile.dataset.node);
  const moves: Record<string, () => number> = {
    ArrowRight: () => (leftwards ? at - 1 : at + 1),
    ArrowLeft: () => (leftwards ? at + 1 : at - 1),
    ArrowDown: () => nextRow(box, tile, nodes, at, 1),
    ArrowUp: () => nextRow(box, tile, nodes, at, -1),
    Home: () => 0,
    End: () => nodes.length - 1,
    Enter: () => at,
    ' ': () => at
  };
  const to = moves[key]?.() ?? -1;
  return at >= 0 && to >= 0 && to < nodes.length ? to : null;
}

/** The node below or above, or nearly so at the end of a block, whose last row is short. */
function nextRow(
  box: Element,
  tile: HTMLElement,
  nodes: readonly INodeView[],
  at: number,
  way: 1 | -1
): number {
  const tiles = tilesOf(box);
  const away = (one: HTMLElement) => way * (one.offsetTop - tile.offsetTop);
  const next = Math.min(...tiles.map(away).filter(pixels => pixels > 0));
  if (next > FAR) {
    return at + way * tiles.filter(one => away(one) === 0).length;
  }
  const aside = (one: HTMLElement) =>
    Math.abs(one.offsetLeft - tile.offsetLeft);
  const found = tiles
    .filter(one => away(one) === next)
    .reduce((one, other) => (aside(other) < aside(one) ? other : one));
  return nodes.findIndex(node => node.node === found.dataset.node);
}

interface IBlock {
  label: string;
  selected: string | null;
  nodes: readonly INodeView[];
  /** In the order of `nodes`. */
  roles: readonly NodeRole[];
  current: string | null;
  named: boolean;
  /** How many nodes stand before this block, and how many there are; null where all of them have a tile. */
  start: number;
  total: number | null;
}

const Block = React.memo(
  function Block(props: IBlock): JSX.Element {
    const tiles = useTiles(props);
    return (
      <div
        className="jp-Hp-block"
        role={props.label ? 'group' : 'presentation'}
        aria-label={props.label || undefined}
      >
        {props.label && (
          <span className="jp-Hp-label" aria-hidden title={props.label}>
            {props.label}
          </span>
        )}
        {tiles}
      </div>
    );
  },
  (before, after) =>
    before.label === after.label &&
    before.selected === after.selected &&
    before.current === after.current &&
    before.named === after.named &&
    before.start === after.start &&
    before.total === after.total &&
    before.nodes.length === after.nodes.length &&
    before.nodes.every((node, index) => node === after.nodes[index]) &&
    before.roles.every((role, index) => role === after.roles[index])
);

/** The tiles of a block; those without news are the same elements as before, since a block has far more of them. */
function useTiles(props: IBlock): readonly JSX.Element[] {
  const { trans } = useShared();
  const before = React.useRef<{ props: IBlock; tiles: JSX.Element[] } | null>(
    null
  );
  const old = before.current;
  const tiles = props.nodes.map((node, index) => {
    const same =
      old?.props.nodes[index] === node &&
      old.props.roles[index] === props.roles[index] &&
      old.props.named === props.named &&
      old.props.start === props.start &&
      old.props.total === props.total &&
      (old.props.selected === node.node) === (props.selected === node.node) &&
      (old.props.current === node.node) === (props.current === node.node);
    return same ? old.tiles[index] : tileOf(node, index, props, trans);
  });
  React.useEffect(() => {
    before.current = { props, tiles };
  });
  return tiles;
}

/** No component of its own, since there are a thousand of them. */
function tileOf(
  node: INodeView,
  index: number,
  block: IBlock,
  trans: TranslationBundle
): JSX.Element {
  const role = block.roles[index];
  const word = roleLabel(role, trans);
  const words = [node.node, word, ...node.jobs];
  if (node.incarnation > 1) {
    const times = node.incarnation - 1;
    words.push(trans._n('restarted %1 time', 'restarted %1 times', times));
  }
  return (
    <div
      key={node.node}
      className="jp-Hp-node"
      role="option"
      tabIndex={node.node === block.current ? 0 : -1}
      aria-selected={node.node === block.selected}
      aria-posinset={block.total === null ? undefined : block.start + index + 1}
      aria-setsize={block.total ?? undefined}
      aria-label={words.join(', ')}
      data-node={node.node}
      data-state={role}
      data-spare={role === 'standby' || undefined}
    >
      {block.named && (
        <>
          <span className="jp-Hp-dot" data-state={role} aria-hidden />
          <span>{node.node}</span>
          <span className="jp-Hp-role">{word}</span>
        </>
      )}
    </div>
  );
}
