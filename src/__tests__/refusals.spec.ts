import { Notification } from '@jupyterlab/apputils';
import { nullTranslator } from '@jupyterlab/translation';

import { ApiError } from '../api';
import { tellRefusal, TOAST_LENGTH, toastText } from '../refusals';

const trans = nullTranslator.load('jupyter_hyperpod');
const REMEDY = 'stop it first: `jupyter hyperpod cluster stop`';
const LONG = `a cluster with ${'very '.repeat(40)}many nodes runs already; ${REMEDY}`;

it('says all of what fits', () => {
  expect(toastText('no such job', 'List the jobs.')).toBe(
    'no such job List the jobs.'
  );
});

it('keeps the remedy whole, whichever part is long', () => {
  const text = toastText(LONG, '');
  expect(text.length).toBeLessThanOrEqual(TOAST_LENGTH);
  expect(text).toMatch(/^a cluster with very .*… stop it first: /);
  expect(text.endsWith(REMEDY)).toBe(true);
  const hinted = toastText(LONG, 'Read cluster/supervisor.log in the store.');
  expect(hinted.length).toBeLessThanOrEqual(TOAST_LENGTH);
  expect(hinted.endsWith('… Read cluster/supervisor.log in the store.')).toBe(
    true
  );
});

it('cuts what has no remedy at a word', () => {
  const text = toastText('word '.repeat(60), '');
  expect(text.length).toBeLessThanOrEqual(TOAST_LENGTH);
  expect(text).toMatch(/word…$/);
});

it('stays, and shows everything on request, where it had to be cut', () => {
  tellRefusal(new ApiError(409, LONG), trans);
  tellRefusal(new ApiError(404, 'no such job'), trans);
  const [short, long] = Notification.manager.notifications;
  expect(long.message).toContain(REMEDY);
  expect(long.options.autoClose).toBe(false);
  expect(long.options.actions!.map(action => action.label)).toEqual([
    'Show all'
  ]);
  expect(short.options.actions).toEqual([]);
  Notification.manager.dismiss();
});

it('shows every word in a dialog', async () => {
  tellRefusal(new ApiError(503, LONG, 'The log tells more.'), trans);
  const [{ options }] = Notification.manager.notifications;
  options.actions![0].callback(new MouseEvent('click'));
  await new Promise(resolve => requestAnimationFrame(resolve));
  const dialog = document.querySelector('.jp-Dialog')!;
  expect(dialog.textContent).toContain(LONG);
  expect(dialog.textContent).toContain('The log tells more.');
  dialog.querySelector('button')!.click();
  Notification.manager.dismiss();
});
