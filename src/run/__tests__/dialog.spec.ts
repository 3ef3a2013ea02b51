import { MessageLoop } from '@lumino/messaging';
import { act } from 'react';

import { shared } from '../../__tests__/page';
import { ask } from '../dialog';
import { NOTHING } from '../line';

const QUESTION = {
  whole: false,
  count: 1,
  notebook: 'notes',
  parameters: [],
  line: '',
  first: { ...NOTHING, nodes: 2 },
  about: Promise.resolve(null),
  backends: Promise.resolve([]),
  mounts: Promise.resolve([]),
  interpreters: [],
  dryRun: async () => ({ ok: true, text: '' })
};

function ctrlEnter(): KeyboardEvent {
  const event = new KeyboardEvent('keydown', {
    key: 'Enter',
    ctrlKey: true,
    bubbles: true,
    cancelable: true
  });
  document.activeElement!.dispatchEvent(event);
  return event;
}

it('takes the keys before it is drawn, so that Ctrl-Enter runs no cell of the notebook', async () => {
  const notebook = document.createElement('textarea');
  document.body.appendChild(notebook);
  notebook.focus();
  const run = jest.fn();
  notebook.addEventListener('keydown', run);

  let answer: ReturnType<typeof ask>;
  let early: KeyboardEvent;
  // What is drawn appears at the end of `act`.
  await act(async () => {
    answer = ask(shared(), QUESTION);
    while (document.querySelector('.jp-Hp-rundialog') === null) {
      await Promise.resolve();
    }
    early = ctrlEnter();
    MessageLoop.flush();
  });

  expect(run).not.toHaveBeenCalled();
  expect(early!.defaultPrevented).toBe(true);
  const dialog = document.querySelector('.jp-Hp-rundialog');
  expect(dialog).not.toBeNull(); // what is not drawn yet is not accepted

  act(() => void ctrlEnter());
  expect((await answer!)?.line).toBe('%%hyperpod --nodes 2');
  expect(document.querySelector('.jp-Hp-rundialog')).toBeNull();
  notebook.remove();
});
