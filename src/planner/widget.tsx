import { MainAreaWidget } from '@jupyterlab/apputils';
import * as React from 'react';

import type { IShared } from '../components/context';
import { plannerIcon } from '../icons';
import { Root } from '../root';
import { Planner } from './planner';

class PlannerRoot extends Root {
  constructor(shared: IShared) {
    super(shared);
    this.addClass('jp-Hp-planner');
  }

  protected view(): JSX.Element {
    return <Planner />;
  }
}

/** The planner in the main area; only one exists. */
export class PlannerWidget extends MainAreaWidget<Root> {
  constructor(shared: IShared) {
    super({ content: new PlannerRoot(shared) });
    this.id = 'jp-hyperpod-planner';
    this.title.label = shared.trans.__('Failure Planner');
    this.title.caption = shared.trans.__(
      'What failures cost, and what faster recovery saves'
    );
    this.title.icon = plannerIcon;
    this.title.closable = true;
    this.toolbar.hide();
  }
}
