import { MainAreaWidget } from '@jupyterlab/apputils';
import * as React from 'react';

import { Part } from '../components/boundary';
import type { IShared } from '../components/context';
import { schedulesIcon } from '../icons';
import { LookingRoot, Root } from '../root';
import { ScheduleList } from './list';
import { Schedules } from './schedules';

class SchedulesRoot extends LookingRoot {
  constructor(
    shared: IShared,
    private readonly _list: ScheduleList
  ) {
    super(shared, _list);
    this.addClass('jp-Hp-dashboard');
    this.addClass('jp-Hp-schedules');
  }

  protected view(): JSX.Element {
    return (
      <Part name={this.shared.trans.__('The list of schedules')}>
        <Schedules list={this._list} />
      </Part>
    );
  }
}

/** The schedules in the main area; only one exists. */
export class SchedulesWidget extends MainAreaWidget<Root> {
  constructor(shared: IShared) {
    const { model, trans } = shared;
    super({ content: new SchedulesRoot(shared, new ScheduleList(model)) });
    this.id = 'jp-hyperpod-schedules';
    this.title.label = trans.__('Schedules');
    this.title.caption = trans.__('What runs at times of the clock');
    this.title.icon = schedulesIcon;
    this.title.closable = true;
    this.toolbar.hide();
  }
}
