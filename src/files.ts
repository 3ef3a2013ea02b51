import { Notification } from '@jupyterlab/apputils';
import { PathExt } from '@jupyterlab/coreutils';
import {
  FileBrowser,
  IFileBrowserFactory,
  Uploader
} from '@jupyterlab/filebrowser';
import type { Contents } from '@jupyterlab/services';
import type { ITranslator } from '@jupyterlab/translation';
import {
  newFolderIcon,
  refreshIcon,
  ToolbarButton
} from '@jupyterlab/ui-components';
import { IMessageHandler, Message, MessageLoop } from '@lumino/messaging';
import { Debouncer, Poll } from '@lumino/polling';

import { ApiError } from './api';
import type { IShared } from './components/context';
import { isAbsent, MountDrive } from './drive';
import { mountsIcon } from './icons';
import { tellRefusal } from './refusals';

/** A request to a mount costs the server a process, so requests are rare, and only for a visible browser. */
const REFRESH_MS = 30_000;
/** JupyterLab's own model refreshes even when hidden; so it is off, and this file refreshes instead. */
const NEVER_MS = 2 ** 31 - 1;
/** An upload changes a directory with each of its parts. */
const SETTLED_MS = 300;
/** The element of a row that shows the time. */
const TIMES = '.jp-DirListing-itemModified, .jp-DirListing-itemCreated';

/** The mounts as a drive, which notifies the user of directories that are too large. */
export function mountDrive({ model, trans }: IShared): MountDrive {
  return new MountDrive(model.api, trans, (path, shown) => {
    Notification.warning(
      trans.__('%1 has more entries: %2 are shown.', path, shown),
      { autoClose: 10_000 }
    );
  });
}

/** A file browser for the mounts, with the usual buttons. */
export function mountBrowser(
  { trans }: IShared,
  drive: MountDrive,
  factory: IFileBrowserFactory,
  contents: Contents.IManager,
  translator: ITranslator
): FileBrowser {
  const browser = factory.createFileBrowser('hyperpod-files', {
    driveName: drive.name,
    auto: false,
    restore: false,
    refreshInterval: NEVER_MS
  });
  // Nothing is restored, but opening a path waits for this promise.
  void browser.model.restore(browser.id, false);
  lookWhileShown(browser);
  followChanges(drive, browser, contents);
  blankUnknownTimes(browser);
  browser.model.connectionFailure.connect((_, error) => {
    if (!isAbsent(error)) {
      tellRefusal(new ApiError(0, error.message), trans);
    }
  });
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
  browser.toolbar.addItem(
    'upload',
    new Uploader({ model: browser.model, translator })
  );
  browser.toolbar.addItem(
    'refresh',
    new ToolbarButton({
      icon: refreshIcon,
      tooltip: trans.__('Refresh the files'),
      onClick: () => void browser.model.refresh()
    })
  );
  return browser;
}

/** JupyterLab's listing reuses rows and leaves the time of the previous file in them; this removes it. */
function blankUnknownTimes(browser: FileBrowser): void {
  const blank = () => {
    const timeless = new Set<string>();
    for (const { name, last_modified } of browser.model.items()) {
      if (!last_modified) {
        timeless.add(name);
      }
    }
    for (const row of timeless.size
      ? browser.node.querySelectorAll('.jp-DirListing-item')
      : []) {
      const name = row.querySelector('.jp-DirListing-itemText')?.textContent;
      for (const time of timeless.has(name ?? '')
        ? row.querySelectorAll(TIMES)
        : []) {
        if (time.textContent) {
          time.textContent = '';
          time.removeAttribute('title');
        }
      }
    }
  };
  const observer = new MutationObserver(blank);
  observer.observe(browser.node, { childList: true, subtree: true });
  browser.disposed.connect(() => observer.disconnect());
}

/** List the files when the browser comes to the front, and periodically while it is visible. */
function lookWhileShown(browser: FileBrowser): void {
  const poll = new Poll({
    auto: true,
    factory: () => browser.model.refresh(),
    frequency: { interval: REFRESH_MS, backoff: true },
    name: 'jupyter_hyperpod:files',
    standby: () => document.hidden || !browser.isVisible
  });
  const onMessage = (_: IMessageHandler, message: Message) => {
    if (message.type === 'after-show') {
      void poll.refresh();
    }
    return true;
  };
  MessageLoop.installMessageHook(browser, onMessage);
  browser.disposed.connect(() => poll.dispose());
}

/** Refresh when a file of the shown directory has changed: JupyterLab's model does so for its default drive only. */
function followChanges(
  drive: MountDrive,
  browser: FileBrowser,
  contents: Contents.IManager
): void {
  const look = new Debouncer(() => browser.model.refresh(), SETTLED_MS);
  const onChanged = (
    _: Contents.IDrive,
    { oldValue, newValue }: Contents.IChangedArgs
  ) => {
    const shown = contents.localPath(browser.model.path);
    const touched = [oldValue, newValue].some(
      value => value?.path && PathExt.dirname(value.path) === shown
    );
    if (touched) {
      void look.invoke();
    }
  };
  drive.fileChanged.connect(onChanged);
  browser.disposed.connect(() => {
    drive.fileChanged.disconnect(onChanged);
    look.dispose();
  });
}

/** Make the default file browser the target of commands, as if it had just been used. */
export function yieldTo(first: FileBrowser): void {
  for (const type of ['focus', 'blur']) {
    first.node.dispatchEvent(new FocusEvent(type));
  }
  void first.model.refresh(); // it does not list by itself where the page was opened on a file of another drive
}

/** Show the top of a mount, or all mounts. */
export async function showMount(
  browser: FileBrowser,
  mount: string
): Promise<void> {
  await browser.model.cd(`/${mount}`);
}
