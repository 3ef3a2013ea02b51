import { nullTranslator } from '@jupyterlab/translation';
import * as React from 'react';
import { act } from 'react';

import { draw, find, host, shared } from '../../__tests__/page';
import { ApiError, IAccount } from '../../api';
import type { IJobView } from '../../model/views';
import { picturesOf } from '../curves';
import { Waterfall } from '../waterfall';
import { Whole } from '../whole';

const trans = nullTranslator.load('jupyter_hyperpod');

function account(fields: Partial<IAccount> = {}): IAccount {
  return {
    jobs: ['tiny-abcdefgh'],
    sentence: '',
    goodput: 0.75,
    useful: 75,
    spare: 0,
    thinned: false,
    lost: [
      { cause: 'process died (SIGKILL)', node_seconds: 20 },
      { cause: 'between the steps', node_seconds: 5 }
    ],
    curves: {},
    times_s: {},
    ...fields
  };
}

const JOB = {
  id: 'tiny-abcdefgh',
  state: 'succeeded',
  deployment: null,
  incidents: [],
  history: [],
  started_s: 0,
  submitted_s: 0
} as unknown as IJobView;

describe('where the time went', () => {
  it('leads from all of it down to the committed steps', () => {
    draw(<Waterfall account={account()} />);
    const rows = [...host.querySelectorAll('tr')].map(row => [
      row.querySelector('th')!.textContent,
      row.children[2].textContent,
      row.querySelector('span')!.style.marginInlineStart
    ]);
    expect(rows).toEqual([
      ['All of the members’ time', '100.0 %', '0%'],
      ['process died (SIGKILL)', '20.0 %', '80%'],
      ['between the steps', '5.00 %', '75%'],
      ['In committed steps', '75.0 %', '0%']
    ]);
  });

  it('joins what is beyond the first causes', () => {
    const lost = Array.from({ length: 12 }, (_, at) => ({
      cause: `cause ${at}`,
      node_seconds: 1
    }));
    draw(<Waterfall account={account({ lost, useful: 88 })} />);
    const names = [...host.querySelectorAll('th')].map(one => one.textContent);
    expect(names).toHaveLength(12);
    expect(names[10]).toBe('other causes');
    expect(host.querySelectorAll('tr')[10].textContent).toContain('3.00 %');
  });

  it('says nothing before the first step', () => {
    draw(<Waterfall account={account({ goodput: null, lost: [] })} />);
    expect(host.innerHTML).toBe('');
  });
});

describe('the pictures of a job', () => {
  const places: [number, number, number, number][][] = [
    [
      [1, 1, 1, 1],
      [2, 2, 2, 2]
    ]
  ];

  it('are one for each value with a curve', () => {
    const curves = { loss: places, once: [places[0].slice(0, 1)], acc: places };
    const names = picturesOf(account({ curves }), false, trans);
    expect(names.map(picture => picture.name)).toEqual(['loss', 'acc']);
  });

  it('are requests, latencies and replicas for a deployment', () => {
    const curves = {
      loss: [[]],
      ready: places,
      requests_per_s: places,
      p99_s: places
    };
    const found = picturesOf(account({ curves }), true, trans);
    expect(found.map(one => [one.name, one.values.map(([at]) => at)])).toEqual([
      ['Requests per second', ['requests_per_s']],
      ['Latency', ['p99_s']],
      ['Replicas', ['ready']]
    ]);
  });
});

describe('what a whole journal tells', () => {
  const settle = () => act(async () => undefined);

  it('is asked for once of a job that has ended', async () => {
    const ask = jest.fn(async () => account());
    draw(<Whole job={JOB} />, shared({ api: { account: ask } as never }));
    await settle();
    expect(ask).toHaveBeenCalledTimes(1);
    expect(find('.jp-Hp-waterfall').textContent).toContain('Goodput 75.0 %');
  });

  it('says why it cannot be read', async () => {
    const ask = async () => {
      throw new ApiError(404, 'no job tiny-abcdefgh');
    };
    draw(<Whole job={JOB} />, shared({ api: { account: ask } as never }));
    await settle();
    expect(find('[role="status"]').textContent).toBe('no job tiny-abcdefgh');
  });
});
