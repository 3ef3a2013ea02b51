/** What can be done with ticked runs; everything that cannot be undone, or hides something, asks first. */

import { InputDialog } from '@jupyterlab/apputils';

import type { ILabelling, IRun } from '../api';
import type { IShared } from '../components/context';
import { isSure } from '../components/sure';
import { namedJob } from '../format';
import { TERMINAL_STATES } from '../model/events';
import { tellRefusal } from '../refusals';
import type { Rows } from './rows';

export class RunActions {
  constructor(
    private readonly _shared: IShared,
    private readonly _rows: Rows
  ) {}

  /** Whether a run has ended, or is lost, so that it can be deleted. */
  static canDelete(run: IRun): boolean {
    return run.state === 'lost' || TERMINAL_STATES.has(run.state);
  }

  label(runs: readonly IRun[], change: ILabelling): Promise<boolean> {
    return this._ask(runs, ids =>
      this._shared.model.api.labelRuns(ids, change)
    );
  }

  /** Write what was typed: words, each of which is a tag. */
  retag(run: IRun, text: string): Promise<boolean> {
    const wanted = [...new Set(text.split(/[\s,]+/).filter(Boolean))];
    const add = wanted.filter(tag => !run.tags.includes(tag));
    const remove = run.tags.filter(tag => !wanted.includes(tag));
    return add.length + remove.length
      ? this.label([run], { add, remove })
      : Promise.resolve(true);
  }

  /** Ask for a tag for several runs. */
  async addTag(runs: readonly IRun[]): Promise<void> {
    const { trans } = this._shared;
    const known = new Set(this._rows.all.flatMap(({ run }) => run.tags).sort());
    const answer = await InputDialog.getItem({
      title: trans._n('Tag %1 run', 'Tag %1 runs', runs.length),
      label: trans.__('Tag'),
      items: [...known],
      editable: true,
      okLabel: trans._p('verb', 'Tag')
    });
    const add = (answer.value ?? '').split(/[\s,]+/).filter(Boolean);
    if (answer.button.accept && add.length) {
      await this.label(runs, { add });
    }
  }

  async archive(runs: readonly IRun[]): Promise<boolean> {
    const { trans } = this._shared;
    const sure = await isSure(
      runs.length === 1
        ? trans.__('Archive %1?', namedJob(runs[0]))
        : trans._n('Archive %1 run?', 'Archive %1 runs?', runs.length),
      trans.__(
        'They leave the lists, and everything is kept. The filter is:archived shows them, and from there they can be brought back.'
      ),
      trans.__('Archive'),
      false
    );
    return sure && (await this.label(runs, { archived: true }));
  }

  unarchive(runs: readonly IRun[]): Promise<boolean> {
    return this.label(runs, { archived: false });
  }

  async delete(runs: readonly IRun[]): Promise<boolean> {
    const { trans, model } = this._shared;
    const sure = await isSure(
      runs.length === 1
        ? trans.__('Delete %1?', namedJob(runs[0]))
        : trans._n('Delete %1 run?', 'Delete %1 runs?', runs.length),
      trans.__(
        'Journal, output, specification and code are removed for good. Checkpoints elsewhere stay.'
      ),
      trans.__('Delete')
    );
    return sure && (await this._ask(runs, ids => model.api.deleteRuns(ids)));
  }

  /** Make a request and show its effect; a refusal is shown in the server's words. */
  private async _ask(
    runs: readonly IRun[],
    request: (ids: string[]) => Promise<unknown>
  ): Promise<boolean> {
    try {
      await request(runs.map(run => run.id));
      return true;
    } catch (error) {
      tellRefusal(error, this._shared.trans);
      return false;
    } finally {
      await this._rows.refresh();
    }
  }
}
