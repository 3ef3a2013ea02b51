/** The dialog that submits a job to another backend: where, and what differs from the job. */

import { Dialog } from '@jupyterlab/apputils';
import * as React from 'react';

import type { IShared } from '../components/context';
import { Root } from '../root';
import { FormDialog, KEYS } from '../run/dialog';
import { IPromotionAnswer, PromotionForm } from './form';

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
  const body = new Body(shared, () => dialog.check(), {
    job,
    backends: others,
    first: before
  });
  const options = {
    title: trans.__('Promote %1', job.name),
    body,
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
  const dialog = new FormDialog<IPromotionAnswer | null>(
    options,
    () => body.getValue() !== null
  );
  dialog.addClass('jp-Hp-rundialog');
  const { button, value } = await dialog.launch();
  return button.accept && value
    ? model.api.promote(job.id, value.choice, value.accept)
    : null;
}

type Question = React.ComponentProps<typeof PromotionForm>['question'];

class Body extends Root implements Dialog.IBodyWidget<IPromotionAnswer | null> {
  constructor(
    shared: IShared,
    private readonly _drawn: () => void,
    private readonly _question: Question
  ) {
    super(shared);
    this.addClass('jp-Hp-run');
    this.addClass('jp-Hp-promote');
  }

  getValue(): IPromotionAnswer | null {
    return this._answer;
  }

  protected view(): JSX.Element {
    return React.createElement(PromotionForm, {
      question: this._question,
      onChange: (answer: IPromotionAnswer) => {
        this._answer = answer;
        this._drawn();
      }
    });
  }

  private _answer: IPromotionAnswer | null = null;
}
