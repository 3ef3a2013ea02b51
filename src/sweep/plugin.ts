/** Sweeps, and the parameters of jobs, in parallel coordinates: a command, and tabs that JupyterLab restores. */

import {
  ILayoutRestorer,
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { WidgetTracker } from '@jupyterlab/apputils';

import type { TrialsOf } from '../api';
import { CommandIDs } from '../commands';
import { IShared } from '../components/context';
import { reveal } from '../reveal';
import type { TrialsWidget } from './widget';

/** The arguments of the command that draws them. */
export function argumentsOf(of: TrialsOf): { [name: string]: string } {
  return 'sweep' in of ? { sweep: of.sweep } : { ids: of.jobs.join(' ') };
}

export const trials: JupyterFrontEndPlugin<void> = {
  id: 'jupyter_hyperpod:trials',
  description: 'The trials of a sweep in parallel coordinates.',
  autoStart: true,
  requires: [IShared],
  optional: [ILayoutRestorer],
  activate: (
    app: JupyterFrontEnd,
    shared: IShared,
    restorer: ILayoutRestorer | null
  ): void => {
    const tracker = new WidgetTracker<TrialsWidget>({
      namespace: 'jupyter_hyperpod-trials'
    });
    app.commands.addCommand(CommandIDs.openTrials, {
      label: shared.trans.__('Open Sweep'),
      describedBy: {
        args: {
          type: 'object',
          properties: {
            sweep: { type: 'string', description: 'The id of a sweep' },
            ids: {
              type: 'string',
              description: 'Without a sweep: ids of jobs with spaces between'
            }
          }
        }
      },
      isVisible: () => false,
      execute: async args => {
        const sweep = String(args.sweep ?? '');
        const jobs = String(args.ids ?? '')
          .split(' ')
          .filter(Boolean);
        const of: TrialsOf = sweep ? { sweep } : { jobs };
        const { TrialsWidget, idOf } = await import('./widget');
        const known = tracker.find(candidate => candidate.id === idOf(of));
        const widget = known ?? new TrialsWidget(shared, of);
        return reveal(app, tracker, widget, 'Sweep', { trials: of });
      }
    });
    void restorer?.restore(tracker, {
      command: CommandIDs.openTrials,
      args: widget => argumentsOf(widget.of),
      name: widget => widget.id
    });
  }
};
