import * as React from 'react';
import { act } from 'react';

import { Api, ISharing } from '../../api';
import { click, draw, find, host, shared } from '../../__tests__/page';
import { IGroups, SharingForm } from '../form';
import { SharingRow } from '../row';
import { sharingOf } from '../source';
import { Belongs } from '../words';

function sharing(fields: Partial<ISharing> = {}): ISharing {
  return {
    store: '/home/ada/store',
    owner: 'ada',
    read: '',
    operate: '',
    groups: ['ada', 'team'],
    notes: [],
    role: 'owner',
    person: 'ada',
    ...fields
  };
}

async function look(found: ISharing, view: JSX.Element) {
  const asked: ISharing[] = [];
  const api = { sharing: async () => found } as unknown as Api;
  const share = async (before: ISharing) => void asked.push(before);
  await act(async () => draw(view, shared({ api }, { share })));
  return asked;
}

it('tells the owner, and lets the owner share', async () => {
  const asked = await look(sharing(), <SharingRow />);
  expect(find('.jp-Hp-sharing').textContent).toContain('Jobs of ada');
  expect(find('.jp-Hp-sharing p').textContent).toBe(
    'only you can see and operate these jobs'
  );
  await click('.jp-Hp-button');
  expect(asked).toHaveLength(1);
});

it('tells the owner who else reads', async () => {
  await look(sharing({ read: 'team' }), <SharingRow />);
  expect(find('.jp-Hp-sharing p').textContent).toBe(
    'all rights are yours · the group team reads'
  );
});

it.each([
  ['read', 'you may read · the group team reads'],
  ['operate', 'you may operate · the group team reads']
] as const)('tells who may %s, and offers no change', async (role, text) => {
  await look(sharing({ role, read: 'team' }), <SharingRow />);
  expect(find('.jp-Hp-sharing p').textContent).toBe(text);
  expect(host.querySelector('button')).toBeNull();
});

it('says on the page of a job whose it is', async () => {
  await look(
    sharing({ role: 'read', read: 'team', operate: 'ops' }),
    <Belongs />
  );
  expect(find('.jp-Hp-belongs').textContent).toBe(
    'Owner: ada · you may read · the group team reads, ops operates'
  );
});

it('shows what keeps members out', async () => {
  const notes = ['the group team cannot get there: /home/ada is closed to it'];
  await look(sharing({ read: 'team', notes }), <SharingRow />);
  expect(host.textContent).toContain(notes[0]);
});

it('shows nothing where a server does not know it', async () => {
  await act(async () => draw(<SharingRow />, shared({ api: {} as Api })));
  expect(host.textContent).toBe('');
});

it('asks once for all views, and takes the answer to a change', async () => {
  let asked = 0;
  const api = {
    sharing: async () => (++asked, sharing()),
    share: async (read: string, operate: string) => sharing({ read, operate })
  } as unknown as Api;
  const { model } = shared({ api });
  await Promise.all([sharingOf(model).look(), sharingOf(model).look()]);
  expect(asked).toBe(1);
  await sharingOf(model).share('team', '');
  expect(sharingOf(model).found?.read).toBe('team');
});

it('asks for the groups, and says what nobody sees', () => {
  const answers: IGroups[] = [];
  draw(
    <SharingForm
      question={sharing()}
      onChange={answer => answers.push(answer)}
    />
  );
  expect(find('[role="status"]').textContent).toContain('is private');
  const input = host.querySelectorAll('input')[1];
  const set = Object.getOwnPropertyDescriptor(
    HTMLInputElement.prototype,
    'value'
  )!.set!;
  act(() => {
    set.call(input, 'team');
    input.dispatchEvent(new Event('input', { bubbles: true }));
  });
  expect(answers.at(-1)).toEqual({ read: '', operate: 'team' });
  expect(find('[role="status"]').textContent).toContain('all jobs');
});
