import { MainAreaWidget } from '@jupyterlab/apputils';
import * as React from 'react';

import type { IShared } from '../components/context';
import { hyperpodIcon } from '../icons';
import { Root } from '../root';
import { Dashboard } from './dashboard';

class DashboardRoot extends Root {
  constructor(
    shared: IShared,
    private readonly _id: string
  ) {
    super(shared);
    this.addClass('jp-Hp-dashboard');
  }

  protected view(): JSX.Element {
    return <Dashboard id={this._id} />;
  }
}

/** One job in the main area. */
export class DashboardWidget extends MainAreaWidget<Root> {
  constructor(
    shared: IShared,
    readonly jobId: string
  ) {
    super({ content: new DashboardRoot(shared, jobId) });
    this.id = `jp-hyperpod-job-${jobId}`;
    this.title.label = shared.model.summary(jobId)?.name || jobId;
    this.title.caption = shared.trans.__('Training job %1', jobId);
    this.title.icon = hyperpodIcon;
    this.title.closable = true;
    this.toolbar.hide();
  }
}
