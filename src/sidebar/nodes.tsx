import type { TranslationBundle } from '@jupyterlab/translation';
import * as React from 'react';

import { useShared } from '../components/context';
import type { INodeView } from '../model/views';
import { NodeRole, roleLabel, roleOf } from '../nodes';
import type { INodeGroup } from './filters';

/** Up to this number of nodes, tiles show names. */
export const NAMED = 24;
/** Above this number, tiles have the smallest size. */
const SMALL = 600;
/** Tiles per block; a block without news is not drawn again. */
const BLOCK = 100;
/** Blocks that are drawn at once; the others follow, as many per frame as it has time for: the panel opens at once. */
const FIRST = 6;
const MORE = 2;
const MOST = 32;
/** Where drawing a part took less or more than this, in milliseconds, the next one is larger or smaller. */
const SHORT_MS = 8;
const LONG_MS = 16;

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

/** Health of all nodes, one tile each. Arrow keys move, Enter selects, thousands stay smooth: a block without news is not drawn again. */
export function NodeGrid(props: INodeGrid): JSX.Element {
  const { groups, parts, selected, onSelect } = props;
  const { trans } = useShared();
  const nodes = groups.flatMap(group => group.nodes);
  const size =
    nodes.length <= NAMED ? 'named' : nodes.length <= SMALL ? 'tile' : 'small';
  const chosen = nodes.find(node => node.node === selected) ?? null;
  const current = chosen ?? nodes[0] ?? null;
  const onKeyDown = (event: React.KeyboardEvent<HTMLDivElement>) => {
    const tiles = [
      ...event.currentTarget.querySelectorAll<HTMLElement>('[role=option]')
    ];
    const at = tiles.indexOf(event.target as HTMLElement);
    const leftwards = getComputedStyle(event.currentTarget).direction === 'rtl';
    const to = ['Enter', ' '].includes(event.key)
      ? at
      : destination(event.key, tiles, at, leftwards);
    if (to !== null && to >= 0) {
      event.preventDefault();
      tiles[to].focus();
      onSelect(tiles[to].dataset.node!);
    }
  };
  // One listener for all tiles: ten thousand listeners would make collections of garbage longer.
  const onClick = (event: React.MouseEvent<HTMLDivElement>) => {
    const tile = (event.target as Element).closest<HTMLElement>(
      '[role=option]'
    );
    if (tile) {
      onSelect(tile.dataset.node!);
    }
  };
  const blocks: IHeadedGroup[] = [];
  for (const { key, label, nodes: members } of groups) {
    for (let start = 0; start < members.length; start += BLOCK) {
      const head = start === 0 && label ? `${label} (${members.length})` : '';
      const part = members.slice(start, start + BLOCK);
      blocks.push({ key: `${key} ${start}`, label: head, nodes: part });
    }
  }
  const drawn = useGrowing(blocks.length);
  return (
    <div
      className="jp-Hp-nodes"
      data-size={size}
      role="listbox"
      aria-label={trans.__('Nodes')}
      aria-busy={drawn < blocks.length || undefined}
      onKeyDown={onKeyDown}
      onClick={onClick}
    >
      {blocks.slice(0, drawn).map(block => {
        const holds = (node: INodeView | null) =>
          node && block.nodes.includes(node) ? node.node : null;
        return (
          <Block
            key={block.key}
            label={block.label}
            nodes={block.nodes}
            roles={block.nodes.map(node => roleOf(node, parts.get(node.node)))}
            selected={holds(chosen)}
            current={holds(current)}
            named={size === 'named'}
          />
        );
      })}
    </div>
  );
}

/** How many of `count` blocks are drawn by now. */
function useGrowing(count: number): number {
  const [drawn, setDrawn] = React.useState(FIRST);
  const more = React.useRef(MORE);
  const began = performance.now();
  React.useLayoutEffect(() => {
    const took = performance.now() - began;
    if (took < SHORT_MS) {
      more.current = Math.min(MOST, 2 * more.current);
    } else if (took > LONG_MS) {
      more.current = Math.max(1, more.current >> 1);
    }
  }, [drawn]); // eslint-disable-line react-hooks/exhaustive-deps
  React.useEffect(() => {
    if (drawn >= count) {
      return;
    }
    const frame = requestAnimationFrame(() => setDrawn(drawn + more.current));
    return () => cancelAnimationFrame(frame);
  }, [drawn, count]);
  return Math.min(drawn, count);
}

/** The tile that a key selects; rows are found by the tiles' positions. */
function destination(
  key: string,
  tiles: HTMLElement[],
  at: number,
  leftwards: boolean
): number | null {
  const top = tiles[at]?.offsetTop;
  const columns = tiles.filter(tile => tile.offsetTop === top).length || 1;
  const moves: Record<string, number> = {
    ArrowRight: leftwards ? at - 1 : at + 1,
    ArrowLeft: leftwards ? at + 1 : at - 1,
    ArrowDown: at + columns,
    ArrowUp: at - columns,
    Home: 0,
    End: tiles.length - 1
  };
  const to = moves[key];
  return at >= 0 && to >= 0 && to < tiles.length ? to : null;
}

interface IBlock {
  label: string;
  selected: string | null;
  nodes: readonly INodeView[];
  /** In the order of `nodes`. */
  roles: readonly NodeRole[];
  current: string | null;
  named: boolean;
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
          <span className="jp-Hp-label" aria-hidden>
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
      (old.props.selected === node.node) === (props.selected === node.node) &&
      (old.props.current === node.node) === (props.current === node.node);
    return same
      ? old.tiles[index]
      : tileOf(node, props.roles[index], props, trans);
  });
  React.useEffect(() => {
    before.current = { props, tiles };
  });
  return tiles;
}

/** No component of its own, since there are ten thousand of them. */
function tileOf(
  node: INodeView,
  role: NodeRole,
  block: IBlock,
  trans: TranslationBundle
): JSX.Element {
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
      aria-label={words.join(', ')}
      title={words.join(' · ')}
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
