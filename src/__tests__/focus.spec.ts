/** The place of the keyboard in a view whose parts come and go. */

import { keepFocus } from '../focus';

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
