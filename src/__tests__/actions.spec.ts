/** What is asked before something ends, and what can be undone. */

import { Dialog, Notification } from '@jupyterlab/apputils';
import { nullTranslator } from '@jupyterlab/translation';

import { Actions } from '../actions';
import type { Api } from '../api';
import type { HyperpodModel } from '../model/model';

const trans = nullTranslator.load('jupyter_hyperpod');
const asked: string[][] = [];

function actions(): Actions {
  const api: Partial<Api> = {
    askNode: async (node, action) => {
      asked.push([node, action]);
      return { said: `${node}: ${action}` };
    }
  };
  const model = { api, cluster: null } as unknown as HyperpodModel;
  return new Actions(model, trans, {} as any);
}

afterEach(() => {
  asked.length = 0;
  Notification.manager.dismiss();
});

it('drains a node at once, and undoes it where that is told', async () => {
  await actions().remedy('node-1', 'drain');
  const [{ message, options }] = Notification.manager.notifications;
  expect(message).toBe('node-1: drain');
  expect(options.actions!.map(action => action.label)).toEqual(['Undo']);
  options.actions![0].callback(new MouseEvent('click'));
  await Promise.resolve();
  expect(asked).toEqual([
    ['node-1', 'drain'],
    ['node-1', 'resume']
  ]);
});

it.each(['reboot', 'replace'] as const)('asks before a %s', async action => {
  const answer = async (button: number) => {
    const done = actions().remedy('node-1', action);
    await new Promise(resolve => setTimeout(resolve));
    const [dialog] = [...document.querySelectorAll('.jp-Dialog')];
    dialog.querySelectorAll<HTMLElement>('.jp-Dialog-button')[button].click();
    await done;
  };
  await answer(0);
  expect(asked).toEqual([]);
  await answer(1);
  expect(asked).toEqual([['node-1', action]]);
  expect(Notification.manager.notifications[0].options.actions).toEqual([]);
  expect(Dialog.tracker.size).toBe(0);
});

it('shows a choice for cells at once, and keeps it', async () => {
  const seen: string[] = [];
  const model = { refresh: () => seen.push('shown') };
  const chosen = new Actions(model as any, trans, {} as any);
  chosen.keep = async name => {
    seen.push(`kept ${name}`);
  };
  await chosen.remember({ backend: 'slurm' });
  expect(seen).toEqual(['shown', 'kept run']);
  expect(chosen.preferences.run).toEqual({ backend: 'slurm' });
});
