/** Where an executed notebook is written, and when a person is asked. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import { Dialog } from '@jupyterlab/apputils';
import { ServerConnection } from '@jupyterlab/services';

import { shared } from '../../__tests__/page';
import { Api, ApiError } from '../../api';
import { openExecuted } from '../open';

const ID = 'report-abcdefgh';
const about = {
  state: 'succeeded',
  cells: 2,
  cells_begun: 2,
  running_cell: null,
  notes: []
};

/** JupyterLab with some files; what it saved and opened. */
function lab(files: string[], origin: string, api: Partial<Api> = {}) {
  const saved: string[] = [];
  const opened: string[] = [];
  const revert = jest.fn().mockResolvedValue(undefined);
  const app = {
    commands: {
      execute: async (_: string, { path }: { path: string }) => {
        opened.push(path);
        return { context: { ready: Promise.resolve(), revert } };
      }
    },
    serviceManager: {
      contents: {
        get: async (path: string) => {
          if (!files.includes(path)) {
            throw new ServerConnection.ResponseError({
              status: 404
            } as Response);
          }
        },
        save: async (path: string) => void saved.push(path)
      }
    }
  } as unknown as JupyterFrontEnd;
  const executed = async () => ({
    id: ID,
    origin,
    notebook: { metadata: { hyperpod: about } }
  });
  const given = shared({
    api: { executed, ...api } as unknown as Api,
    settings: { root: '/work' } as any
  });
  return {
    open: () => openExecuted(app, given, ID, 'here'),
    saved,
    opened,
    revert
  };
}

const launch = jest.spyOn(Dialog.prototype, 'launch');

function answer(button: Dialog.IButton, value: unknown = null): void {
  launch.mockResolvedValueOnce({ button, isChecked: null, value });
}

afterEach(() => launch.mockReset());

it('writes beside the original and opens it, without a question', async () => {
  const { open, saved, opened, revert } = lab([], '/work/deep/report.ipynb');
  await open();
  expect(saved).toEqual([`deep/${ID}.ipynb`]);
  expect(opened).toEqual(saved);
  expect(launch).not.toHaveBeenCalled();
  expect(revert).not.toHaveBeenCalled();
});

it.each(['nothing', 'open', 'replace'])(
  'asks what becomes of a file that is there: %s',
  async wish => {
    const path = `deep/${ID}.ipynb`;
    const { open, saved, opened, revert } = lab(
      [path],
      '/work/deep/report.ipynb'
    );
    answer(
      {
        nothing: Dialog.cancelButton(),
        open: Dialog.okButton(),
        replace: Dialog.warnButton()
      }[wish]!
    );
    await open();
    expect(saved).toEqual(wish === 'replace' ? [path] : []);
    expect(opened).toEqual(wish === 'nothing' ? [] : [path]);
    expect(revert).toHaveBeenCalledTimes(wish === 'replace' ? 1 : 0);
  }
);

it('asks where, if the original is elsewhere', async () => {
  const { open, saved } = lab([], '/elsewhere/report.ipynb');
  answer(Dialog.okButton(), 'mine');
  await open();
  expect(saved).toEqual(['mine.ipynb']);
  answer(Dialog.cancelButton(), 'other');
  await open();
  expect(saved).toEqual(['mine.ipynb']);
});

it('passes on that there is none', async () => {
  const { open, opened } = lab([], '', {
    executed: () => Promise.reject(new ApiError(409, 'one cell was the job'))
  });
  await expect(open()).rejects.toThrow('one cell was the job');
  expect(opened).toEqual([]);
});
