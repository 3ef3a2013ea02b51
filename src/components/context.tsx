import type { TranslationBundle } from '@jupyterlab/translation';
import type { Token } from '@lumino/coreutils';
import type { ISignal } from '@lumino/signaling';
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

/** Draw again whenever one of `topics` changes. */
export function useTopics(...topics: string[]): void {
  const { model } = useShared();
  const [, redraw] = React.useReducer((count: number) => count + 1, 0);
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
  }, [model, wanted]);
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
