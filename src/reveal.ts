/** Shows a view of the main area: on this page, or in JupyterLab where this page has room for one widget only. */

import {
  ILayoutRestorer,
  IRouter,
  JupyterFrontEnd
} from '@jupyterlab/application';
import { WidgetTracker } from '@jupyterlab/apputils';
import { URLExt } from '@jupyterlab/coreutils';
import type { LabIcon } from '@jupyterlab/ui-components';
import type { Widget } from '@lumino/widgets';

import type { TrialsOf } from './api';
import type { IShared } from './components/context';

/** The query parameter with the view that a page of JupyterLab opens first. */
const PARAMETER = 'hyperpod-open';
export const PLANNER = 'planner';
const RUNS = 'runs';
const SCHEDULES = 'schedules';
const JOB = 'job:';
const COMPARISON = 'compare:';
const SWEEP = 'sweep:';
const TRIALS = 'trials:';

/** The view that an address asks for. */
export type Target =
  | { planner: true }
  | { runs: true }
  | { schedules: true }
  | { job: string }
  | { compare: string[] }
  | { trials: TrialsOf };

/** The address of a page of JupyterLab that shows `target`. */
export function pageOf(target: Target, baseUrl: string): string {
  const query = `?${PARAMETER}=${encodeURIComponent(valueOf(target))}`;
  return URLExt.join(baseUrl, 'lab') + query;
}

function valueOf(target: Target): string {
  if ('job' in target) {
    return JOB + target.job;
  }
  if ('compare' in target) {
    return COMPARISON + target.compare.join(',');
  }
  if ('trials' in target) {
    const of = target.trials;
    return 'sweep' in of ? SWEEP + of.sweep : TRIALS + of.jobs.join(',');
  }
  return 'runs' in target ? RUNS : 'schedules' in target ? SCHEDULES : PLANNER;
}

/** The view in the query of an address; null where there is none of ours. */
export function targetOf(search: string): Target | null {
  const value = new URLSearchParams(search).get(PARAMETER) ?? '';
  if (value.startsWith(JOB) && value.length > JOB.length) {
    return { job: value.slice(JOB.length) };
  }
  if (value.startsWith(COMPARISON)) {
    const compare = value.slice(COMPARISON.length).split(',').filter(Boolean);
    return compare.length > 1 ? { compare } : null;
  }
  if (value.startsWith(SWEEP) && value.length > SWEEP.length) {
    return { trials: { sweep: value.slice(SWEEP.length) } };
  }
  if (value.startsWith(TRIALS)) {
    const jobs = value.slice(TRIALS.length).split(',').filter(Boolean);
    return jobs.length ? { trials: { jobs } } : null;
  }
  if (value === RUNS) {
    return { runs: true };
  }
  if (value === SCHEDULES) {
    return { schedules: true };
  }
  return value === PLANNER ? { planner: true } : null;
}

/** Bring a widget to the front of the main area, and add it if it is new; a page of Notebook 7 has no room for it. */
export async function reveal<W extends Widget>(
  app: JupyterFrontEnd,
  tracker: WidgetTracker<W>,
  widget: W,
  type: string,
  target: Target
): Promise<W | null> {
  if (!widget.isAttached) {
    app.shell.add(widget, 'main', { type });
    if (!widget.isAttached) {
      widget.dispose();
      window.open(
        pageOf(target, app.serviceManager.serverSettings.baseUrl),
        '_blank'
      );
      return null;
    }
    await tracker.add(widget);
  }
  app.shell.activateById(widget.id);
  return widget;
}

/** A view of the main area of which there is one. */
export interface IOnlyView<W extends Widget> {
  /** Of its tab, among those that JupyterLab restores. */
  name: string;
  command: string;
  label: string;
  caption: string;
  icon: LabIcon;
  /** The kind of widget, for the shell. */
  type: string;
  target: Target;
  load: () => Promise<new (shared: IShared) => W>;
}

/** Add the command that opens a view, in a tab that JupyterLab restores. */
export function addOnlyView<W extends Widget>(
  app: JupyterFrontEnd,
  shared: IShared,
  restorer: ILayoutRestorer | null,
  view: IOnlyView<W>
): void {
  const { name, command, label, caption, icon, type, target } = view;
  const tracker = new WidgetTracker<W>({
    namespace: `jupyter_hyperpod-${name}`
  });
  app.commands.addCommand(command, {
    label,
    caption,
    icon,
    describedBy: { args: null },
    execute: async () => {
      const View = await view.load();
      const widget = tracker.currentWidget ?? new View(shared);
      return reveal(app, tracker, widget, type, target);
    }
  });
  void restorer?.restore(tracker, { command, name: () => name });
}

/** Open the view in this page's address, once, after everything else has loaded. */
export function followAddress(
  app: JupyterFrontEnd,
  router: IRouter,
  open: (target: Target) => unknown
): void {
  const command = 'hyperpod:route';
  app.commands.addCommand(command, {
    describedBy: { args: null },
    isVisible: () => false,
    execute: async args => {
      const location = args as unknown as IRouter.ILocation;
      const target = targetOf(location.search ?? '');
      if (target === null) {
        return;
      }
      const query = new URLSearchParams(location.search);
      query.delete(PARAMETER);
      const rest = query.size ? `?${query}` : '';
      await app.restored;
      router.navigate(location.path + rest + (location.hash ?? ''), {
        skipRouting: true
      });
      await open(target);
    }
  });
  router.register({ command, pattern: new RegExp(`[?&]${PARAMETER}=`) });
}
