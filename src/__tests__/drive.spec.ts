import { Contents, ServerConnection } from '@jupyterlab/services';

import { nullTranslator } from '@jupyterlab/translation';

import { Api } from '../api';
import { MOST_ENTRIES, MountDrive } from '../drive';

const NOW = '2026-01-01T00:00:00+00:00';

function model(path: string, fields: object = {}): Contents.IModel {
  return {
    name: path.split('/').pop()!,
    path,
    type: 'file',
    created: NOW,
    last_modified: NOW,
    writable: true,
    size: 1,
    mimetype: '',
    content: null,
    format: null,
    ...fields
  } as Contents.IModel;
}

/** A server of one directory that gives its entries in pages. */
function server(names: string[], page: number) {
  const asked: string[] = [];
  const settings = ServerConnection.makeSettings({
    baseUrl: 'http://localhost:1/base/',
    fetch: async (request: RequestInfo) => {
      const url = new URL((request as Request).url);
      asked.push(url.pathname + (url.searchParams.get('after') ?? ''));
      const behind = names.filter(
        name => name > (url.searchParams.get('after') ?? '')
      );
      const content = behind.slice(0, page).map(name => model(`m/d é/${name}`));
      const next = behind.length > page ? content[page - 1].name : null;
      const directory = { type: 'directory', format: 'json', content, next };
      return new Response(JSON.stringify(model('m/d é', directory)));
    }
  });
  const cut: [string, number][] = [];
  const trans = nullTranslator.load('jupyter_hyperpod');
  const drive = new MountDrive(new Api(settings), trans, (path, shown) =>
    cut.push([path, shown])
  );
  return { asked, cut, drive };
}

/** A server without the extension. */
function absent(): MountDrive {
  const settings = ServerConnection.makeSettings({
    fetch: async () => new Response('{"message": "no"}', { status: 404 })
  });
  const trans = nullTranslator.load('jupyter_hyperpod');
  return new MountDrive(new Api(settings), trans, () => undefined);
}

describe('MountDrive', () => {
  it('fetches every page of a directory', async () => {
    const names = ['a', 'b?', 'c', 'd', 'e'];
    const { asked, cut, drive } = server(names, 2);
    const found = await drive.get('m/d é', { content: true });
    expect(found.content.map((one: Contents.IModel) => one.name)).toEqual(
      names
    );
    const path = '/base/jupyter_hyperpod/api/v1/contents/m/d%20%C3%A9';
    expect(asked).toEqual([path, `${path}b?`, `${path}d`]);
    expect(cut).toEqual([]);
  });

  it('says so where a directory has too many', async () => {
    const names = Array.from({ length: MOST_ENTRIES + 5000 }, (_, n) =>
      String(n).padStart(5, '0')
    );
    const { cut, drive } = server(names, 4000);
    const found = await drive.get('m/d é');
    expect(found.content).toHaveLength(12_000);
    await drive.get('m/d é');
    expect(cut).toEqual([['m/d é', 12_000]]);
  });

  it('has no top that is missing: a file browser would look for it for ever', async () => {
    const drive = absent();
    const { ResponseError } = ServerConnection;
    const [top, below] = await Promise.all(
      ['', 'm'].map(path => drive.get(path).catch(error => error))
    );
    expect(top instanceof ResponseError).toBe(false);
    expect(top.message).toBe('no');
    expect(below instanceof ResponseError).toBe(true);
  });

  it('is its own provider, whatever provider an editor names', async () => {
    const { drive } = server(['a'], 1);
    const found = await drive.get('m/d é', { contentProviderId: 'rtc' });
    expect(found.content).toHaveLength(1);
  });

  it('downloads from the extension, not from the server’s own files', async () => {
    const { drive } = server([], 1);
    expect(await drive.getDownloadUrl('m/a b#c')).toBe(
      'http://localhost:1/base/jupyter_hyperpod/api/v1/files/m/a%20b%23c'
    );
  });

  it('asks nobody about checkpoints', async () => {
    const { asked, drive } = server([], 1);
    expect(await drive.listCheckpoints()).toEqual([]);
    expect((await drive.createCheckpoint()).id).toBe('none');
    await expect(drive.restoreCheckpoint()).rejects.toThrow('no checkpoints');
    expect(asked).toEqual([]);
  });
});
