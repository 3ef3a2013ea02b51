import { MainAreaWidget } from '@jupyterlab/apputils';
import * as React from 'react';

import { Part } from '../components/boundary';
import type { IShared } from '../components/context';
import { runsIcon } from '../icons';
import { LookingRoot, Root } from '../root';
import { Rows } from './rows';
import { RunsTable } from './table';

class RunsRoot extends LookingRoot {
  constructor(
    shared: IShared,
    private readonly _rows: Rows
  ) {
    super(shared, _rows);
    this.addClass('jp-Hp-runs');
  }

  protected view(): JSX.Element {
    return (
      <Part name={this.shared.trans.__('The table of runs')}>
        <RunsTable rows={this._rows} />
      </Part>
    );
  }
}

/** The table of runs in the main area; only one exists. */
export class RunsWidget extends MainAreaWidget<Root> {
  constructor(shared: IShared) {
    super({ content: new RunsRoot(shared, new Rows(shared.model)) });
    this.id = 'jp-hyperpod-runs';
    this.title.label = shared.trans.__('Runs');
    this.title.caption = shared.trans.__('All jobs of the store in one table');
    this.title.icon = runsIcon;
    this.title.closable = true;
    this.toolbar.hide();
  }
}
