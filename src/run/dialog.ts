/** The dialog around the form: Ctrl-Enter accepts from everywhere, Escape closes. */

import { Dialog } from '@jupyterlab/apputils';
import type { Message } from '@lumino/messaging';
import * as React from 'react';

import type { IShared } from '../components/context';
import { Root } from '../root';
import { Form, IAnswer, IQuestion } from './form';

/** Show the form; null where the person closed it. */
export async function ask(
  shared: IShared,
  question: IQuestion
): Promise<IAnswer | null> {
  const { trans } = shared;
  const body = new Body(shared, question, () => dialog.check());
  const options = {
    title: question.whole
      ? trans.__('Run notebook on cluster')
      : trans.__('Run on cluster'),
    body,
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
  const dialog = new FormDialog(options, () => body.getValue() !== null);
  dialog.addClass('jp-Hp-rundialog');
  const { button, value } = await dialog.launch();
  return button.accept ? value : null;
}

export const KEYS = /Mac/.test(navigator.platform) ? '⌘ Enter' : 'Ctrl+Enter';

class Body extends Root implements Dialog.IBodyWidget<IAnswer | null> {
  constructor(
    shared: IShared,
    private readonly _question: IQuestion,
    private readonly _drawn: () => void
  ) {
    super(shared);
    this.addClass('jp-Hp-run');
  }

  /** What is chosen; null until the form is drawn. */
  getValue(): IAnswer | null {
    return this._answer;
  }

  protected view(): JSX.Element {
    return React.createElement(Form, {
      question: this._question,
      onChange: (answer: IAnswer) => {
        this._answer = answer;
        this._drawn();
      }
    });
  }

  private _answer: IAnswer | null = null;
}

/** A dialog that Ctrl-Enter accepts, unless something in it is wrong. */
export class FormDialog<T> extends Dialog<T> {
  constructor(
    options: Partial<Dialog.IOptions<T>>,
    private readonly _filled: () => boolean
  ) {
    super(options);
  }

  protected onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    // The form is drawn later: until then a Ctrl-Enter would run the notebook's cells, here.
    this.node.tabIndex = -1;
    this.node.focus();
  }

  /** Look again whether the form can be accepted. */
  check(): void {
    this._checkValidation();
  }

  protected _evtKeydown(event: KeyboardEvent): void {
    const { activeElement } = document;
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) {
      event.stopPropagation();
      event.preventDefault();
      if (this._filled()) {
        this.check();
        this.resolve();
      }
    } else if (
      event.key === 'Enter' &&
      activeElement?.closest('.jp-Hp-run :is(button, summary)')
    ) {
      // The form's own buttons do what they say.
    } else {
      super._evtKeydown(event);
    }
  }
}
