import { MainAreaWidget } from '@jupyterlab/apputils';
import * as React from 'react';

import type { TrialsOf } from '../api';
import { Part } from '../components/boundary';
import type { IShared } from '../components/context';
import { runsIcon } from '../icons';
import { LookingRoot, Root } from '../root';
import { Trials } from './source';
import { TrialsView } from './view';

class TrialsRoot extends LookingRoot {
  constructor(
    shared: IShared,
    private readonly _trials: Trials
  ) {
    super(shared, _trials);
    this.addClass('jp-Hp-dashboard');
    this.addClass('jp-Hp-trials');
  }

  protected view(): JSX.Element {
    return (
      <Part name={this.shared.trans.__('The trials')}>
        <TrialsView source={this._trials} />
      </Part>
    );
  }
}

export function idOf(of: TrialsOf): string {
  return `jp-hyperpod-trials-${'sweep' in of ? of.sweep : of.jobs.join('-')}`;
}

/** A sweep, or some jobs, in parallel coordinates, in the main area. */
export class TrialsWidget extends MainAreaWidget<Root> {
  constructor(
    shared: IShared,
    readonly of: TrialsOf
  ) {
    super({ content: new TrialsRoot(shared, new Trials(shared.model, of)) });
    const { trans } = shared;
    this.id = idOf(of);
    this.title.label =
      'sweep' in of
        ? trans.__('Sweep %1', of.sweep.slice(0, of.sweep.lastIndexOf('-')))
        : trans._n(
            'Parameters of %1 run',
            'Parameters of %1 runs',
            of.jobs.length
          );
    this.title.caption = 'sweep' in of ? of.sweep : of.jobs.join('\n');
    this.title.icon = runsIcon;
    this.title.closable = true;
    this.toolbar.hide();
  }
}
