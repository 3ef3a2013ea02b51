/** An example: a toast when a training job fails, with a button that opens the job. */

import type {
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { Notification } from '@jupyterlab/apputils';
import { IHyperpod } from 'jupyter_hyperpod';

const plugin: JupyterFrontEndPlugin<void> = {
  id: 'hyperpod-failures:plugin',
  description: 'Tells of training jobs that fail.',
  autoStart: true,
  // Optional: without jupyter_hyperpod the rest of an extension goes on.
  optional: [IHyperpod],
  activate: (_: JupyterFrontEnd, hyperpod: IHyperpod | null) => {
    if (hyperpod === null) {
      return;
    }
    const { model, actions } = hyperpod;
    const active = new Set<string>();
    model.changed.connect((_, topics) => {
      if (!topics.has('jobs')) {
        return;
      }
      for (const { id, state, name, reason } of model.jobs) {
        if (state === 'failed' && active.has(id)) {
          Notification.error(`${name} failed: ${reason}`, {
            autoClose: false,
            actions: [{ label: 'Open', callback: () => actions.openJob(id) }]
          });
        }
      }
      active.clear();
      model.activeJobs.forEach(job => active.add(job.id));
    });
  }
};

export default plugin;
