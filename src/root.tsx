import { ReactWidget } from '@jupyterlab/apputils';
import type { Message } from '@lumino/messaging';
import * as React from 'react';

import { Part } from './components/boundary';
import { InSight, IShared, Shared, Sight } from './components/context';
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
        <InSight.Provider value={this.sight}>
          <Part name={trans.__('This')}>{this.view()}</Part>
        </InSight.Provider>
      </Shared.Provider>
    );
  }

  /** Null: it is drawn while it is hidden, too. */
  protected readonly sight: Sight | null = null;
}

/** A root in a tab of the main area: behind another tab it is not drawn. */
export abstract class TabRoot extends Root {
  protected onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this.sight.on = true;
  }

  protected onBeforeHide(message: Message): void {
    this.sight.on = false;
    super.onBeforeHide(message);
  }

  protected onAfterAttach(message: Message): void {
    this.sight.on = this.isVisible;
    super.onAfterAttach(message);
  }

  protected readonly sight = new Sight();
}

/** A root whose data are asked for only while somebody looks. */
export abstract class LookingRoot extends TabRoot {
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
