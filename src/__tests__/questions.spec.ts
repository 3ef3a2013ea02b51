/** What a dialog says of the job that it is about. */

import { nullTranslator } from '@jupyterlab/translation';
import { MessageLoop } from '@lumino/messaging';
import { act } from 'react';

import { Actions } from '../actions';
import type { HyperpodModel } from '../model/model';
import { newJobView } from '../model/views';
import { fill } from './page';

const trans = nullTranslator.load('jupyter_hyperpod');

describe('a question about one of two jobs of a name', () => {
  const view = {
    ...newJobView('longa-z4ba4hm7'),
    name: 'longa',
    minimum: 2,
    maximum: 20,
    nodes_wanted: 4
  };
  const scaled: number[] = [];
  const model = {
    api: { scaleJob: async (_: string, nodes: number) => scaled.push(nodes) },
    summary: () => view
  } as unknown as HyperpodModel;
  const asks = new Actions(model, trans, {} as any);
  const accept = () =>
    document.querySelector<HTMLButtonElement>(
      '.jp-Dialog-button.jp-mod-accept'
    )!;

  /** Ask, and wait for the dialog; what is drawn appears at the end of `act`. */
  async function asked(ask: () => Promise<void>): Promise<() => Promise<void>> {
    let done: Promise<void>;
    await act(async () => {
      done = ask();
      while (document.querySelector('.jp-Dialog') === null) {
        await Promise.resolve();
      }
      MessageLoop.flush();
    });
    return () => done;
  }
  const title = () => document.querySelector('.jp-Dialog-header')!.textContent;

  it('says which one stops', async () => {
    const done = await asked(() => asks.stopJob(view.id));
    expect(title()).toBe('Stop longa (z4ba4hm7)?');
    await act(async () => {
      document.querySelector<HTMLElement>('.jp-Dialog-button')!.click();
      await done();
    });
  });

  it('says which one is scaled, to the number that stands there at the end', async () => {
    const done = await asked(() => asks.scaleJob(view.id));
    expect(title()).toBe('Scale longa (z4ba4hm7)');
    const number = document.querySelector<HTMLInputElement>(
      '.jp-Dialog input[type="number"]'
    )!;
    fill(number, '1');
    expect([number.value, accept().disabled]).toEqual(['1', true]);
    fill(number, '14');
    expect([number.value, accept().disabled]).toEqual(['14', false]);
    await act(async () => {
      accept().click();
      await done();
    });
    expect(scaled).toEqual([14]);
  });
});
