import { Notification } from '@jupyterlab/apputils';
import { PathExt } from '@jupyterlab/coreutils';
import {
  FileBrowser,
  IFileBrowserFactory,
  Uploader
} from '@jupyterlab/filebrowser';
import type { Contents } from '@jupyterlab/services';
import {
  newFolderIcon,
  refreshIcon,
  ToolbarButton
} from '@jupyterlab/ui-components';
import { Debouncer } from '@lumino/polling';

import type { IShared } from './components/context';
import { MOST_ENTRIES, MountDrive } from './drive';
import { mountsIcon } from './icons';

/** A question to a mount costs the server a process, so it is asked seldom. */
const REFRESH_MS = 30_000;
/** An upload changes a directory with each of its parts. */
const SETTLED_MS = 300;

/** A file browser of the mounts, with the buttons that one has. */
export function mountBrowser(
  { model, trans }: IShared,
  factory: IFileBrowserFactory,
  contents: Contents.IManager
): FileBrowser {
  const drive = new MountDrive(model.api, path => {
    Notification.warning(
      trans.__('%1 has more entries: %2 are shown.', path, MOST_ENTRIES),
      { autoClose: 10_000 }
    );
  });
  contents.addDrive(drive);
  const browser = factory.createFileBrowser('hyperpod-files', {
    driveName: drive.name,
    auto: false,
    restore: false,
    refreshInterval: REFRESH_MS
  });
  followChanges(drive, browser, contents);
  browser.title.icon = mountsIcon;
  browser.title.caption = trans.__('Files of Mounts');
  browser.node.setAttribute('role', 'region');
  browser.node.setAttribute('aria-label', browser.title.caption);
  browser.toolbar.node.setAttribute('aria-label', trans.__('Files of mounts'));
  browser.toolbar.addItem(
    'folder',
    new ToolbarButton({
      icon: newFolderIcon,
      tooltip: trans.__('New Folder'),
      onClick: () => void browser.createNewDirectory()
    })
  );
  browser.toolbar.addItem('upload', new Uploader({ model: browser.model }));
  browser.toolbar.addItem(
    'refresh',
    new ToolbarButton({
      icon: refreshIcon,
      tooltip: trans.__('Look at the files again'),
      onClick: () => void browser.model.refresh()
    })
  );
  return browser;
}

/** Look again when a file of the directory shown has changed: JupyterLab's model does so for its default drive only. */
function followChanges(
  drive: MountDrive,
  browser: FileBrowser,
  contents: Contents.IManager
): void {
  const look = new Debouncer(() => browser.model.refresh(), SETTLED_MS);
  drive.fileChanged.connect((_, { oldValue, newValue }) => {
    const shown = contents.localPath(browser.model.path);
    const touched = [oldValue, newValue].some(
      value => value?.path && PathExt.dirname(value.path) === shown
    );
    if (touched) {
      void look.invoke();
    }
  });
  browser.disposed.connect(() => look.dispose());
}

/** Show the top of a mount, or all mounts. */
export async function showMount(
  browser: FileBrowser,
  mount: string
): Promise<void> {
  await browser.model.cd(`/${mount}`);
}
