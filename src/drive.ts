import { URLExt } from '@jupyterlab/coreutils';
import { Contents, Drive, ServerConnection } from '@jupyterlab/services';
import type { TranslationBundle } from '@jupyterlab/translation';

import { Api, ROOT } from './api';

/** The most entries shown of a directory; more would freeze the list. */
export const MOST_ENTRIES = 10_000;

/** A directory's model as the server pages it. */
interface IPage extends Contents.IModel {
  next?: string | null;
}

/** Whether an error means that the file does not exist. */
export function isAbsent(
  error: unknown
): error is ServerConnection.ResponseError {
  return (
    error instanceof ServerConnection.ResponseError &&
    error.response.status === 404
  );
}

/** The mounts as a drive of JupyterLab: `Mounts:NAME/path`. The server speaks Jupyter's contents API. */
export class MountDrive extends Drive {
  /** @param onCut called once per directory that has more entries than are shown. */
  constructor(
    private readonly _api: Api,
    private readonly _trans: TranslationBundle,
    private readonly _onCut: (path: string, shown: number) => void
  ) {
    super({
      name: 'Mounts',
      apiEndpoint: `${ROOT}/contents`,
      serverSettings: _api.connection
    });
    // Extensions for collaboration name their own provider, which only the default drive has.
    this.contentProviderRegistry.getProvider = () => null;
  }

  /** One file, or all pages of a directory. */
  async get(
    path: string,
    options?: Contents.IFetchOptions
  ): Promise<Contents.IModel> {
    const model: IPage = await this._first(path, options);
    if (model.type !== 'directory' || !model.content) {
      return model;
    }
    if (!Array.isArray(model.content)) {
      throw this._unreadable(path);
    }
    while (model.next) {
      if (model.content.length >= MOST_ENTRIES) {
        if (!this._cut.has(path)) {
          this._cut.add(path);
          this._onCut(path, model.content.length);
        }
        break;
      }
      const page: IPage = await this._api.contentsAfter(path, model.next);
      if (!Array.isArray(page.content)) {
        throw this._unreadable(path);
      }
      model.content.push(...page.content);
      model.next = page.next;
    }
    return model;
  }

  private async _first(
    path: string,
    options?: Contents.IFetchOptions
  ): Promise<IPage> {
    try {
      return await super.get(path, options);
    } catch (error) {
      // File browsers go to the top after a 404, in an endless loop where the top itself is missing.
      throw !path && isAbsent(error) ? new Error(error.message) : error;
    }
  }

  private _unreadable(path: string): Error {
    return new Error(
      this._trans.__(
        'The files in %1 cannot be shown: the server gave no list of them.',
        path || '/'
      )
    );
  }

  /** The URL from which the browser downloads a file of any size. */
  async getDownloadUrl(path: string): Promise<string> {
    const url = await super.getDownloadUrl(path);
    const { baseUrl } = this.serverSettings;
    const [theirs, ours] = ['files/', `${ROOT}/files/`];
    return url.replace(
      URLExt.join(baseUrl, theirs),
      URLExt.join(baseUrl, ours)
    );
  }

  /** Files of mounts have no checkpoints of Jupyter's: saving makes none, and none can be restored. */
  async createCheckpoint(): Promise<Contents.ICheckpointModel> {
    return { id: 'none', last_modified: new Date().toISOString() };
  }

  async listCheckpoints(): Promise<Contents.ICheckpointModel[]> {
    return [];
  }

  async restoreCheckpoint(): Promise<void> {
    throw new Error(this._trans.__('Files of mounts have no checkpoints.'));
  }

  async deleteCheckpoint(): Promise<void> {
    /* There is none. */
  }

  private readonly _cut = new Set<string>();
}
