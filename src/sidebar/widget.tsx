import * as React from 'react';

import type { IShared } from '../components/context';
import { hyperpodIcon } from '../icons';
import { Root } from '../root';
import { Sidebar } from './sidebar';

export class SidebarWidget extends Root {
  constructor(shared: IShared) {
    super(shared);
    this.id = 'jp-hyperpod-sidebar';
    this.addClass('jp-Hp-sidebar');
    this.title.icon = hyperpodIcon;
    this.title.caption = shared.trans.__('Cluster and training jobs');
    this.node.setAttribute('role', 'region');
    this.node.setAttribute('aria-label', this.title.caption);
  }

  protected view(): JSX.Element {
    return <Sidebar />;
  }
}
