/** The list of schedules: a command, and a tab that JupyterLab restores. */

import {
  ILayoutRestorer,
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { WidgetTracker } from '@jupyterlab/apputils';

import { CommandIDs } from '../commands';
import type { IShared } from '../components/context';
import { schedulesIcon } from '../icons';
import { reveal } from '../reveal';
import { IHyperpod } from '../tokens';
import type { SchedulesWidget } from './widget';

export const schedules: JupyterFrontEndPlugin<void> = {
  id: 'jupyter_hyperpod:schedules',
  description: 'What runs at times of the clock.',
  autoStart: true,
  requires: [IHyperpod],
  optional: [ILayoutRestorer],
  activate: (
    app: JupyterFrontEnd,
    shared: IShared,
    restorer: ILayoutRestorer | null
  ): void => {
    const { trans } = shared;
    const tracker = new WidgetTracker<SchedulesWidget>({
      namespace: 'jupyter_hyperpod-schedules'
    });
    app.commands.addCommand(CommandIDs.openSchedules, {
      label: trans.__('Schedules'),
      caption: trans.__('What runs at times of the clock: pause, run, delete'),
      icon: schedulesIcon,
      describedBy: { args: null },
      execute: async () => {
        const { SchedulesWidget } = await import('./widget');
        const widget = tracker.currentWidget ?? new SchedulesWidget(shared);
        return reveal(app, tracker, widget, 'Schedules', { schedules: true });
      }
    });
    void restorer?.restore(tracker, {
      command: CommandIDs.openSchedules,
      name: () => 'schedules'
    });
  }
};
