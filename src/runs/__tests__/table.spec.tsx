/** The table as a person meets it: a filter without a match, and tags that are refused before they are sent. */

import { MessageLoop } from '@lumino/messaging';
import { Signal } from '@lumino/signaling';
import * as React from 'react';
import { act } from 'react';

import { click, draw, fill, find, host, shared } from '../../__tests__/page';
import { RunActions } from '../actions';
import { index } from '../filter';
import type { Rows } from '../rows';
import { RunsTable } from '../table';
import { run } from './given';

const RUNS = [run('longa-z4ba4hm7', { tags: ['best'] }), run('first-fnxykcxy')];

/** Rows that a server has told. */
function given(): Rows {
  const rows = {
    all: RUNS.map(index),
    known: true,
    problem: '',
    sources: new Map(),
    search: () => undefined,
    refresh: async () => undefined
  };
  return { ...rows, changed: new Signal(rows) } as unknown as Rows;
}

it('says why a filter finds nothing, and takes it away', async () => {
  draw(<RunsTable rows={given()} />);
  expect(host.querySelector('.jp-Hp-nomatch')).toBeNull();
  fill(find('.jp-Hp-filter'), 'state:faild');
  expect(find('.jp-Hp-nomatch').textContent).toContain("called 'faild'");
  fill(find('.jp-Hp-filter'), 'state:failed');
  expect(find('.jp-Hp-nomatch').textContent).toContain('No run matches');
  await click('.jp-Hp-nomatch button');
  expect(host.querySelector('.jp-Hp-nomatch')).toBeNull();
  expect(host.querySelectorAll('[data-index]')).toHaveLength(2);
});

it('keeps the dialog of tags open, and says which one is wrong', async () => {
  const sent: unknown[] = [];
  const api = { labelRuns: async (...given: unknown[]) => sent.push(given) };
  const actions = new RunActions(shared({ api } as any), given());
  let done: Promise<void>;
  await act(async () => {
    done = actions.addTag(RUNS);
    while (document.querySelector('.jp-Dialog') === null) {
      await Promise.resolve();
    }
    MessageLoop.flush();
  });
  const field = document.querySelector('.jp-Dialog input')!;
  const accept = document.querySelector<HTMLButtonElement>('.jp-mod-accept')!;
  fill(field, 'a b,ü <b>x</b>');
  expect(document.querySelector('.jp-Dialog')!.textContent).toContain(
    '"<b>x</b>" cannot be a tag'
  );
  expect(accept.disabled).toBe(true);
  fill(field, 'a b,ü');
  expect(document.querySelector('.jp-Dialog')!.textContent).toContain(
    'Spaces and commas separate tags.'
  );
  expect(accept.disabled).toBe(false);
  await act(async () => {
    accept.click();
    await done;
  });
  expect(sent).toEqual([
    [['longa-z4ba4hm7', 'first-fnxykcxy'], { add: ['a', 'b', 'ü'] }]
  ]);
});
