/** The example notebook that the empty panel opens. It is part of the bundle, so that every installation has it. */

import type { TranslationBundle } from '@jupyterlab/translation';

export const LOAD = '%load_ext jupyter_hyperpod';

/** The cell of the README; a test keeps the two equal. */
export const CELL = `%%hyperpod --nodes 4 --elastic 2:4 --name first
import typing
import torch
from torch import nn
import jupyter_hyperpod as hp

torch.manual_seed(0)
model = nn.Sequential(nn.Embedding(256, 64), nn.LayerNorm(64), nn.Dropout(0.1), nn.Linear(64, 256))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
data = hp.TokenDataset(typing.__file__, sequence_length=64)  # any file: one byte is one token


def loss_fn(inputs, targets):
    return nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


with hp.Session(model, optimizer, data, global_batch=32, micro_batch=4, seed=0) as session:
    for step in session.steps(60):
        loss = step.run(lambda batch: loss_fn(*batch))
    if session.rank == 0:
        print(f"loss {loss:.3f}, state {session.digest()[:12]}")
`;

/** The place of `CELL` in the notebook. */
export const CELL_INDEX = 2;

/** The notebook, with Jupyter's default kernel. */
export function exampleNotebook(
  kernel: { name: string; display_name: string } | null,
  trans: TranslationBundle
): object {
  const cell = (
    cell_type: 'code' | 'markdown',
    id: string,
    source: string
  ): object => ({
    cell_type,
    id,
    metadata: {},
    source: source.trimEnd(),
    ...(cell_type === 'code' ? { execution_count: null, outputs: [] } : {})
  });
  return {
    nbformat: 4,
    nbformat_minor: 5,
    metadata: kernel ? { kernelspec: { ...kernel, language: 'python' } } : {},
    cells: [
      cell(
        'markdown',
        'what',
        trans.__(
          '# A first cell on the cluster\n\nIt trains on four nodes, which are processes of this machine; the first job starts them. Run the cell that begins with %1, then look at the panel on the left. JupyterLab needs no %2, other places do. The button **Run on cluster** in the toolbar writes such a line for any cell.',
          '`%%hyperpod`',
          '`%load_ext`'
        )
      ),
      cell('code', 'load', LOAD),
      cell('code', 'train', CELL),
      cell(
        'markdown',
        'break',
        trans.__(
          'Run the cell again with more steps, `session.steps(2000)`. While it trains, switch on **Break something** in the panel, choose a node and kill it: the others finish the same step, a spare takes its place, and the loss is the same as if nothing had happened.'
        )
      )
    ]
  };
}
