/** The list of schedules: a command, and a tab that JupyterLab restores. */

import {
  ILayoutRestorer,
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';

import { CommandIDs } from '../commands';
import { IShared } from '../components/context';
import { schedulesIcon } from '../icons';
import { addOnlyView } from '../reveal';

export const schedules: JupyterFrontEndPlugin<void> = {
  id: 'jupyter_hyperpod:schedules',
  description: 'What runs at times of the clock.',
  autoStart: true,
  requires: [IShared],
  optional: [ILayoutRestorer],
  activate: (
    app: JupyterFrontEnd,
    shared: IShared,
    restorer: ILayoutRestorer | null
  ): void => {
    const { trans } = shared;
    addOnlyView(app, shared, restorer, {
      name: 'schedules',
      command: CommandIDs.openSchedules,
      label: trans.__('Schedules'),
      caption: trans.__('What runs at times of the clock: pause, run, delete'),
      icon: schedulesIcon,
      type: 'Schedules',
      target: { schedules: true },
      load: async () => (await import('./widget')).SchedulesWidget
    });
  }
};
