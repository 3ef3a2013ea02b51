/** Puts an address into the clipboard; where the browser refuses, it is shown to be copied by hand. */

import { InputDialog, Notification } from '@jupyterlab/apputils';
import type { TranslationBundle } from '@jupyterlab/translation';

export async function copyLink(
  address: string,
  trans: TranslationBundle
): Promise<void> {
  try {
    // Without https a browser gives no clipboard to other hosts than this one.
    await navigator.clipboard.writeText(address);
    Notification.info(trans.__('The link is in the clipboard.'), {
      autoClose: 3000
    });
  } catch {
    await InputDialog.getText({
      title: trans.__('The link of this job'),
      text: address
    });
  }
}
