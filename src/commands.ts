import type { ICommandPalette } from '@jupyterlab/apputils';
import { InputDialog } from '@jupyterlab/apputils';
import type { CommandRegistry } from '@lumino/commands';

import type { IShared } from './components/context';
import { hasNotebook } from './derive';
import { hyperpodIcon } from './icons';
import type { IJobSummary } from './model/views';

export namespace CommandIDs {
  export const showPanel = 'hyperpod:show-panel';
  export const showFiles = 'hyperpod:show-files';
  export const openPlanner = 'hyperpod:open-planner';
  export const openRuns = 'hyperpod:open-runs';
  export const openSchedules = 'hyperpod:open-schedules';
  export const openExecuted = 'hyperpod:open-executed-notebook';
  export const compareRuns = 'hyperpod:compare-runs';
  export const openTrials = 'hyperpod:open-trials';
  export const startCluster = 'hyperpod:start-cluster';
  export const stopCluster = 'hyperpod:stop-cluster';
  export const openJob = 'hyperpod:open-job';
  export const chooseJob = 'hyperpod:choose-job';
  export const stopJob = 'hyperpod:stop-job';
  export const scaleJob = 'hyperpod:scale-job';
  export const breakSomething = 'hyperpod:break-something';
  export const runCells = 'hyperpod:run-cells';
  export const runNotebook = 'hyperpod:run-notebook';
  export const openExample = 'hyperpod:open-example';
}

const JOB = {
  args: {
    type: 'object',
    properties: {
      id: { type: 'string', description: 'The job; asked for where missing' }
    }
  }
} as const;

/** Commands that need no widget. A command on a job asks for the job where its arguments have none. */
export function addCommands(
  commands: CommandRegistry,
  shared: IShared,
  palette: ICommandPalette | null
): void {
  const { model, actions, trans } = shared;
  const runs = () =>
    model.cluster !== null &&
    !['stopping', 'stopped', 'lost'].includes(model.cluster.state);

  commands.addCommand(CommandIDs.startCluster, {
    label: trans.__('Start the Cluster'),
    icon: hyperpodIcon,
    describedBy: { args: null },
    isEnabled: () => model.connection === 'online' && !runs(),
    execute: () => actions.startCluster()
  });
  commands.addCommand(CommandIDs.stopCluster, {
    label: trans.__('Stop the Cluster…'),
    describedBy: { args: null },
    isEnabled: runs,
    execute: () => actions.stopCluster()
  });
  commands.addCommand(CommandIDs.chooseJob, {
    label: trans.__('Open a Training Job…'),
    describedBy: JOB,
    isEnabled: () => model.jobs.length > 0,
    execute: args => withJob(shared, args.id, model.jobs, actions.openJob)
  });
  commands.addCommand(CommandIDs.stopJob, {
    label: trans.__('Stop a Training Job…'),
    describedBy: JOB,
    isEnabled: () => model.activeJobs.length > 0,
    execute: args => withJob(shared, args.id, model.activeJobs, actions.stopJob)
  });
  const notebooks = () => model.jobs.filter(hasNotebook);
  commands.addCommand(CommandIDs.openExecuted, {
    label: trans.__('Open the Executed Notebook of a Job…'),
    caption: trans.__(
      'The notebook that was the job, with the outputs of its cells'
    ),
    describedBy: JOB,
    isEnabled: () => notebooks().length > 0,
    execute: args => withJob(shared, args.id, notebooks(), actions.openExecuted)
  });
  commands.addCommand(CommandIDs.scaleJob, {
    label: trans.__('Scale a Training Job…'),
    describedBy: JOB,
    isEnabled: () => elastic(model.activeJobs).length > 0,
    execute: args =>
      withJob(shared, args.id, elastic(model.activeJobs), actions.scaleJob)
  });

  commands.addCommand(CommandIDs.breakSomething, {
    label: trans.__('Break Something'),
    caption: trans.__(
      'Show the buttons that kill, hang or cut off a node or a rank of a job'
    ),
    describedBy: { args: null },
    isToggleable: true,
    isToggled: () => actions.faultsAllowed,
    isEnabled: () => !actions.faultsForbidden,
    execute: () => actions.breakSomething(!actions.faultsAllowed)
  });
  commands.addCommand(CommandIDs.openExample, {
    label: trans.__('Open the Example of a Training Cell'),
    describedBy: { args: null },
    execute: () => actions.openExample()
  });

  const category = trans.__('Training on a cluster');
  for (const command of [
    CommandIDs.showPanel,
    CommandIDs.showFiles,
    CommandIDs.openRuns,
    CommandIDs.openSchedules,
    CommandIDs.openPlanner,
    CommandIDs.startCluster,
    CommandIDs.stopCluster,
    CommandIDs.chooseJob,
    CommandIDs.stopJob,
    CommandIDs.scaleJob,
    CommandIDs.openExecuted,
    CommandIDs.breakSomething,
    CommandIDs.openExample
  ]) {
    palette?.addItem({ command, category });
  }
}

function elastic(jobs: IJobSummary[]): IJobSummary[] {
  return jobs.filter(job => job.maximum > job.minimum);
}

/** Run an action on the job `id`, else on the only job, else on the job that the user picks. */
async function withJob(
  { actions, trans }: IShared,
  id: unknown,
  jobs: IJobSummary[],
  act: (this: IShared['actions'], id: string) => unknown
): Promise<void> {
  let chosen = typeof id === 'string' ? id : undefined;
  if (chosen === undefined && jobs.length === 1) {
    chosen = jobs[0].id;
  }
  if (chosen === undefined) {
    const picked = await InputDialog.getItem({
      title: trans.__('Which job?'),
      items: jobs.map(job => job.id)
    });
    chosen = picked.value ?? undefined;
  }
  if (chosen !== undefined) {
    await act.call(actions, chosen);
  }
}
