import { Dialog, showDialog } from '@jupyterlab/apputils';

/** Whether a person wants it, once asked. */
export async function isSure(
  title: string,
  body: string,
  label: string,
  warns = true
): Promise<boolean> {
  const accept = warns
    ? Dialog.warnButton({ label })
    : Dialog.okButton({ label });
  const buttons = [Dialog.cancelButton(), accept];
  const result = await showDialog({ title, body, buttons });
  return result.button.accept;
}
