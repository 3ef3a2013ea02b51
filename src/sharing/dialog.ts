/** The dialog that shares the store with groups of the system. */

import { Dialog, Notification } from '@jupyterlab/apputils';

import type { ISharing } from '../api';
import type { IShared } from '../components/context';
import { FormBody, FormDialog, KEYS } from '../components/formDialog';
import { said } from '../said/said';
import { IGroups, SharingForm } from './form';
import { sharingOf } from './source';

/** Ask with whom, and share. Rejects with ApiError. */
export async function share(shared: IShared, before: ISharing): Promise<void> {
  const { model, trans } = shared;
  const body = new FormBody<ISharing, IGroups>(shared, SharingForm, before);
  const dialog = new FormDialog(
    {
      title: trans.__('Share your jobs'),
      buttons: [
        Dialog.cancelButton(),
        Dialog.okButton({
          label: trans._p('verb', 'Share'),
          caption: trans.__('Share the store so (%1)', KEYS)
        })
      ],
      focusNodeSelector: 'input',
      hasClose: true
    },
    body
  );
  const { button, value } = await dialog.launch();
  if (button.accept && value) {
    const found = await sharingOf(model).share(value.read, value.operate);
    for (const note of found.notes) {
      Notification.warning(said(note, trans), { autoClose: 10_000 });
    }
  }
}
