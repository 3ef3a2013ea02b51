import { URLExt } from '@jupyterlab/coreutils';
import { Contents, Drive } from '@jupyterlab/services';

import { Api, ROOT } from './api';

/** What is shown of a directory at most; more would freeze the list. */
export const MOST_ENTRIES = 10_000;

/** A directory's model as the server pages it. */
interface IPage extends Contents.IModel {
  next?: string | null;
}

/** The mounts as a drive of JupyterLab: `Mounts:NAME/path`. The server speaks Jupyter's contents API. */
export class MountDrive extends Drive {
  /** @param onCut called with the path of a directory of which not all is shown. */
  constructor(
    private readonly _api: Api,
    private readonly _onCut: (path: string) => void
  ) {
    super({
      name: 'Mounts',
      apiEndpoint: `${ROOT}/contents`,
      serverSettings: _api.connection
    });
  }

  /** One file, or all pages of a directory. */
  async get(
    path: string,
    options?: Contents.IFetchOptions
  ): Promise<Contents.IModel> {
    const model: IPage = await super.get(path, options);
    if (model.type !== 'directory' || !model.content) {
      return model;
    }
    while (model.next) {
      if (model.content.length >= MOST_ENTRIES) {
        this._onCut(path);
        break;
      }
      const page: IPage = await this._api.contentsAfter(path, model.next);
      model.content.push(...page.content);
      model.next = page.next;
    }
    return model;
  }

  /** Where the browser gets a file of any size. */
  async getDownloadUrl(path: string): Promise<string> {
    const url = await super.getDownloadUrl(path);
    const { baseUrl } = this.serverSettings;
    const [theirs, ours] = ['files/', `${ROOT}/files/`];
    return url.replace(
      URLExt.join(baseUrl, theirs),
      URLExt.join(baseUrl, ours)
    );
  }

  /** Files of mounts have no checkpoints of Jupyter's: saving makes none, and none can be gone back to. */
  async createCheckpoint(): Promise<Contents.ICheckpointModel> {
    return { id: 'none', last_modified: new Date().toISOString() };
  }

  async listCheckpoints(): Promise<Contents.ICheckpointModel[]> {
    return [];
  }

  async restoreCheckpoint(): Promise<void> {
    throw new Error('Files of mounts have no checkpoints.');
  }

  async deleteCheckpoint(): Promise<void> {
    /* There is none. */
  }
}
