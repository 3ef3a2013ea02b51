import * as React from 'react';
import { act } from 'react';

import { draw, fill, find, host, shared } from '../../__tests__/page';
import { ApiError, IPromotion, IPromotionChoice } from '../../api';
import type { HyperpodModel } from '../../model/model';
import { IPromotionAnswer, PromotionForm } from '../form';

const PLAN: IPromotion = {
  job: 'study-aaaaaaaa',
  backend: 'slurm',
  code: 'c0de',
  nodes: 2,
  elastic: '1:2',
  name: 'study',
  queue: '',
  options: {},
  sentence: 'study-aaaaaaaa on slurm: the same code',
  changes: [
    {
      part: 'chosen',
      name: 'backend',
      then: 'local',
      now: 'slurm',
      change: '',
      asks: false
    },
    {
      part: 'environment',
      name: 'numpy',
      then: '1.26',
      now: '2.0',
      change: 'rounding',
      asks: true
    }
  ],
  asks: 1
};

const SLURM = {
  name: 'slurm',
  title: 'SLURM',
  owns_nodes: false,
  missing: '',
  problem: '',
  states: {}
};

describe('the form of a promotion', () => {
  let asked: IPromotionChoice[];
  let reply: () => Promise<IPromotion>;
  let answer: IPromotionAnswer;

  beforeEach(async () => {
    jest.useFakeTimers();
    asked = [];
    reply = async () => PLAN;
    const api = {
      planPromotion: (_: string, choice: IPromotionChoice) => {
        asked.push(choice);
        return reply();
      }
    };
    draw(
      <PromotionForm
        question={{
          job: { id: PLAN.job, name: 'study', backend: 'local' },
          backends: [SLURM],
          first: PLAN
        }}
        onChange={given => (answer = given)}
      />,
      shared({ api } as unknown as Partial<HyperpodModel>)
    );
    await rest();
  });

  afterEach(() => jest.useRealTimers());

  async function rest(): Promise<void> {
    await act(async () => jest.advanceTimersByTime(1000));
  }

  function write(label: string, value: string): void {
    const labels = [...host.querySelectorAll('label')];
    const id = labels.find(one => one.textContent === label)!.htmlFor;
    fill(document.getElementById(id)!, value);
  }

  const blocks = () => host.querySelector('.jp-mod-error') !== null;

  it('waits for a tick where something differs that nobody chose', async () => {
    const rows = [...host.querySelectorAll('tbody tr')];
    expect(rows[0].textContent).toContain('numpy');
    expect(rows[0].hasAttribute('data-asks')).toBe(true);
    expect(blocks()).toBe(true);
    act(() => find('.jp-Hp-changes input[type="checkbox"]').click());
    expect(answer.accept).toBe(true);
    expect(blocks()).toBe(false);
    write('Nodes', '8');
    await rest();
    expect(answer.accept).toBe(false);
    expect(blocks()).toBe(true);
  });

  it('asks anew for each choice, and keeps what the job had', async () => {
    write('Nodes', '8');
    write('Partition', 'gpu');
    await rest();
    expect(asked.at(-1)).toEqual({
      backend: 'slurm',
      nodes: 8,
      elastic: '1:8',
      name: 'study',
      queue: '',
      slurm: { partition: 'gpu' }
    });
    expect(answer.choice).toEqual(asked.at(-1));
  });

  it('shows a refusal, and cannot be accepted then', async () => {
    reply = () => Promise.reject(new ApiError(409, 'used the mount data'));
    write('Nodes', '3');
    await rest();
    expect(find('[role="alert"]').textContent).toBe('used the mount data');
    expect(blocks()).toBe(true);
  });
});
