/** What can be done with ticked runs; everything that cannot be undone, or hides something, asks first. */

import type { ILabelling, IRun } from '../api';
import type { IShared } from '../components/context';
import { isSure } from '../components/sure';
import { namedJob } from '../format';
import { TERMINAL_STATES } from '../model/events';
import { tellRefusal } from '../refusals';
import type { Rows } from './rows';
import { askForTags, tagsOf } from './tags';

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
    const wanted = tagsOf(text);
    const add = wanted.filter(tag => !run.tags.includes(tag));
    const remove = run.tags.filter(tag => !wanted.includes(tag));
    return add.length + remove.length
      ? this.label([run], { add, remove })
      : Promise.resolve(true);
  }

  /** Ask for tags for several runs. */
  async addTag(runs: readonly IRun[]): Promise<void> {
    const known = new Set(this._rows.all.flatMap(({ run }) => run.tags).sort());
    const add = await askForTags(this._shared, { runs, known: [...known] });
    if (add?.length) {
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
