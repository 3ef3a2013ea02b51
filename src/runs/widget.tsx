import { MainAreaWidget } from '@jupyterlab/apputils';
import type { Message } from '@lumino/messaging';
import * as React from 'react';

import { Part } from '../components/boundary';
import type { IShared } from '../components/context';
import { runsIcon } from '../icons';
import { Root } from '../root';
import { Rows } from './rows';
import { RunsTable } from './table';

class RunsRoot extends Root {
  constructor(shared: IShared) {
    super(shared);
    this._rows = new Rows(shared.model);
    this.addClass('jp-Hp-runs');
  }

  dispose(): void {
    this._rows.dispose();
    super.dispose();
  }

  protected onAfterShow(message: Message): void {
    super.onAfterShow(message);
    this._rows.look(true);
  }

  protected onBeforeHide(message: Message): void {
    this._rows.look(false);
    super.onBeforeHide(message);
  }

  protected onAfterAttach(message: Message): void {
    super.onAfterAttach(message);
    if (this.isVisible) {
      this._rows.look(true);
    }
  }

  protected view(): JSX.Element {
    return (
      <Part name={this.shared.trans.__('The table of runs')}>
        <RunsTable rows={this._rows} />
      </Part>
    );
  }

  private readonly _rows: Rows;
}

/** The table of runs in the main area; only one exists. */
export class RunsWidget extends MainAreaWidget<Root> {
  constructor(shared: IShared) {
    super({ content: new RunsRoot(shared) });
    this.id = 'jp-hyperpod-runs';
    this.title.label = shared.trans.__('Runs');
    this.title.caption = shared.trans.__('All jobs of the store in one table');
    this.title.icon = runsIcon;
    this.title.closable = true;
    this.toolbar.hide();
  }
}
