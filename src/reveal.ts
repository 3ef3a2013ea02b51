/** Where a view of the main area is shown: here, or in JupyterLab where this page has room for one widget only. */

import { IRouter, JupyterFrontEnd } from '@jupyterlab/application';
import type { WidgetTracker } from '@jupyterlab/apputils';
import { URLExt } from '@jupyterlab/coreutils';
import type { Widget } from '@lumino/widgets';

/** Names, in the address of a page of JupyterLab, what it opens first. */
const PARAMETER = 'hyperpod-open';
export const PLANNER = 'planner';
const JOB = 'job:';

/** What an address asks for. */
export type Target = { planner: true } | { job: string };

/** The address of a page of JupyterLab that shows `target`. */
export function pageOf(target: Target, baseUrl: string): string {
  const value = 'job' in target ? JOB + target.job : PLANNER;
  const query = `?${PARAMETER}=${encodeURIComponent(value)}`;
  return URLExt.join(baseUrl, 'lab') + query;
}

/** What the query of an address asks for; null where it asks for nothing of ours. */
export function targetOf(search: string): Target | null {
  const value = new URLSearchParams(search).get(PARAMETER) ?? '';
  if (value.startsWith(JOB) && value.length > JOB.length) {
    return { job: value.slice(JOB.length) };
  }
  return value === PLANNER ? { planner: true } : null;
}

/** Bring a widget to the front of the main area, and into it where it is new; a page of Notebook 7 has no room for it. */
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

/** Open what the address of this page asks for, once, when everything else is there. */
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
