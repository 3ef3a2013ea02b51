/** The dialog that submits a job to another backend: where, and what differs from the job. */

import { Dialog } from '@jupyterlab/apputils';

import type { IShared } from '../components/context';
import { FormBody, FormDialog, KEYS } from '../components/formDialog';
import { IPromotionAnswer, IPromotionQuestion, PromotionForm } from './form';

export interface IPromoted {
  id: string;
  name: string;
  /** Where it ran. */
  backend: string;
}

/** Ask, submit, and give the new job's id; null where the person closed the dialog. Rejects with ApiError. */
export async function promote(
  shared: IShared,
  job: IPromoted
): Promise<string | null> {
  const { trans, model } = shared;
  const others = (await model.api.backends()).filter(
    one => one.name !== job.backend
  );
  const first = others.find(one => !one.missing && !one.problem) ?? others[0];
  const before = await model.api.planPromotion(job.id, { backend: first.name });
  const question = { job, backends: others, first: before };
  const body = new FormBody<IPromotionQuestion, IPromotionAnswer>(
    shared,
    PromotionForm,
    question
  );
  body.addClass('jp-Hp-promote');
  const options = {
    title: trans.__('Promote %1', job.name),
    buttons: [
      Dialog.cancelButton(),
      Dialog.okButton({
        label: trans.__('Promote'),
        caption: trans.__('Submit the job there (%1)', KEYS)
      })
    ],
    focusNodeSelector: 'select',
    hasClose: true
  };
  const dialog = new FormDialog(options, body);
  const { button, value } = await dialog.launch();
  return button.accept && value
    ? model.api.promote(job.id, value.choice, value.accept)
    : null;
}
