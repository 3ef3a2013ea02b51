import { ReactWidget } from '@jupyterlab/apputils';
import type { Message } from '@lumino/messaging';
import * as React from 'react';

import { Part } from './components/boundary';
import { IShared, Shared } from './components/context';
import { keepFocus } from './focus';

/** A Lumino widget that draws a view within the shared context. */
export abstract class Root extends ReactWidget {
  constructor(protected readonly shared: IShared) {
    super();
    this.addClass('jp-Hp');
    const kept = keepFocus(this.node);
    this.disposed.connect(() => kept.dispose());
  }

  protected abstract view(): JSX.Element | null;

  protected render(): JSX.Element {
    const { trans } = this.shared;
    return (
      <Shared.Provider value={this.shared}>
        <Part name={trans.__('This')}>{this.view()}</Part>
      </Shared.Provider>
    );
  }
}

/** A root whose data are asked for only while somebody looks. */
export abstract class LookingRoot extends Root {
  constructor(
    shared: IShared,
    private readonly _source: { look(on: boolean): void; dispose(): void }
  ) {
    super(shared);
  }

  dispose(): void {
    this._source.dispose();
    super.dispose();
  }

  protected onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this._source.look(true);
  }

  protected onBeforeHide(message: Message): void {
    this._source.look(false);
    super.onBeforeHide(message);
  }

  protected onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    if (this.isVisible) {
      this._source.look(true);
    }
  }
}
