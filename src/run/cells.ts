/** Runs cells of a notebook on a cluster: it asks what, writes the line into the cell, and runs the cell. */

import { Notification } from '@jupyterlab/apputils';
import { PathExt } from '@jupyterlab/coreutils';
import { NotebookActions, NotebookPanel } from '@jupyterlab/notebook';
import type { Kernel } from '@jupyterlab/services';

import type { IShared } from '../components/context';
import { tellRefusal } from '../refusals';
import { capacity, initial, kept, needed } from './choice';
import type { IAnswer, IQuestion } from './form';
import { ask } from './dialog';
import { about, ISaid, say } from './kernel';
import { hasCode, header, joined, otherMagic, withHeader } from './line';
import { overriding, parameters, TAG } from './parameters';

/** What is to run. */
export type Scope = 'cells' | 'notebook';

/** In the metadata of a cell that was made of others: which. */
const MADE_OF = 'hyperpod';

type Cell = NotebookPanel['content']['widgets'][number];

/** The cell that becomes a job, or the cells of which it is made. */
interface IMaterial {
  panel: NotebookPanel;
  cells: Cell[];
  whole: boolean;
  /** The cell that has the job; null where it has still to be made. */
  target: Cell | null;
}

export class ClusterCells {
  constructor(private readonly _shared: IShared) {}

  /** Ask how the cells are to run, and run them. */
  async run(panel: NotebookPanel, scope: Scope): Promise<void> {
    const { model, actions } = this._shared;
    const material = gather(panel, scope);
    const refusal = await this._refusal(material);
    if (refusal) {
      Notification.warning(refusal, { autoClose: 8_000 });
      return;
    }
    const line = lineOf(material);
    const { nodes, run } = actions.preferences;
    const question: IQuestion = {
      whole: material.whole,
      count: material.cells.length,
      notebook: PathExt.basename(panel.context.path, '.ipynb'),
      parameters: parametersOf(material).flatMap(parameters),
      line,
      first: initial(line, run, nodes),
      about: kernelOf(panel).then(kernel => kernel && about(kernel)),
      backends: model.api.backends(),
      mounts: model.api.mounts(),
      interpreters: interpreters(panel),
      dryRun: answer => this._dryRun(material, answer)
    };
    const answer = await ask(this._shared, question);
    if (answer === null) {
      return;
    }
    await actions.remember(kept(answer.choice));
    await this._ensureCluster(answer);
    await kernelOf(panel); // before it is there, JupyterLab runs nothing
    const cell = place(material, answer);
    const notebook = panel.content;
    notebook.activeCellIndex = notebook.widgets.indexOf(cell);
    notebook.deselectAll();
    await notebook.scrollToItem(notebook.activeCellIndex);
    // It ends with the job, so this does not wait for it.
    void NotebookActions.runCells(notebook, [cell], panel.sessionContext);
  }

  /** Why these cells cannot run on a cluster; empty where they can. */
  private async _refusal({ panel, cells }: IMaterial): Promise<string> {
    const { trans } = this._shared;
    if (cells.length === 0) {
      return trans.__('There is no code to run: choose a code cell.');
    }
    const foreign = cells.find(cell => otherMagic(sourceOf(cell)));
    if (foreign) {
      return trans.__(
        'Code cell %1 begins with %2, which is for IPython; the nodes run plain Python. Take the line out and write in Python what it does, or leave the cell out.',
        numberOf(panel, foreign),
        otherMagic(sourceOf(foreign))
      );
    }
    const spec = await panel.sessionContext.session?.kernel?.spec;
    return spec && spec.language.toLowerCase() !== 'python'
      ? trans.__(
          'The kernel is for %1; only Python runs on a cluster.',
          spec.language
        )
      : '';
  }

  private async _dryRun(material: IMaterial, answer: IAnswer): Promise<ISaid> {
    const kernel = await kernelOf(material.panel);
    if (kernel === null) {
      const text = this._shared.trans.__(
        'The notebook has no kernel. Choose one: it checks the line and submits the job.'
      );
      return { ok: false, text };
    }
    return say(
      kernel,
      withHeader(sourceFor(material, answer), `${answer.line} --dry-run`),
      (material.target ?? material.cells[0]).model.id
    );
  }

  /** Start a cluster that is large enough, where none runs and the job is for this machine. */
  private async _ensureCluster(answer: IAnswer): Promise<void> {
    const { model, actions, trans } = this._shared;
    const { cluster } = model;
    if (!answer.local || cluster === null || capacity(cluster) !== null) {
      return;
    }
    const { nodes, spares } = actions.preferences;
    try {
      await model.api.startCluster({
        nodes: needed(answer.choice, nodes),
        spares
      });
    } catch (error) {
      tellRefusal(error, trans); // the cell says what follows from it
    }
  }
}

/** The kernel of a notebook, which may just be starting; null where there is none. */
async function kernelOf(
  panel: NotebookPanel
): Promise<Kernel.IKernelConnection | null> {
  await panel.sessionContext.ready;
  return panel.sessionContext.session?.kernel ?? null;
}

/** The code cells that are selected, or all of the notebook. */
function gather(panel: NotebookPanel, scope: Scope): IMaterial {
  const notebook = panel.content;
  const whole = scope === 'notebook';
  const wanted = notebook.widgets.filter(
    cell =>
      cell.model.type === 'code' &&
      (whole ? madeOf(cell) === null : notebook.isSelectedOrActive(cell))
  );
  const cells = wanted.filter(cell => hasCode(sourceOf(cell)));
  if (cells.length === 1 && !whole) {
    return { panel, cells, whole, target: cells[0] };
  }
  const mark = JSON.stringify(markOf(cells, whole));
  const made = notebook.widgets.find(
    cell => JSON.stringify(madeOf(cell)) === mark
  );
  return { panel, cells, whole, target: made ?? null };
}

/** What the metadata of a cell that is made of these say. */
function markOf(cells: Cell[], whole: boolean): { cells: string[] | 'all' } {
  return { cells: whole ? 'all' : cells.map(cell => cell.model.id) };
}

function madeOf(cell: Cell): unknown {
  return cell.model.getMetadata(MADE_OF) ?? null;
}

function isMade({ cells, whole }: IMaterial): boolean {
  return whole || cells.length > 1;
}

/** Its place among the code cells of the notebook, from 1 on. */
function numberOf({ content }: NotebookPanel, cell: Cell): number {
  const code = content.widgets.filter(one => one.model.type === 'code');
  return code.indexOf(cell) + 1;
}

function sourceOf(cell: Cell): string {
  return cell.model.sharedModel.getSource();
}

/** The line that there is: that of the cell, or the first of those of which the cell is made. */
function lineOf({ cells, target }: IMaterial): string {
  const lines = [...(target ? [target] : []), ...cells].map(
    cell => header(sourceOf(cell))?.line ?? ''
  );
  return lines.find(Boolean) ?? '';
}

function parametersOf({ cells, whole }: IMaterial): string[] {
  return whole ? cells.filter(isTagged).map(sourceOf) : [];
}

function isTagged(cell: Cell): boolean {
  const tags = cell.model.getMetadata('tags');
  return Array.isArray(tags) && tags.includes(TAG);
}

/** The code of the job, without its line. */
function sourceFor(material: IMaterial, answer: IAnswer): string {
  const { panel, cells, whole } = material;
  if (!isMade(material)) {
    return sourceOf(cells[0]);
  }
  const parts = cells.map(cell => {
    const source = sourceOf(cell);
    const given =
      whole && isTagged(cell) ? overriding(source, answer.values) : '';
    return {
      number: numberOf(panel, cell),
      source: given
        ? `${source.trimEnd()}\n\n# Parameters of this run\n${given}`
        : source
    };
  });
  return joined(parts, PathExt.basename(panel.context.path));
}

/** Write the line, and the code where it is made of several cells, into the cell of the job. */
function place(material: IMaterial, answer: IAnswer): Cell {
  const { panel, cells } = material;
  const text = withHeader(sourceFor(material, answer), answer.line);
  if (material.target) {
    const shared = material.target.model.sharedModel;
    const [start, end, changed] = difference(shared.getSource(), text);
    if (start < end || changed) {
      shared.updateSource(start, end, changed); // so that cursor and history of the editor stay
    }
    return material.target;
  }
  const notebook = panel.content;
  const index = notebook.widgets.indexOf(cells[cells.length - 1]) + 1;
  panel.context.model.sharedModel.insertCell(index, {
    cell_type: 'code',
    source: text,
    metadata: {
      trusted: true,
      [MADE_OF]: markOf(cells, material.whole)
    }
  });
  return notebook.widgets[index];
}

/** The part of `from`, between two places, that has to be replaced by a text to get `to`. */
export function difference(from: string, to: string): [number, number, string] {
  let start = 0;
  const shorter = Math.min(from.length, to.length);
  while (start < shorter && from[start] === to[start]) {
    start++;
  }
  let same = 0;
  while (
    same < shorter - start &&
    from[from.length - 1 - same] === to[to.length - 1 - same]
  ) {
    same++;
  }
  return [start, from.length - same, to.slice(start, to.length - same)];
}

/** Interpreters that other kernels of this server have. */
function interpreters(panel: NotebookPanel): string[] {
  const specs = panel.sessionContext.specsManager.specs?.kernelspecs ?? {};
  const found = Object.values(specs)
    .filter(spec => spec?.language.toLowerCase() === 'python')
    .map(spec => String(spec?.argv?.[0] ?? ''))
    .filter(path => path.startsWith('/'));
  return [...new Set(found)];
}
