/** The place of the keyboard in a view whose parts come and go. */

import { CommandRegistry } from '@lumino/commands';
import type { Widget } from '@lumino/widgets';

import { keepFocus, takeFocus } from '../focus';
import plugins from '../index';
import { shared } from './page';

let host: HTMLElement;

beforeEach(() => {
  host = document.createElement('div');
  host.innerHTML =
    '<div><p><button id="a"></button><button id="b"></button></p>' +
    '<p><button id="c"></button></p></div>';
  document.body.append(host);
});

afterEach(() => host.remove());

const get = (id: string) => document.getElementById(id)!;
const changed = () => new Promise(resolve => setTimeout(resolve));

it('goes to what is nearest where the focused element goes away', async () => {
  const kept = keepFocus(host);
  get('b').focus();
  get('b').remove();
  await changed();
  expect(document.activeElement).toBe(get('a'));
  get('a').parentElement!.remove();
  await changed();
  expect(document.activeElement).toBe(get('c'));
  kept.dispose();
});

it('leaves a button that cannot be pressed any more', async () => {
  const kept = keepFocus(host);
  get('a').focus();
  (get('a') as HTMLButtonElement).disabled = true;
  await changed();
  expect(document.activeElement).toBe(get('b'));
  kept.dispose();
});

it('is not taken from where a person has gone', async () => {
  const kept = keepFocus(host);
  get('b').focus();
  get('b').blur();
  await changed();
  get('b').remove();
  await changed();
  expect(document.activeElement).toBe(document.body);
  kept.dispose();
});

it('comes into a view that a command opens, after the palette has put it elsewhere', async () => {
  const main = document.createElement('button');
  document.body.append(main);
  const there = takeFocus(host);
  main.focus();
  await there;
  expect(document.activeElement).toBe(get('a'));
  get('c').focus();
  await takeFocus(host);
  expect(document.activeElement).toBe(get('c'));
  main.remove();
});

it('comes into a view that has nothing to press yet', async () => {
  host.textContent = 'Asking the server…';
  await takeFocus(host);
  expect(document.activeElement).toBe(host);
});

it('is in the panel after the command that opens it', async () => {
  const commands = new CommandRegistry();
  const shell = {
    add: (widget: Widget) => host.append(widget.node),
    activateById: jest.fn()
  };
  const sidebar = plugins.find(one => one.id === 'jupyter_hyperpod:sidebar')!;
  await sidebar.activate({ commands, shell } as any, shared(), null, null);
  await commands.execute('hyperpod:show-panel');
  expect(shell.activateById).toHaveBeenCalledWith('jp-hyperpod-sidebar');
  expect(document.activeElement!.id).toBe('jp-hyperpod-sidebar');
});
