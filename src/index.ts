/** The plugins of this extension, one per place in JupyterLab. */

import {
  ILayoutRestorer,
  IRouter,
  JupyterFrontEnd,
  JupyterFrontEndPlugin
} from '@jupyterlab/application';
import { ICommandPalette, WidgetTracker } from '@jupyterlab/apputils';
import type { FileBrowser } from '@jupyterlab/filebrowser';
import {
  IDefaultFileBrowser,
  IFileBrowserFactory
} from '@jupyterlab/filebrowser';
import { ILauncher } from '@jupyterlab/launcher';
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { IRenderMimeRegistry } from '@jupyterlab/rendermime';
import { IRunningSessionManagers } from '@jupyterlab/running';
import { ServerConnection } from '@jupyterlab/services';
import { ISettingRegistry } from '@jupyterlab/settingregistry';
import { IStatusBar } from '@jupyterlab/statusbar';
import {
  ITranslator,
  nullTranslator,
  TranslationBundle
} from '@jupyterlab/translation';
import { Token } from '@lumino/coreutils';

import { Actions, DEFAULTS, IPreferences } from './actions';
import { announceStates } from './announce';
import { Api } from './api';
import { addCommands, CommandIDs } from './commands';
import { IShared } from './components/context';
import type { DashboardWidget } from './dashboard/widget';
import type { MountDrive } from './drive';
import { CELL_INDEX, exampleNotebook } from './example';
import { mountBrowser, mountDrive, showMount, yieldTo } from './files';
import { takeFocus } from './focus';
import { hyperpodIcon, mountsIcon, plannerIcon } from './icons';
import { HyperpodModel } from './model/model';
import { JobRenderer, MIME_TYPE } from './renderer/renderer';
import { Cells } from './rerun';
import { addOnlyView, followAddress, reveal, Target } from './reveal';
import { runPlugin } from './run/plugin';
import { comparison, runs } from './runs/plugin';
import { RunningJobs } from './running';
import { schedules } from './schedules/plugin';
import { SidebarWidget } from './sidebar/widget';
import { StatusWidget } from './status';
import { argumentsOf, trials } from './sweep/plugin';
import { IHyperpod } from './tokens';

const PLUGIN = 'jupyter_hyperpod:plugin';
/** After this time of JupyterLab's start, the cluster is asked for in any case. */
const MOST_START_MS = 5000;

export { IHyperpod };
export type {
  IHyperpodActions,
  IHyperpodCluster,
  IHyperpodJob,
  IHyperpodJobView,
  IHyperpodModel
} from './tokens';

const core: JupyterFrontEndPlugin<IShared> = {
  id: PLUGIN,
  description: 'The model of the cluster and its jobs, settings and commands.',
  autoStart: true,
  provides: IHyperpod,
  optional: [
    ITranslator,
    ISettingRegistry,
    ICommandPalette,
    IDefaultFileBrowser
  ],
  activate: (
    app: JupyterFrontEnd,
    translator: ITranslator | null,
    registry: ISettingRegistry | null,
    palette: ICommandPalette | null,
    browser: FileBrowser | null
  ): IShared => {
    const trans = (translator ?? nullTranslator).load('jupyter_hyperpod');
    const api = new Api(ServerConnection.makeSettings());
    const model = new HyperpodModel(api);
    const run = (command: string, args: { [name: string]: string }) => {
      if (app.commands.hasCommand(command)) {
        void app.commands.execute(command, args);
      }
    };
    const actions = new Actions(model, trans, {
      job: id => run(CommandIDs.openJob, { id }),
      files: mount => run(CommandIDs.showFiles, { mount }),
      runs: () => run(CommandIDs.openRuns, {}),
      schedules: () => run(CommandIDs.openSchedules, {}),
      executed: async id => {
        const { openExecuted } = await import('./executed/open');
        await openExecuted(app, shared, id, browser?.model.path ?? '');
      },
      comparison: ids => run(CommandIDs.compareRuns, { ids: ids.join(' ') }),
      trials: of => run(CommandIDs.openTrials, argumentsOf(of)),
      example: () => openExample(app, trans, browser)
    });
    const shared: IShared = { model, actions, trans };
    addCommands(app.commands, shared, palette);
    if (registry) {
      void followSettings(registry, shared);
    }
    announceStates(model, trans);
    void begun(app).then(() => model.connect());
    return shared;
  }
};

/** JupyterLab's own start comes first, unless a document that it opens again takes very long. */
function begun(app: JupyterFrontEnd): Promise<unknown> {
  const late = new Promise(resolve => setTimeout(resolve, MOST_START_MS));
  return Promise.race([app.restored, late]);
}

/** Write the example into the file browser's directory, and open it at its training cell. */
async function openExample(
  { commands, serviceManager }: JupyterFrontEnd,
  trans: TranslationBundle,
  browser: FileBrowser | null
): Promise<void> {
  await serviceManager.kernelspecs.ready;
  const specs = serviceManager.kernelspecs.specs;
  const usual = specs?.kernelspecs[specs.default];
  const kernel = usual
    ? { name: usual.name, display_name: usual.display_name }
    : null;
  const { path } = await serviceManager.contents.newUntitled({
    path: browser?.model.path ?? '',
    type: 'notebook'
  });
  await serviceManager.contents.save(path, {
    type: 'notebook',
    format: 'json',
    content: exampleNotebook(kernel, trans)
  });
  const opened: unknown = await commands.execute('docmanager:open', {
    path,
    factory: 'Notebook'
  });
  if (opened instanceof NotebookPanel) {
    await opened.revealed;
    opened.content.activeCellIndex = CELL_INDEX; // what the run button runs
  }
}

async function followSettings(
  registry: ISettingRegistry,
  { actions, model }: IShared
): Promise<void> {
  const settings = await registry.load(PLUGIN);
  const read = () => {
    actions.preferences = {
      ...DEFAULTS,
      ...(settings.composite as Partial<IPreferences>)
    };
    model.refresh();
  };
  actions.keep = (name, value) => settings.set(name, value);
  settings.changed.connect(read);
  read();
}

/** A plugin with a view of its own, which JupyterLab restores and its launcher may open. */
function view(
  name: string,
  description: string,
  activate: (
    app: JupyterFrontEnd,
    shared: IShared,
    restorer: ILayoutRestorer | null,
    launcher: ILauncher | null
  ) => void
): JupyterFrontEndPlugin<void> {
  return {
    id: `jupyter_hyperpod:${name}`,
    description,
    autoStart: true,
    requires: [IShared],
    optional: [ILayoutRestorer, ILauncher],
    activate
  };
}

const sidebar = view(
  'sidebar',
  'The left panel: cluster, jobs, incidents.',
  (app, shared, restorer, launcher) => {
    const widget = new SidebarWidget(shared);
    app.shell.add(widget, 'left', { rank: 450, type: 'Hyperpod' });
    restorer?.add(widget, widget.id);
    app.commands.addCommand(CommandIDs.showPanel, {
      label: shared.trans.__('Cluster and Training Jobs'),
      caption: shared.trans.__('Show the cluster, its jobs and incidents'),
      icon: hyperpodIcon,
      describedBy: { args: null },
      execute: () => {
        app.shell.activateById(widget.id);
        return takeFocus(widget.node);
      }
    });
    launcher?.add({ command: CommandIDs.showPanel });
  }
);

/** The mounts as a drive: `Mounts:NAME/path`. */
const IMountDrive = new Token<MountDrive>(
  'jupyter_hyperpod:IMountDrive',
  'The files of the mounts.'
);

const drive: JupyterFrontEndPlugin<MountDrive> = {
  id: 'jupyter_hyperpod:drive',
  description: 'The files of the mounts, wherever files are opened from.',
  autoStart: true,
  provides: IMountDrive,
  requires: [IShared],
  activate: (app: JupyterFrontEnd, shared: IShared): MountDrive => {
    const mounts = mountDrive(shared);
    app.serviceManager.contents.addDrive(mounts);
    return mounts;
  }
};

const files: JupyterFrontEndPlugin<void> = {
  id: 'jupyter_hyperpod:files',
  description: 'A file browser of the mounts.',
  autoStart: true,
  requires: [IShared, IMountDrive, IFileBrowserFactory],
  optional: [IDefaultFileBrowser, ILayoutRestorer, ITranslator],
  activate: (
    app: JupyterFrontEnd,
    shared: IShared,
    mounts: MountDrive,
    factory: IFileBrowserFactory,
    first: FileBrowser | null,
    restorer: ILayoutRestorer | null,
    translator: ITranslator | null
  ): void => {
    const browser = mountBrowser(
      shared,
      mounts,
      factory,
      app.serviceManager.contents,
      translator ?? nullTranslator
    );
    app.shell.add(browser, 'left', { rank: 451, type: 'Hyperpod Files' });
    restorer?.add(browser, browser.id);
    if (first) {
      void app.restored.then(() => yieldTo(first));
    }
    app.commands.addCommand(CommandIDs.showFiles, {
      label: shared.trans.__('Files of Mounts'),
      caption: shared.trans.__('Show the files of the shared storage'),
      icon: mountsIcon,
      describedBy: {
        args: {
          type: 'object',
          properties: {
            mount: { type: 'string', description: 'All mounts where missing' }
          }
        }
      },
      execute: async args => {
        app.shell.activateById(browser.id);
        await showMount(browser, String(args.mount ?? ''));
      }
    });
  }
};

const dashboard: JupyterFrontEndPlugin<void> = {
  id: 'jupyter_hyperpod:dashboard',
  description: 'One job in the main area.',
  autoStart: true,
  requires: [IShared],
  optional: [ILayoutRestorer, IRouter],
  activate: (
    app: JupyterFrontEnd,
    shared: IShared,
    restorer: ILayoutRestorer | null,
    router: IRouter | null
  ): void => {
    const tracker = new WidgetTracker<DashboardWidget>({
      namespace: 'jupyter_hyperpod'
    });
    app.commands.addCommand(CommandIDs.openJob, {
      label: shared.trans.__('Open Training Job'),
      describedBy: {
        args: { type: 'object', properties: { id: { type: 'string' } } }
      },
      isVisible: () => false,
      execute: async args => {
        const id = String(args.id);
        const { DashboardWidget } = await import('./dashboard/widget');
        const known = tracker.find(candidate => candidate.jobId === id);
        const name = String(args.name ?? '');
        const widget = known ?? new DashboardWidget(shared, id, name);
        if (widget !== known) {
          // The name is the tab's title until the job is known again.
          widget.title.changed.connect(() => void tracker.save(widget));
        }
        return reveal(app, tracker, widget, 'Training Job', { job: id });
      }
    });
    if (router) {
      followAddress(app, router, target => openTarget(app, target));
    }
    void restorer?.restore(tracker, {
      command: CommandIDs.openJob,
      args: widget => ({ id: widget.jobId, name: widget.title.label }),
      name: widget => widget.jobId
    });
  }
};

function openTarget(app: JupyterFrontEnd, target: Target): Promise<unknown> {
  if ('job' in target) {
    return app.commands.execute(CommandIDs.openJob, { id: target.job });
  }
  if ('compare' in target) {
    const ids = target.compare.join(' ');
    return app.commands.execute(CommandIDs.compareRuns, { ids });
  }
  if ('trials' in target) {
    return app.commands.execute(
      CommandIDs.openTrials,
      argumentsOf(target.trials)
    );
  }
  return app.commands.execute(
    'runs' in target
      ? CommandIDs.openRuns
      : 'schedules' in target
        ? CommandIDs.openSchedules
        : CommandIDs.openPlanner
  );
}

const planner = view(
  'planner',
  'What failures cost, and what faster recovery saves.',
  (app, shared, restorer, launcher) => {
    addOnlyView(app, shared, restorer, {
      name: 'planner',
      command: CommandIDs.openPlanner,
      label: shared.trans.__('Failure Planner'),
      caption: shared.trans.__(
        'What failures cost on a cluster, and what faster recovery saves'
      ),
      icon: plannerIcon,
      type: 'Failure Planner',
      target: { planner: true },
      load: async () => (await import('./planner/widget')).PlannerWidget
    });
    launcher?.add({ command: CommandIDs.openPlanner });
  }
);

const renderer: JupyterFrontEndPlugin<void> = {
  id: 'jupyter_hyperpod:renderer',
  description: 'The live job as the output of its cell.',
  autoStart: true,
  requires: [IShared, IRenderMimeRegistry],
  activate: (
    _: JupyterFrontEnd,
    shared: IShared,
    rendermime: IRenderMimeRegistry
  ): void => {
    rendermime.addFactory({
      safe: true,
      mimeTypes: [MIME_TYPE],
      defaultRank: 0,
      createRenderer: () => new JobRenderer(shared)
    });
  }
};

const rerun: JupyterFrontEndPlugin<void> = {
  id: 'jupyter_hyperpod:rerun',
  description: 'Runs the cell of a job once more.',
  autoStart: true,
  requires: [IShared, INotebookTracker],
  activate: (
    app: JupyterFrontEnd,
    shared: IShared,
    notebooks: INotebookTracker
  ): void => {
    const cells = new Cells(shared, notebooks, app.commands, id =>
      app.shell.activateById(id)
    );
    shared.actions.rerunner = (job, near) => cells.rerun(job, near);
  }
};

const running: JupyterFrontEndPlugin<void> = {
  id: 'jupyter_hyperpod:running',
  description: 'Active jobs in the panel of what is running.',
  autoStart: true,
  requires: [IShared],
  optional: [IRunningSessionManagers],
  activate: (
    _: JupyterFrontEnd,
    shared: IShared,
    managers: IRunningSessionManagers | null
  ): void => {
    managers?.add(new RunningJobs(shared));
  }
};

const status: JupyterFrontEndPlugin<void> = {
  id: 'jupyter_hyperpod:status',
  description: 'The newest active job in the status bar.',
  autoStart: true,
  requires: [IShared],
  optional: [IStatusBar],
  activate: (
    app: JupyterFrontEnd,
    shared: IShared,
    statusBar: IStatusBar | null
  ): void => {
    if (statusBar === null) {
      return;
    }
    const item = new StatusWidget(shared, () => {
      void app.commands.execute(CommandIDs.showPanel);
    });
    statusBar.registerStatusItem('jupyter_hyperpod:status', {
      item,
      align: 'left',
      rank: 50,
      isActive: () =>
        shared.model.cluster !== null &&
        shared.model.cluster.state !== 'stopped',
      activeStateChanged: shared.model.clusterChanged
    });
  }
};

export default [
  core,
  sidebar,
  drive,
  files,
  dashboard,
  planner,
  runs,
  comparison,
  trials,
  schedules,
  renderer,
  rerun,
  runPlugin,
  running,
  status
];
