/** Whose the store is, and with whom it is shared: asked once for all views of a page, and again after a change. */

import { ISignal, Signal } from '@lumino/signaling';

import type { ISharing } from '../api';
import type { HyperpodModel } from '../model/model';

export class SharingSource {
  constructor(private readonly _model: HyperpodModel) {}

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Null where the server has not said it. */
  get found(): ISharing | null {
    return this._found;
  }

  /** Ask, unless it is known. */
  async look(): Promise<void> {
    if (this._found === null && !this._asked) {
      this._asked = true;
      try {
        this._take(await this._model.api.sharing());
      } catch {
        // An earlier version of the server does not know it: then nothing is shown.
      } finally {
        this._asked = false;
      }
    }
  }

  /** Share the store with others. Rejects with ApiError. */
  async share(read: string, operate: string): Promise<ISharing> {
    const found = await this._model.api.share(read, operate);
    this._take(found);
    return found;
  }

  private _take(found: ISharing): void {
    this._found = found;
    this._changed.emit();
  }

  private readonly _changed = new Signal<this, void>(this);
  private _found: ISharing | null = null;
  private _asked = false;
}

const sources = new WeakMap<HyperpodModel, SharingSource>();

/** The only source of a model. */
export function sharingOf(model: HyperpodModel): SharingSource {
  const source = sources.get(model) ?? new SharingSource(model);
  sources.set(model, source);
  return source;
}
