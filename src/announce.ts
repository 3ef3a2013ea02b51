/** Tells people who do not see the page what matters, wherever they are in it: once, when it happens. */

import type { TranslationBundle } from '@jupyterlab/translation';
import { DisposableDelegate, IDisposable } from '@lumino/disposable';

import { stateLabel } from './components/parts';
import type { Changed, HyperpodModel } from './model/model';

/** More at once would not be listened to. */
const MOST = 3;

/** Announce each new state of a job or of the cluster, politely. What was there before is not news. */
export function announceStates(
  model: HyperpodModel,
  trans: TranslationBundle
): IDisposable {
  const node = document.createElement('div');
  node.className = 'jp-Hp-unseen';
  node.setAttribute('role', 'status');
  document.body.append(node);
  let jobs: ReadonlyMap<string, string> | null = null;
  let cluster: string | null = null;

  const onChange = (_: HyperpodModel, changed: Changed) => {
    const news: string[] = [];
    if (changed.has('cluster') && model.cluster) {
      const { state } = model.cluster;
      if (cluster !== null && cluster !== state) {
        news.push(`${trans.__('Cluster')}: ${stateLabel(state, trans)}`);
      }
      cluster = state;
    }
    if (changed.has('jobs') && model.jobsKnown) {
      const now = new Map(model.jobs.map(job => [job.id, job.state]));
      for (const job of model.jobs) {
        const before = jobs?.get(job.id);
        if (before !== undefined && before !== job.state) {
          news.push(`${job.name || job.id}: ${stateLabel(job.state, trans)}`);
        }
      }
      jobs = now;
    }
    if (news.length > 0) {
      node.textContent = news.slice(0, MOST).join('. ');
    }
  };
  model.changed.connect(onChange);
  return new DisposableDelegate(() => {
    model.changed.disconnect(onChange);
    node.remove();
  });
}
