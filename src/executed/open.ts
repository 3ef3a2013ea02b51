/** Writes the notebook of a job with its outputs where this server's files are, and opens it. */

import type { JupyterFrontEnd } from '@jupyterlab/application';
import {
  Dialog,
  InputDialog,
  Notification,
  showDialog
} from '@jupyterlab/apputils';
import { PathExt } from '@jupyterlab/coreutils';
import type { NotebookPanel } from '@jupyterlab/notebook';
import { Contents, ServerConnection } from '@jupyterlab/services';

import { ApiError, IExecuted } from '../api';
import type { IShared } from '../components/context';
import { notebookPath } from '../rerun';

type Wish = 'write' | 'open' | 'nothing';

/**
 * Write it beside the notebook that was submitted; where that is not among the files of this server, ask where.
 * A file that is there is replaced only where the person says so. Rejects with ApiError.
 */
export async function openExecuted(
  { commands, serviceManager }: JupyterFrontEnd,
  shared: IShared,
  id: string,
  directory: string
): Promise<void> {
  const { model } = shared;
  const { contents } = serviceManager;
  const executed = await model.api.executed(id);
  const near = notebookPath(executed.origin, model.settings?.root ?? '');
  const path = near
    ? PathExt.join(PathExt.dirname(near), `${id}.ipynb`)
    : await askPath(shared, PathExt.join(directory, `${id}.ipynb`));
  if (!path) {
    return;
  }
  const there = await exists(contents, path);
  const wish = there ? await askWish(shared, path) : 'write';
  if (wish === 'nothing') {
    return;
  }
  if (wish === 'write') {
    await save(contents, path, executed);
    tell(shared, executed);
  }
  const opened: NotebookPanel | undefined = await commands.execute(
    'docmanager:open',
    { path, factory: 'Notebook' }
  );
  if (there && wish === 'write') {
    await opened?.context?.ready;
    await opened?.context?.revert(); // a tab that was open shows what was there before
  }
}

/** Ask where a notebook is to be written; empty where the person does not want it. */
async function askPath({ trans }: IShared, path: string): Promise<string> {
  const answer = await InputDialog.getText({
    title: trans.__('Write the executed notebook'),
    label: trans.__(
      'The notebook that was submitted is not among the files of this server. Write to:'
    ),
    text: path,
    okLabel: trans.__('Write')
  });
  const told = answer.button.accept ? (answer.value ?? '').trim() : '';
  return told && PathExt.extname(told) !== '.ipynb' ? `${told}.ipynb` : told;
}

/** What is to become of a file that is there: it may hold what somebody has written into it. */
async function askWish({ trans }: IShared, path: string): Promise<Wish> {
  const result = await showDialog({
    title: trans.__('Replace %1?', PathExt.basename(path)),
    body: trans.__(
      'There is a file of that name. What was written into it since would be lost.'
    ),
    buttons: [
      Dialog.cancelButton(),
      Dialog.okButton({ label: trans.__('Open it') }),
      Dialog.warnButton({ label: trans.__('Replace it') })
    ],
    defaultButton: 1
  });
  if (!result.button.accept) {
    return 'nothing';
  }
  return result.button.displayType === 'warn' ? 'write' : 'open';
}

async function exists(
  contents: Contents.IManager,
  path: string
): Promise<boolean> {
  try {
    await contents.get(path, { content: false });
    return true;
  } catch (error) {
    if (
      error instanceof ServerConnection.ResponseError &&
      error.response.status === 404
    ) {
      return false;
    }
    throw refused(error);
  }
}

async function save(
  contents: Contents.IManager,
  path: string,
  { notebook }: IExecuted
): Promise<void> {
  try {
    await contents.save(path, {
      type: 'notebook',
      format: 'json',
      content: notebook
    });
  } catch (error) {
    throw refused(error);
  }
}

function refused(error: unknown): ApiError {
  const status =
    error instanceof ServerConnection.ResponseError ? error.response.status : 0;
  return new ApiError(
    status,
    error instanceof Error ? error.message : `${error}`
  );
}

/** Say what is not in the notebook. */
function tell({ trans }: IShared, { id, notebook }: IExecuted): void {
  const about = notebook.metadata.hyperpod;
  const words = [...about.notes];
  if (about.running_cell !== null) {
    words.unshift(
      trans.__(
        '%1 still runs: %2 of its %3 code cells have begun.',
        id,
        about.cells_begun,
        about.cells
      )
    );
  }
  if (words.length) {
    Notification.info(words.join(' '), { autoClose: 10_000 });
  }
}
