/** Runs the cell of a job again. */

import { Notification } from '@jupyterlab/apputils';
import { PathExt } from '@jupyterlab/coreutils';
import {
  INotebookTracker,
  NotebookActions,
  NotebookPanel
} from '@jupyterlab/notebook';
import type { CommandRegistry } from '@lumino/commands';

import type { IShared } from './components/context';
import type { IJobSummary } from './model/views';

/** The place of a job's cell: an open notebook, and the cell's index. */
interface IPlace {
  panel: NotebookPanel;
  index: number;
}

/** Finds the cell that a job came from and runs it, opening its notebook where it is closed. */
export class Cells {
  constructor(
    private readonly _shared: IShared,
    private readonly _notebooks: INotebookTracker,
    private readonly _commands: CommandRegistry,
    private readonly _activate: (id: string) => void
  ) {}

  /** @param near the clicked element: in the output of a cell it means that cell. */
  async rerun(job: IJobSummary, near: Node | null): Promise<void> {
    const { trans } = this._shared;
    const path = notebookPath(
      job.origin.notebook ?? '',
      this._shared.model.settings?.root ?? ''
    );
    const place =
      this._around(near) ??
      this._open(job, path) ??
      (await this._find(job, path));
    if (place === null) {
      const text = path
        ? trans.__('The cell of %1 was not found in %2.', job.name, path)
        : trans.__(
            'The notebook of %1 is not among the files of this server.',
            job.name
          );
      Notification.warning(text, { autoClose: 10_000 });
      return;
    }
    const { panel, index } = place;
    const notebook = panel.content;
    const cell = notebook.widgets[index];
    this._activate(panel.id);
    notebook.activeCellIndex = index;
    notebook.deselectAll();
    await notebook.scrollToItem(index);
    // It ends with the job, so this does not wait for it.
    void NotebookActions.runCells(notebook, [cell], panel.sessionContext);
  }

  /** The cell whose output contains `near`. */
  private _around(near: Node | null): IPlace | null {
    return this._search(panel =>
      panel.content.widgets.findIndex(cell => cell.node.contains(near))
    );
  }

  /** The cell in an open notebook: first by the job's path, then in any notebook, because notebooks are renamed. */
  private _open(job: IJobSummary, path: string): IPlace | null {
    const id = job.origin.cell_id;
    const at = (panel: NotebookPanel) =>
      panel.content.widgets.findIndex(cell => !!id && cell.model.id === id);
    return (
      this._search(panel => (panel.context.path === path ? at(panel) : -1)) ??
      this._search(at)
    );
  }

  /** Open the notebook that the job came from. */
  private async _find(job: IJobSummary, path: string): Promise<IPlace | null> {
    if (!path || !this._commands.hasCommand('docmanager:open')) {
      return null;
    }
    const opened: unknown = await this._commands
      .execute('docmanager:open', { path, factory: 'Notebook' })
      .catch(() => null);
    if (!(opened instanceof NotebookPanel)) {
      return null;
    }
    await opened.revealed;
    await opened.sessionContext.ready;
    return this._open(job, path);
  }

  private _search(at: (panel: NotebookPanel) => number): IPlace | null {
    let found: IPlace | null = null;
    this._notebooks.forEach(panel => {
      const index = found ? -1 : at(panel);
      if (index >= 0) {
        found = { panel, index };
      }
    });
    return found;
  }
}

/** The notebook that a job names, relative to the server's `root`; empty where it lies outside. */
export function notebookPath(told: string, root: string): string {
  const above = root.replace(/\/+$/, '') + '/';
  const inside = root && told.startsWith(above);
  const path = inside ? told.slice(above.length) : told;
  return PathExt.extname(path) === '.ipynb' && !path.startsWith('/')
    ? path
    : '';
}
