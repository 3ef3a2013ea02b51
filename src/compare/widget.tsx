import { MainAreaWidget } from '@jupyterlab/apputils';
import * as React from 'react';

import type { IShared } from '../components/context';
import { runsIcon } from '../icons';
import { Root } from '../root';
import { Comparison } from './comparison';

class ComparisonRoot extends Root {
  constructor(
    shared: IShared,
    private readonly _ids: readonly string[]
  ) {
    super(shared);
    this.addClass('jp-Hp-dashboard');
    this.addClass('jp-Hp-comparison');
  }

  protected view(): JSX.Element {
    return <Comparison ids={this._ids} />;
  }
}

/** Some runs side by side, in the main area. */
export class ComparisonWidget extends MainAreaWidget<Root> {
  constructor(
    shared: IShared,
    readonly ids: readonly string[]
  ) {
    super({ content: new ComparisonRoot(shared, ids) });
    this.id = `jp-hyperpod-comparison-${ids.join('-')}`;
    const names = new Set(ids.map(id => id.slice(0, id.lastIndexOf('-'))));
    this.title.label = shared.trans.__('Compare %1', [...names].join(', '));
    this.title.caption = ids.join('\n');
    this.title.icon = runsIcon;
    this.title.closable = true;
    this.toolbar.hide();
  }
}
