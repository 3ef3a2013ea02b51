/** The table of runs and comparisons of runs: commands, tabs that JupyterLab restores, and a card of the launcher. */

import {
  ILayoutRestorer,
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { WidgetTracker } from '@jupyterlab/apputils';
import { ILauncher } from '@jupyterlab/launcher';

import { CommandIDs } from '../commands';
import type { ComparisonWidget } from '../compare/widget';
import { IShared } from '../components/context';
import { runsIcon } from '../icons';
import { addOnlyView, reveal } from '../reveal';

export const runs: JupyterFrontEndPlugin<void> = {
  id: 'jupyter_hyperpod:runs',
  description: 'All jobs of the store in one table.',
  autoStart: true,
  requires: [IShared],
  optional: [ILayoutRestorer, ILauncher],
  activate: (
    app: JupyterFrontEnd,
    shared: IShared,
    restorer: ILayoutRestorer | null,
    launcher: ILauncher | null
  ): void => {
    const { trans } = shared;
    addOnlyView(app, shared, restorer, {
      name: 'runs',
      command: CommandIDs.openRuns,
      label: trans.__('Table of Runs'),
      caption: trans.__('All jobs of the store: sort, filter, tag, compare'),
      icon: runsIcon,
      type: 'Runs',
      target: { runs: true },
      load: async () => (await import('./widget')).RunsWidget
    });
    launcher?.add({ command: CommandIDs.openRuns });
  }
};

export const comparison: JupyterFrontEndPlugin<void> = {
  id: 'jupyter_hyperpod:comparison',
  description: 'Some jobs side by side: curves and differences.',
  autoStart: true,
  requires: [IShared],
  optional: [ILayoutRestorer],
  activate: (
    app: JupyterFrontEnd,
    shared: IShared,
    restorer: ILayoutRestorer | null
  ): void => {
    const tracker = new WidgetTracker<ComparisonWidget>({
      namespace: 'jupyter_hyperpod-comparison'
    });
    app.commands.addCommand(CommandIDs.compareRuns, {
      label: shared.trans.__('Compare Runs'),
      describedBy: {
        args: {
          type: 'object',
          properties: {
            ids: { type: 'string', description: 'Ids with spaces between' }
          }
        }
      },
      isVisible: () => false,
      execute: async args => {
        const ids = String(args.ids ?? '')
          .split(' ')
          .filter(Boolean);
        const { ComparisonWidget } = await import('../compare/widget');
        const known = tracker.find(
          candidate => candidate.ids.join(' ') === ids.join(' ')
        );
        const widget = known ?? new ComparisonWidget(shared, ids);
        return reveal(app, tracker, widget, 'Comparison', { compare: ids });
      }
    });
    void restorer?.restore(tracker, {
      command: CommandIDs.compareRuns,
      args: widget => ({ ids: widget.ids.join(' ') }),
      name: widget => widget.ids.join(' ')
    });
  }
};
