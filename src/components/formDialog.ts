/** A form in a dialog: Ctrl-Enter accepts from everywhere, Escape closes. */

import { Dialog } from '@jupyterlab/apputils';
import type { Message } from '@lumino/messaging';
import { Signal } from '@lumino/signaling';
import * as React from 'react';

import { Root } from '../root';
import type { IShared } from './context';

export const KEYS = /Mac/.test(navigator.platform) ? '⌘ Enter' : 'Ctrl+Enter';

/** A component that asks a question and tells each answer. */
type Form<Q, A> = React.ComponentType<{
  question: Q;
  onChange: (answer: A) => void;
}>;

/** The form as a dialog's body. Its value is null until the form is drawn. */
export class FormBody<Q, A>
  extends Root
  implements Dialog.IBodyWidget<A | null>
{
  constructor(
    shared: IShared,
    private readonly _form: Form<Q, A>,
    private readonly _question: Q
  ) {
    super(shared);
    this.addClass('jp-Hp-run');
  }

  readonly answered = new Signal<this, void>(this);

  getValue(): A | null {
    return this._answer;
  }

  protected view(): JSX.Element {
    return React.createElement(this._form, {
      question: this._question,
      onChange: (answer: A) => {
        this._answer = answer;
        this.answered.emit();
      }
    });
  }

  private _answer: A | null = null;
}

/** A dialog that Ctrl-Enter accepts, unless something in its form is wrong. */
export class FormDialog<Q, A> extends Dialog<A | null> {
  constructor(
    options: Partial<Dialog.IOptions<A | null>>,
    private readonly _form: FormBody<Q, A>
  ) {
    super({ ...options, body: _form });
    this.addClass('jp-Hp-rundialog');
    _form.answered.connect(() => this._checkValidation());
  }

  protected onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    // The form is drawn later: until then a Ctrl-Enter would run the notebook's cells, here.
    this.node.tabIndex = -1;
    this.node.focus();
  }

  protected _evtKeydown(event: KeyboardEvent): void {
    const { activeElement } = document;
    if (event.key === 'Enter' && (event.ctrlKey || event.metaKey)) {
      event.stopPropagation();
      event.preventDefault();
      if (this._form.getValue() !== null) {
        this._checkValidation();
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
