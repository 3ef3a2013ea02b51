/** The example of docs/plugin-api.md, on the real model. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import { Notification } from '@jupyterlab/apputils';

import example from '../../docs/example-extension/src';
import { Api, Stream } from '../api';
import { IHyperpod } from '../index';
import { HyperpodModel } from '../model/model';
import { newJobView } from '../model/views';
import { fakeSockets } from './fakes';

describe('the example of an extension that uses ours', () => {
  it('tells of a job that fails while it looks, and opens it', async () => {
    jest.useFakeTimers();
    const sockets = fakeSockets();
    const stream: Stream = new Stream({
      open: sockets.open,
      cursor: topic => model.cursor(topic)
    });
    const settings = jest.fn().mockResolvedValue({});
    const model = new HyperpodModel({ settings } as unknown as Api, stream);
    const openJob = jest.fn();
    const told = jest.spyOn(Notification, 'error').mockReturnValue('');
    const hyperpod = { model, actions: { openJob } };
    expect(example.optional).toEqual([IHyperpod]);
    await example.activate({} as JupyterFrontEnd, hyperpod);
    await model.connect();
    sockets.all[0].accept();

    const jobs = (state: string) => {
      const job = { ...newJobView('new-abcdefgh'), name: 'new', state };
      const old = { ...newJobView('old-abcdefgh'), state: 'failed' };
      const message = { type: 'jobs', jobs: [job, old], older: 0, before: '' };
      sockets.all[0].say(message);
      jest.advanceTimersByTime(100);
    };
    jobs('running');
    expect(told).not.toHaveBeenCalled();
    jobs('failed');
    jobs('failed');
    expect(told).toHaveBeenCalledTimes(1);
    told.mock.calls[0][1]?.actions?.[0].callback({} as MouseEvent);
    expect(openJob).toHaveBeenCalledWith('new-abcdefgh');
    model.dispose();
    jest.useRealTimers();
  });

  it('goes on without ours', () => {
    expect(() => example.activate({} as JupyterFrontEnd, null)).not.toThrow();
  });
});
