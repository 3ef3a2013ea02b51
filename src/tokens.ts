import { Token } from '@lumino/coreutils';

import type { IShared } from './components/context';

/** The shared parts of this extension: the model, its actions and the translations. */
export const IHyperpod = new Token<IShared>(
  'jupyter_hyperpod:IHyperpod',
  'The state of the cluster and of the training jobs, and what can be asked of them.'
);
