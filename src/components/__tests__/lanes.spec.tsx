import * as React from 'react';

import { click, draw, find, host, shared } from '../../__tests__/page';
import type { IResources } from '../../api';
import { keepFocus } from '../../focus';
import { IJobView, newJobView } from '../../model/views';
import { Lanes } from '../lanes';

/** Two members; one is lost after 10 of 20 seconds, for one second. */
function job(): IJobView {
  const formed = { spares: [], reason: '', nodes: ['node-1', 'node-2'] };
  return {
    ...newJobView('a-job'),
    state: 'succeeded',
    ended_s: 120,
    updated_s: 120,
    generations: [
      { generation: 1, time_s: 100, ...formed },
      { generation: 2, time_s: 111, ...formed, nodes: ['node-1'] }
    ],
    history: [
      [1, 2, 102, 2],
      [20, 1, 120, 1]
    ],
    decisions: [
      { time_s: 110.2, policy: 'recovery', reason: 'it goes on with one' }
    ],
    incidents: [
      {
        incident: 1,
        cause: 'process died',
        node: 'node-2',
        rank: 1,
        rung: 1,
        started_s: 110,
        detection_s: 0.1,
        resumed_s: 111,
        recovery_s: 1,
        stages: [
          { stage: 'detected', time_s: 110.1, took_s: 0.1, text: '' },
          { stage: 'fenced', time_s: 110.2, took_s: 0.1, text: '' }
        ]
      }
    ]
  };
}

const spans = (role: string) =>
  [...host.querySelectorAll<HTMLElement>(`.jp-Hp-lane [data-role="${role}"]`)]
    .filter(span => span.title)
    .map(({ title, style }) => [
      title.split(' ')[0],
      ...[style.left, style.width].map(
        part => `${+parseFloat(part).toFixed(3)}%`
      )
    ]);

it('show when members waited for the first step and recovered', () => {
  draw(<Lanes job={job()} />);
  expect(spans('waits')).toEqual([
    ['node-1', '0%', '10%'],
    ['node-2', '0%', '10%']
  ]);
  expect(spans('recovers')).toEqual([['node-1', '50%', '5%']]);
  expect(spans('lost')).toEqual([['node-2', '50%', '5%']]);
});

it('show an incident more closely, with the sentence of the decision, and all again', async () => {
  draw(<Lanes job={job()} />);
  const mark = find('.jp-Hp-lane-incidents button');
  expect(mark.title).toBe('node-2: process died. it goes on with one');
  await click('.jp-Hp-lane-incidents button');
  expect(spans('recovers')).toEqual([['node-1', '37.5%', '25%']]);
  expect(find('.jp-Hp-lane-axis').textContent).toContain('+4.0 s');
  await click('.jp-Hp-range button');
  expect(spans('recovers')).toEqual([['node-1', '50%', '5%']]);
});

it('have no row of incidents where nothing broke', () => {
  draw(<Lanes job={{ ...job(), incidents: [] }} />, shared());
  expect(host.querySelector('.jp-Hp-lane-incidents')).toBeNull();
});

it('of other replicas do not recover where one is lost', () => {
  const deployment = {
    url: '',
    model: '',
    task: '',
    host: '',
    loopback: '',
    replicas: []
  };
  draw(<Lanes job={{ ...job(), deployment }} />);
  expect(spans('recovers')).toEqual([]);
  expect(spans('lost')).toEqual([['node-2', '50%', '5%']]);
});

describe('of a job that runs', () => {
  const running = (): IJobView => ({
    ...job(),
    state: 'running',
    ended_s: null,
    members: [{ member: 'a', node: 'node-1', rank: 0 }],
    spares: [{ member: 'b', node: 'node-2', rank: null }]
  });
  const menu = () => document.querySelector<HTMLElement>('.lm-Menu');
  const items = () =>
    [...menu()!.querySelectorAll('.lm-Menu-itemLabel')].map(
      item => item.textContent
    );
  const press = (key: string, keyCode: number) =>
    menu()!.dispatchEvent(
      new KeyboardEvent('keydown', { key, keyCode, bubbles: true } as any)
    );
  const lane = (node: string) =>
    [...host.querySelectorAll<HTMLElement>('.jp-Hp-lane button')].find(
      button => button.textContent === node
    )!;

  it('break their rank or their node, from the keyboard alone', async () => {
    const injectFault = jest.fn();
    draw(<Lanes job={running()} />, shared({}, { injectFault }));
    lane('node-1').focus();
    lane('node-1').click();
    expect(items().slice(0, 2)).toEqual([
      expect.stringMatching(/^rank 0 · kill: SIGKILL/),
      expect.stringMatching(/^rank 0 · hang: SIGSTOP/)
    ]);
    expect(items()).toContainEqual(expect.stringMatching(/^node-1 · kill: /));
    expect(menu()!.contains(document.activeElement)).toBe(true);
    press('ArrowDown', 40);
    press('Enter', 13);
    expect(injectFault).toHaveBeenCalledWith('a-job', 'hang', { rank: 0 });
    expect(menu()).toBeNull();
    expect(document.activeElement).toBe(lane('node-1'));
  });

  it('keep the focus where the node that broke cannot be broken again', async () => {
    // It would give the focus of a button that goes away to the next one.
    const kept = keepFocus(host);
    const injectFault = jest.fn();
    const given = shared({}, { injectFault });
    draw(<Lanes job={running()} />, given);
    const name = lane('node-1');
    name.focus();
    name.click();
    press('Enter', 13);
    expect(document.activeElement).toBe(name);
    const members = [{ member: 'b', node: 'node-2', rank: 0 }];
    const after = { ...running(), members, spares: [] };
    draw(<Lanes job={after} />, given);
    await Promise.resolve(); // which is when changes are heard of
    expect(document.activeElement).toBe(name);
    expect(name.getAttribute('aria-disabled')).toBe('true');
    name.click();
    expect(menu()).toBeNull();
    expect(injectFault).toHaveBeenCalledTimes(1);
    lane('node-2').focus();
    draw(<Lanes job={after} />, given);
    expect(lane('node-1')).toBeUndefined();
    kept.dispose();
  });

  it('keep the focus where the node leaves while its menu is open', () => {
    draw(<Lanes job={running()} />);
    const name = lane('node-2');
    name.focus();
    name.click();
    draw(<Lanes job={{ ...running(), spares: [] }} />);
    press('Escape', 27);
    expect(document.activeElement).toBe(name);
  });

  it('break a spare as a node, with the other button of the mouse, too', () => {
    draw(<Lanes job={running()} />);
    const event = { bubbles: true, cancelable: true };
    lane('node-2').dispatchEvent(
      new MouseEvent('contextmenu', { ...event, shiftKey: true })
    );
    expect(menu()).toBeNull();
    lane('node-2').dispatchEvent(new MouseEvent('contextmenu', event));
    expect(items().every(item => item!.startsWith('node-2 · '))).toBe(true);
    press('Escape', 27);
    expect(document.activeElement).toBe(lane('node-2'));
  });

  it.each([
    ['faults are not allowed', {}, { faultsAllowed: false }],
    ['it has ended', { state: 'failed' as const }, {}],
    ['the nodes have left', { members: [], spares: [] }, {}]
  ])('offer nothing where %s', (_, fields, actions) => {
    draw(<Lanes job={{ ...running(), ...fields }} />, shared({}, actions));
    expect(
      host.querySelector('.jp-Hp-lane:not(.jp-Hp-lane-incidents) button')
    ).toBeNull();
  });

  it('offer a deployment no fault of a step', () => {
    const deployment = {
      ...{ url: '', model: '', task: '', host: '', loopback: '' },
      replicas: []
    };
    draw(<Lanes job={{ ...running(), deployment }} />);
    lane('node-1').click();
    const ranks = items().filter(item => item!.startsWith('rank'));
    expect(ranks).toHaveLength(2);
    press('Escape', 27);
  });
});

it('say what the steps of a member took, where that was sampled', () => {
  const used = {
    start_s: 100,
    times_s: [10, 20],
    width_s: 1,
    curves: {},
    sparks: {},
    phases: {
      'node-1': {
        compute: [null, 600],
        exchange: [null, 100],
        waits: [null, 250],
        steps: [null, 4]
      }
    }
  } as unknown as IResources;
  draw(<Lanes job={job()} used={used} />);
  const [first, second] = [
    ...host.querySelectorAll('.jp-Hp-lane > [role=img]')
  ];
  expect(first.getAttribute('aria-label')).toBe(
    'node-1: trains 20.0 s: computes 60 %, exchanges 10 %, waits for the slowest 25 %, the rest of a step 5 %'
  );
  expect(first.querySelectorAll('.jp-Hp-phases path')).toHaveLength(4);
  expect(second.querySelector('.jp-Hp-phases')).toBeNull();
  const legend = [...host.querySelectorAll('.jp-Hp-legend > span')];
  expect(legend.map(one => one.textContent)).toEqual(
    expect.arrayContaining(['computes', 'waits for the slowest', 'trains'])
  );
  draw(<Lanes job={job()} used={null} />);
  expect(find('.jp-Hp-legend').textContent).not.toContain('slowest');
});
