import { MainAreaWidget } from '@jupyterlab/apputils';
import * as React from 'react';

import type { IShared } from '../components/context';
import { hyperpodIcon } from '../icons';
import { Root, TabRoot } from '../root';
import { Dashboard } from './dashboard';

class DashboardRoot extends TabRoot {
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
    readonly jobId: string,
    /** The name from the previous time that the tab was open; the job may not be known yet. */
    name = ''
  ) {
    super({ content: new DashboardRoot(shared, jobId) });
    this._shared = shared;
    this.id = `jp-hyperpod-job-${jobId}`;
    this._name = name;
    this._rename();
    shared.model.changed.connect(this._rename, this);
    this.title.caption = shared.trans.__('Training job %1', jobId);
    this.title.icon = hyperpodIcon;
    this.title.closable = true;
    this.toolbar.hide();
  }

  dispose(): void {
    this._shared.model.changed.disconnect(this._rename, this);
    super.dispose();
  }

  private _rename(): void {
    this._name = this._shared.model.summary(this.jobId)?.name || this._name;
    this.title.label = this._name || this.jobId;
  }

  private readonly _shared: IShared;
  private _name: string;
}
