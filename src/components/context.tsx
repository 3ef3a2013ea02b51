import type { TranslationBundle } from '@jupyterlab/translation';
import type { Token } from '@lumino/coreutils';
import { ISignal, Signal } from '@lumino/signaling';
import * as React from 'react';

import type { Actions } from '../actions';
import type { HyperpodModel } from '../model/model';
import type { IJobSummary, IJobView } from '../model/views';
import { IHyperpod } from '../tokens';

/** The context from which every view is drawn: what others get, and more. */
export interface IShared extends IHyperpod {
  model: HyperpodModel;
  actions: Actions;
  trans: TranslationBundle;
}

/** The same token, for our own plugins. */
export const IShared = IHyperpod as Token<IShared>;

export const Shared = React.createContext<IShared | null>(null);

/** The context of the nearest root; every root of this extension provides one. */
export function useShared(): IShared {
  const shared = React.useContext(Shared);
  if (shared === null) {
    throw new Error('a view of jupyter_hyperpod was drawn outside of its root');
  }
  return shared;
}

/** Whether a root can be seen: what changes in a tab behind another one is drawn when that tab is shown. */
export class Sight {
  get on(): boolean {
    return this._on;
  }

  set on(on: boolean) {
    if (on !== this._on) {
      this._on = on;
      this._changed.emit();
    }
  }

  get changed(): ISignal<this, void> {
    return this._changed;
  }

  private readonly _changed = new Signal<this, void>(this);
  private _on = true;
}

/** Null for roots that are drawn while hidden, too, so that they open at once. */
export const InSight = React.createContext<Sight | null>(null);

/** Draws a view again: now, or once when it can be seen again. */
function useRedraw(): () => void {
  const [, redraw] = React.useReducer((count: number) => count + 1, 0);
  const sight = React.useContext(InSight);
  const owed = React.useRef(false);
  React.useEffect(() => {
    const onSight = () => {
      if (sight?.on && owed.current) {
        owed.current = false;
        redraw();
      }
    };
    sight?.changed.connect(onSight);
    return () => {
      sight?.changed.disconnect(onSight);
    };
  }, [sight]);
  return React.useCallback(() => {
    if (sight === null || sight.on) {
      redraw();
    } else {
      owed.current = true;
    }
  }, [sight]);
}

/** Draw again whenever one of `topics` changes. */
export function useTopics(...topics: string[]): void {
  const { model } = useShared();
  const redraw = useRedraw();
  const wanted = topics.join(' ');
  React.useEffect(() => {
    const names = wanted.split(' ');
    const onChange = (_: HyperpodModel, changed: ReadonlySet<string>) => {
      if (names.some(name => changed.has(name))) {
        redraw();
      }
    };
    model.changed.connect(onChange);
    return () => {
      model.changed.disconnect(onChange);
    };
  }, [model, wanted, redraw]);
}

/** Draw again whenever a source of data has changed. */
export function useChanges(source: { changed: ISignal<object, void> }): void {
  const [, redraw] = React.useReducer((count: number) => count + 1, 0);
  React.useEffect(() => {
    const onChange = () => redraw();
    source.changed.connect(onChange);
    return () => {
      source.changed.disconnect(onChange);
    };
  }, [source]);
}

/** Follow a job while mounted and draw again whenever it changes; null until its view has arrived. */
export function useJob(id: string, follow = true): IJobView | null {
  const { model } = useShared();
  React.useEffect(() => {
    if (follow) {
      const watch = model.watch(id);
      return () => watch.dispose();
    }
  }, [model, id, follow]);
  useTopics(id);
  return model.job(id);
}

/** The summary of a job, without following it. */
export function useSummary(id: string): IJobSummary | null {
  const { model } = useShared();
  useTopics(id, 'jobs');
  return model.summary(id);
}

/** The time in seconds, updated every second while `running`. */
export function useNow(running: boolean): number {
  const [now_s, setNow] = React.useState(() => Date.now() / 1000);
  React.useEffect(() => {
    if (running) {
      setNow(Date.now() / 1000);
      const timer = setInterval(() => setNow(Date.now() / 1000), 1000);
      return () => clearInterval(timer);
    }
  }, [running]);
  return now_s;
}
