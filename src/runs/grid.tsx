/** The grid of the table of runs: only the rows that are on the screen exist, however many there are. */

import { caretDownIcon, caretUpIcon } from '@jupyterlab/ui-components';
import * as React from 'react';

import type { IRun } from '../api';
import { useShared } from '../components/context';
import { watchLayout } from '../components/layout';
import { StateChip } from '../components/parts';
import { shortId } from '../format';
import type { IColumn } from './columns';
import { EditableCell } from './editable';
import type { IIndexed } from './filter';

const ROW = 30;
const HEAD = 32;
/** Rows beyond the edges, so that scrolling shows no gap. */
const OVERSCAN = 5;
/** Scrolling by fewer rows than these draws nothing anew. */
const STEP = 5;
const TICK = 36;

export interface IOrder {
  column: string;
  descending: boolean;
}

interface IProps {
  rows: readonly IIndexed[];
  columns: readonly IColumn[];
  order: IOrder;
  onOrder: (order: IOrder) => void;
  ticked: ReadonlySet<string>;
  onTick: (ids: string[], on: boolean) => void;
  onOpen: (run: IRun) => void;
  onSweep: (sweep: string) => void;
  onDelete: (run: IRun) => void;
  onTags: (run: IRun, text: string) => Promise<boolean>;
  onNote: (run: IRun, text: string) => Promise<boolean>;
}

export function Grid(props: IProps): JSX.Element {
  const { rows, columns, ticked } = props;
  const { trans } = useShared();
  const box = React.useRef<HTMLDivElement>(null);
  const { first, last } = useWindow(box, rows.length);
  const [active, setActive] = React.useState(0);
  const focus = React.useRef(false);
  const elements = React.useRef(new Elements());
  const here = Math.min(active, rows.length - 1);
  const inside = React.useRef(false);
  const focused = React.useRef<string>(); // the run whose row has the focus

  // Where the row that had the focus is deleted, the next one gets it.
  React.useEffect(() => {
    if (inside.current && document.activeElement === document.body) {
      focus.current = true;
    }
  }, [rows.length]);

  React.useEffect(() => {
    if (focus.current) {
      focus.current = false;
      box.current
        ?.querySelector<HTMLElement>(`[data-index="${here}"]`)
        ?.focus({ preventScroll: true });
    }
  });

  const go = (index: number) => {
    const next = Math.max(0, Math.min(rows.length - 1, index));
    const host = box.current!;
    const top = next * ROW;
    if (top < host.scrollTop) {
      host.scrollTop = top;
    } else if (top + ROW + HEAD > host.scrollTop + host.clientHeight) {
      host.scrollTop = top + ROW + HEAD - host.clientHeight;
    }
    focus.current = true;
    setActive(next);
  };

  const onKeyDown = (event: React.KeyboardEvent<HTMLDivElement>) => {
    const target = event.target as HTMLElement;
    if (target.getAttribute('role') !== 'row' || here < 0) {
      return;
    }
    const run = rows[here].run;
    const page = Math.floor((box.current!.clientHeight - HEAD) / ROW) - 1;
    const moves: Record<string, () => void> = {
      ArrowDown: () => go(here + 1),
      ArrowUp: () => go(here - 1),
      PageDown: () => go(here + page),
      PageUp: () => go(here - page),
      Home: () => go(0),
      End: () => go(rows.length - 1),
      Enter: () => props.onOpen(run),
      ' ': () => props.onTick([run.id], !ticked.has(run.id)),
      Delete: () => props.onDelete(run)
    };
    if (Object.hasOwn(moves, event.key)) {
      event.preventDefault();
      event.stopPropagation();
      moves[event.key]();
    }
  };

  const template = [
    `${TICK}px`,
    ...columns.map((column, index) =>
      index === columns.length - 1
        ? `minmax(${column.width}px, 1fr)`
        : `${column.width}px`
    )
  ].join(' ');
  const seen = rows.slice(first, last);
  const keys = elements.current.keys(
    seen.map(({ run }) => run.id),
    focused.current
  );
  const all = rows.length > 0 && rows.every(({ run }) => ticked.has(run.id));
  return (
    <div
      ref={box}
      className="jp-Hp-grid"
      role="grid"
      aria-label={trans.__('Runs')}
      aria-rowcount={rows.length + 1}
      aria-colcount={columns.length + 1}
      aria-multiselectable
      style={{ '--hp-columns': template } as React.CSSProperties}
      onFocus={() => (inside.current = true)}
      onBlur={() => {
        inside.current = false;
        focused.current = undefined;
      }}
      onKeyDown={onKeyDown}
    >
      <div role="rowgroup" className="jp-Hp-gridhead">
        <div role="row" aria-rowindex={1} className="jp-Hp-gridrow">
          <div role="columnheader" className="jp-Hp-cell" data-sticky="tick">
            <input
              type="checkbox"
              aria-label={trans.__('Tick all')}
              checked={all}
              disabled={rows.length === 0}
              onChange={() =>
                props.onTick(
                  rows.map(({ run }) => run.id),
                  !all
                )
              }
            />
          </div>
          {columns.map(column => (
            <Header key={column.id} {...props} column={column} />
          ))}
        </div>
      </div>
      <div
        role="rowgroup"
        className="jp-Hp-gridbody"
        style={{ height: rows.length * ROW }}
      >
        {seen.map(({ run }, offset) => {
          const index = first + offset;
          return (
            <Row
              key={keys[offset]}
              {...props}
              run={run}
              index={index}
              isActive={index === here}
              isTicked={ticked.has(run.id)}
              onFocus={() => {
                focused.current = run.id;
                setActive(index);
              }}
            />
          );
        })}
      </div>
    </div>
  );
}

/**
 * Which element draws which run: a run that stays keeps its element, and with it the focus and what is being typed; the
 * elements of those that went are used for those that come. To make them anew takes longer than to sort.
 */
export class Elements {
  /** The elements of the runs `ids`; that of `held`, which has the focus, is used for no other run. */
  keys(ids: readonly string[], held: string | undefined): readonly number[] {
    const wanted = new Set(ids);
    const free: number[] = [];
    for (const [id, key] of this._keys) {
      if (!wanted.has(id)) {
        this._keys.delete(id);
        if (id !== held) {
          free.push(key);
        }
      }
    }
    free.reverse();
    for (const id of ids) {
      if (!this._keys.has(id)) {
        this._keys.set(id, free.pop() ?? this._next++);
      }
    }
    return ids.map(id => this._keys.get(id)!);
  }

  private readonly _keys = new Map<string, number>();
  private _next = 0;
}

/** The rows that are on the screen, and some beyond. */
function useWindow(
  box: React.RefObject<HTMLDivElement>,
  count: number
): { first: number; last: number } {
  const [place, setPlace] = React.useState({ top: 0, height: 800 });
  React.useLayoutEffect(() => {
    const host = box.current!;
    const look = () => {
      const step = ROW * STEP;
      const top = Math.floor(host.scrollTop / step) * step;
      const height = host.clientHeight || 800;
      setPlace(before =>
        before.top === top && before.height === height
          ? before
          : { top, height }
      );
    };
    return watchLayout(host, look);
  }, [box]);
  const first = Math.max(0, Math.floor(place.top / ROW) - OVERSCAN);
  const last = Math.ceil((place.top + place.height) / ROW) + OVERSCAN + STEP;
  return { first: Math.min(first, count), last: Math.min(last, count) };
}

function Header(props: IProps & { column: IColumn }): JSX.Element {
  const { column, order } = props;
  const sorts = order.column === column.id;
  const Caret = order.descending ? caretDownIcon : caretUpIcon;
  return (
    <div
      role="columnheader"
      className="jp-Hp-cell"
      data-numeric={column.numeric || undefined}
      data-sticky={column.id === 'name' ? 'name' : undefined}
      aria-sort={
        sorts ? (order.descending ? 'descending' : 'ascending') : 'none'
      }
    >
      <button
        type="button"
        title={column.label}
        onClick={() =>
          props.onOrder({
            column: column.id,
            descending: sorts ? !order.descending : !!column.numeric
          })
        }
      >
        <span className="jp-Hp-clip">{column.label}</span>
        {sorts && <Caret.react tag="span" elementSize="small" />}
      </button>
    </div>
  );
}

const Row = React.memo(
  function Row(
    props: IProps & {
      run: IRun;
      index: number;
      isActive: boolean;
      isTicked: boolean;
      onFocus: () => void;
    }
  ): JSX.Element {
    const { run, index, isTicked } = props;
    const { trans } = useShared();
    return (
      <div
        role="row"
        className="jp-Hp-gridrow"
        aria-rowindex={index + 2}
        aria-selected={isTicked}
        data-index={index}
        data-archived={run.archived || undefined}
        tabIndex={props.isActive ? 0 : -1}
        style={{ transform: `translateY(${index * ROW}px)` }}
        onFocus={props.onFocus}
        onDoubleClick={event => {
          if (!(event.target as HTMLElement).closest('button, input')) {
            props.onOpen(run);
          }
        }}
      >
        <div role="gridcell" className="jp-Hp-cell" data-sticky="tick">
          <input
            type="checkbox"
            tabIndex={props.isActive ? 0 : -1}
            aria-label={trans.__('Tick %1', run.id)}
            checked={isTicked}
            onChange={() => props.onTick([run.id], !isTicked)}
          />
        </div>
        {props.columns.map(column => (
          <div
            key={column.id}
            role="gridcell"
            className="jp-Hp-cell"
            data-numeric={column.numeric || undefined}
            data-sticky={column.id === 'name' ? 'name' : undefined}
            title={column.title?.(run) || undefined}
          >
            <Content {...props} column={column} />
          </div>
        ))}
      </div>
    );
  },
  (before, after) =>
    before.run === after.run &&
    before.index === after.index &&
    before.isActive === after.isActive &&
    before.isTicked === after.isTicked &&
    before.columns === after.columns &&
    after.run.ended_s !== null
);

function Content(
  props: IProps & { run: IRun; column: IColumn; isActive: boolean }
): JSX.Element {
  const { run, column } = props;
  const { trans } = useShared();
  switch (column.id) {
    case 'name':
      return (
        <>
          <button
            type="button"
            className="jp-Hp-link jp-Hp-clip"
            title={run.id}
            tabIndex={props.isActive ? 0 : -1}
            onClick={() => props.onOpen(run)}
          >
            {run.name}
          </button>
          <span className="jp-Hp-id">{shortId(run.id)}</span>
        </>
      );
    case 'sweep':
      return run.sweep ? (
        <button
          type="button"
          className="jp-Hp-link jp-Hp-clip"
          title={trans.__('Draw all trials of %1', run.sweep)}
          tabIndex={props.isActive ? 0 : -1}
          onClick={() => props.onSweep(run.sweep)}
        >
          {run.sweep}
        </button>
      ) : (
        <></>
      );
    case 'state':
      return <StateChip state={run.state} trans={trans} />;
    case 'tags':
      return (
        <EditableCell
          key={run.id}
          value={run.tags.join(' ')}
          label={trans.__('Tags of %1', run.id)}
          hint={trans.__('Tags, with spaces between them')}
          focusable={props.isActive}
          onSave={text => props.onTags(run, text)}
        >
          {run.tags.map(tag => (
            <span key={tag} className="jp-Hp-tag">
              {tag}
            </span>
          ))}
        </EditableCell>
      );
    case 'note':
      return (
        <EditableCell
          key={run.id}
          value={run.note}
          label={trans.__('Note of %1', run.id)}
          hint={trans.__('Note')}
          focusable={props.isActive}
          onSave={text => props.onNote(run, text)}
        >
          {run.note && <span className="jp-Hp-clip">{run.note}</span>}
        </EditableCell>
      );
    default:
      return <span className="jp-Hp-clip">{column.text(run)}</span>;
  }
}
