/** A page for tests of views: each test draws into an empty one, and fails where React complains. */

import { nullTranslator } from '@jupyterlab/translation';
import { Signal } from '@lumino/signaling';
import * as React from 'react';
import { act } from 'react';
import { createRoot, Root } from 'react-dom/client';

import type { Actions } from '../actions';
import { IShared, Shared } from '../components/context';
import type { HyperpodModel } from '../model/model';
import type { INodeView } from '../model/views';

(globalThis as any).IS_REACT_ACT_ENVIRONMENT = true;
// jsdom lays nothing out
(globalThis as any).ResizeObserver ??= class {
  observe() {}
  disconnect() {}
};

/** The element that `draw` fills. */
export let host: HTMLElement;
let root: Root;

beforeEach(() => {
  jest.spyOn(console, 'error');
  host = document.createElement('div');
  document.body.appendChild(host);
  root = createRoot(host);
});

afterEach(() => {
  act(() => root.unmount());
  host.remove();
  expect(console.error).not.toHaveBeenCalled();
});

/** Write into a field, or choose in a list, as a person does: React hears of it. */
export function fill(field: Element, value: string): void {
  const kind = Object.getPrototypeOf(field);
  act(() => {
    Object.getOwnPropertyDescriptor(kind, 'value')!.set!.call(field, value);
    const event = field instanceof HTMLSelectElement ? 'change' : 'input';
    field.dispatchEvent(new Event(event, { bubbles: true }));
  });
}

/** Only what the views under test read; the real model is tested on its own. */
export function shared(
  model: Partial<HyperpodModel> = {},
  actions: Partial<Actions> = {}
): IShared {
  return {
    model: {
      changed: new Signal({}),
      cluster: null,
      connection: 'online',
      summary: () => null,
      job: () => null,
      activeJobs: [],
      api: {
        clusters: async () => [],
        output: () => new Promise(() => undefined) // it is slow
      },
      ...model
    } as unknown as HyperpodModel,
    actions: {
      preferences: { nodes: 4, spares: 1, finishedJobs: 5, allowFaults: true },
      faultsAllowed: true,
      ...actions
    } as unknown as Actions,
    trans: nullTranslator.load('jupyter_hyperpod')
  };
}

export function draw(element: JSX.Element, given = shared()): void {
  act(() =>
    root.render(<Shared.Provider value={given}>{element}</Shared.Provider>)
  );
}

export function find(selector: string): HTMLElement {
  const found = host.querySelector<HTMLElement>(selector);
  if (!found) {
    throw new Error(`${selector} is not in ${host.innerHTML}`);
  }
  return found;
}

/** Click, and let what it asked for be answered. */
export async function click(selector: string): Promise<void> {
  await act(async () => find(selector).click());
}

/** A free node as the server tells of it. */
export function node(
  number: number,
  fields: Partial<INodeView> = {}
): INodeView {
  return {
    node: `node-${number}`,
    state: 'idle',
    reason: '',
    spare: false,
    slots: 1,
    used: 0,
    jobs: [],
    pid: number,
    incarnation: 1,
    since_s: 0,
    ...fields
  };
}
