import { ReactWidget } from '@jupyterlab/apputils';
import * as React from 'react';

import { Part } from './components/boundary';
import { IShared, Shared } from './components/context';

/** A Lumino widget that draws a view within the shared context. */
export abstract class Root extends ReactWidget {
  constructor(protected readonly shared: IShared) {
    super();
    this.addClass('jp-Hp');
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
