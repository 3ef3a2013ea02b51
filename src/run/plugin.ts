/** The commands that run cells on a cluster, and the loading of the magics where a cell needs them. */

import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette } from '@jupyterlab/apputils';
import {
  INotebookTracker,
  NotebookActions,
  NotebookPanel
} from '@jupyterlab/notebook';

import { CommandIDs } from '../commands';
import { IShared } from '../components/context';
import { hyperpodIcon } from '../icons';
import type { Scope } from './cells';
import { load } from './kernel';
import { needsMagics } from './line';

export const runPlugin: JupyterFrontEndPlugin<void> = {
  id: 'jupyter_hyperpod:run',
  description: 'Runs cells of a notebook on a cluster.',
  autoStart: true,
  requires: [IShared, INotebookTracker],
  optional: [ICommandPalette],
  activate: (
    app: JupyterFrontEnd,
    shared: IShared,
    notebooks: INotebookTracker,
    palette: ICommandPalette | null
  ): void => {
    const { trans } = shared;
    const present = () => notebooks.currentWidget;
    const run = async (scope: Scope) => {
      const panel = present();
      if (panel) {
        const { ClusterCells } = await import('./cells');
        await new ClusterCells(shared).run(panel, scope);
      }
    };
    app.commands.addCommand(CommandIDs.runCells, {
      label: args =>
        args.toolbar ? '' : trans.__('Run Selected Cells on Cluster…'),
      caption: trans.__('Run on cluster: the selected cells become one job'),
      icon: args => (args.isMenu ? undefined : hyperpodIcon),
      describedBy: {
        args: {
          type: 'object',
          properties: {
            toolbar: { type: 'boolean', description: 'Show the icon alone' },
            isMenu: { type: 'boolean', description: 'Show no icon' }
          }
        }
      },
      isEnabled: () => present() !== null,
      execute: () => run('cells')
    });
    app.commands.addCommand(CommandIDs.runNotebook, {
      label: trans.__('Run Notebook on Cluster…'),
      caption: trans.__('Run all code of the notebook as one job'),
      describedBy: { args: null },
      isEnabled: () => present() !== null,
      execute: () => run('notebook')
    });
    for (const command of [CommandIDs.runCells, CommandIDs.runNotebook]) {
      palette?.addItem({
        command,
        category: trans.__('Training on a cluster')
      });
    }
    followRuns(notebooks);
  }
};

/** Load the magics before a cell that needs them, however it is run: nobody has to write `%load_ext`. */
function followRuns(notebooks: INotebookTracker): void {
  NotebookActions.executionScheduled.connect((_, { notebook, cell }) => {
    if (
      cell.model.type !== 'code' ||
      !needsMagics(cell.model.sharedModel.getSource())
    ) {
      return;
    }
    const panel: NotebookPanel | undefined = notebooks.find(
      candidate => candidate.content === notebook
    );
    const kernel = panel?.sessionContext.session?.kernel;
    if (kernel) {
      load(kernel);
    }
  });
}
