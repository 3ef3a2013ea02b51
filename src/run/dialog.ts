/** The dialog around the form of "Run on cluster". */

import { Dialog } from '@jupyterlab/apputils';
import type { IShared } from '../components/context';
import { FormBody, FormDialog, KEYS } from '../components/formDialog';
import { Form, IAnswer, IQuestion } from './form';

/** Show the form; null where the person closed it. */
export async function ask(
  shared: IShared,
  question: IQuestion
): Promise<IAnswer | null> {
  const { trans } = shared;
  const body = new FormBody<IQuestion, IAnswer>(shared, Form, question);
  const options = {
    title: question.whole
      ? trans.__('Run notebook on cluster')
      : trans.__('Run on cluster'),
    buttons: [
      Dialog.cancelButton(),
      Dialog.okButton({
        label: trans.__('Run'),
        caption: trans.__('Write the line into the cell and run it (%1)', KEYS)
      })
    ],
    focusNodeSelector: 'input[type="number"]',
    hasClose: true
  };
  const dialog = new FormDialog(options, body);
  const { button, value } = await dialog.launch();
  return button.accept ? value : null;
}
