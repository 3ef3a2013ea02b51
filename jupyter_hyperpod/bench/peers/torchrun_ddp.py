"""torchrun: DDP that begins again from its last checkpoint whenever a worker is lost.

``BENCH_CHECKPOINT`` names the file, ``BENCH_EVERY`` the steps between two checkpoints.
"""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist

from .. import language_model as lm
from .task import committed, load_checkpoint, optimizer_of, save_checkpoint, train_step, wrapped

TIMEOUT = timedelta(seconds=10)


def main() -> None:
    """Train for LM_STEPS steps from the newest checkpoint."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo", timeout=TIMEOUT)
    rank, world_size = dist.get_rank(), dist.get_world_size()
    restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    path, every = os.environ["BENCH_CHECKPOINT"], int(os.environ["BENCH_EVERY"])
    module = lm.LanguageModel()
    optimizer = optimizer_of(module)
    first = load_checkpoint(path, module, optimizer)
    model = wrapped(module)
    for step in range(first, lm.STEPS):
        lm.wait_for_turn(step)
        train_step(model, optimizer, step, rank, world_size)
        committed(step + 1, rank, world_size, restarts)
        if rank == 0 and (step + 1) % every == 0:
            save_checkpoint(path, step + 1, module, optimizer)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
