import * as React from 'react';
import { act } from 'react';

import { draw, fill, host, shared } from '../../__tests__/page';
import { ApiError, IPlan, IPlanRequest } from '../../api';
import type { HyperpodModel } from '../../model/model';
import { Planner } from '../planner';
import { FIRST, NOTCHES, notchOf, scales, valueAt } from '../scales';

const { trans } = shared();

describe('scales', () => {
  it.each(scales(trans))('$name goes from end to end', scale => {
    expect(valueAt(scale, 0)).toBe(scale.low);
    expect(valueAt(scale, NOTCHES)).toBe(scale.high);
    expect(notchOf(scale, scale.high * 2)).toBe(NOTCHES);
    let before = -Infinity;
    for (let notch = 0; notch <= NOTCHES; notch++) {
      const value = valueAt(scale, notch);
      expect(value).toBeGreaterThanOrEqual(before);
      before = value;
    }
  });

  it('begin at the published example, to two digits', () => {
    for (const scale of scales(trans)) {
      const found = valueAt(scale, notchOf(scale, FIRST[scale.name]));
      expect(Math.abs(found - FIRST[scale.name])).toBeLessThanOrEqual(
        0.03 * FIRST[scale.name]
      );
    }
    expect(scales(trans)[1].format(FIRST.rate)).toBe('0.05 %/h');
  });
});

function answer(line: string): IPlan {
  return {
    plan: { title: ['256 instances', '203 days'], lines: [line, 'more'] },
    sheets: [
      {
        headers: ['RECOVERY', '>COST'],
        rows: [
          [
            { text: 'saved', tone: 'title' },
            { text: '$5.00', tone: 'good' }
          ]
        ]
      }
    ],
    picture: '<svg xmlns="http://www.w3.org/2000/svg"><path d="M0 0"/></svg>'
  };
}

describe('Planner', () => {
  let asked: IPlanRequest[];
  let reply: (request: IPlanRequest) => Promise<IPlan>;

  beforeEach(async () => {
    jest.useFakeTimers();
    asked = [];
    reply = async request => answer(`asked with ${request.convention}`);
    const api = {
      plan: (request: IPlanRequest) => {
        asked.push(request);
        return reply(request);
      }
    };
    draw(<Planner />, shared({ api } as unknown as Partial<HyperpodModel>));
    await rest();
  });

  afterEach(() => {
    jest.useRealTimers();
  });

  async function rest(): Promise<void> {
    await act(async () => {
      await jest.advanceTimersByTimeAsync(200);
    });
  }

  it('shows what the server makes of the published example', () => {
    expect(asked).toEqual([FIRST]);
    expect(host.textContent).toContain('asked with productive');
    expect(host.querySelector('.jp-Hp-picture path')).not.toBeNull();
    const cells = [...host.querySelectorAll('td')];
    expect(cells.map(cell => cell.dataset.tone)).toEqual(['title', 'good']);
    expect(cells[1].dataset.side).toBe('right');
    expect(host.querySelectorAll('input[type=range]')).toHaveLength(7);
  });

  it('asks once when a slider has come to rest', async () => {
    const slider = host.querySelector<HTMLInputElement>('input')!;
    fill(slider, '100');
    fill(slider, `${NOTCHES}`);
    expect(asked).toHaveLength(1);
    await rest();
    expect(asked).toHaveLength(2);
    expect(asked[1].instances).toBe(100_000);
    expect(slider.getAttribute('aria-valuetext')).toContain('100');
  });

  it('keeps the last answer beside what the server refuses', async () => {
    reply = () => Promise.reject(new ApiError(400, 'are the two exchanged?'));
    fill(host.querySelector('select')!, 'serial');
    await rest();
    expect(host.querySelector('[role=status]')?.textContent).toBe(
      'are the two exchanged?'
    );
    expect(host.querySelector('.jp-Hp-plan[data-outdated]')).not.toBeNull();
  });

  it('does not show an answer that came too late', async () => {
    let late: (plan: IPlan) => void = () => undefined;
    reply = () => new Promise(resolve => (late = resolve));
    fill(host.querySelector('select')!, 'serial');
    await rest();
    reply = async request => answer(`asked with ${request.convention}`);
    fill(host.querySelector('select')!, 'restart');
    await rest();
    await act(async () => late(answer('too late')));
    expect(host.textContent).toContain('asked with restart');
  });

  it('simulates when asked to', async () => {
    let done: (plan: IPlan) => void = () => undefined;
    reply = () => new Promise(resolve => (done = resolve));
    const button = host.querySelector<HTMLButtonElement>('.jp-Hp-button')!;
    await act(async () => button.click());
    expect(button.textContent).toBe('Simulating…');
    await act(async () => button.click());
    expect(asked).toHaveLength(2);
    expect(asked[1].simulate).toBe(true);
    await act(async () => done(answer('simulated')));
    expect(button.textContent).toBe('Simulate');
    expect(button.disabled).toBe(true);
  });
});
