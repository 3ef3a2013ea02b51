import { ReactWidget } from '@jupyterlab/apputils';
import * as React from 'react';

import { IShared, Shared } from './components/context';

/** A Lumino widget that draws a view with everything views share. */
export abstract class Root extends ReactWidget {
  constructor(protected readonly shared: IShared) {
    super();
    this.addClass('jp-Hp');
  }

  protected abstract view(): JSX.Element | null;

  protected render(): JSX.Element {
    return <Shared.Provider value={this.shared}>{this.view()}</Shared.Provider>;
  }
}
