"""DistributedDataParallel over gloo, nothing else: what a step costs without any resilience."""

from __future__ import annotations

import torch
import torch.distributed as dist

from benchmarks.rivals.task import committed, optimizer_of, train_step, wrapped
from jupyter_hyperpod.bench import language_model as lm


def main() -> None:
    """Train for LM_STEPS steps."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = wrapped(lm.LanguageModel())
    optimizer = optimizer_of(model)
    for step in range(lm.STEPS):
        lm.wait_for_turn(step)
        train_step(model, optimizer, step, rank, world_size)
        committed(step + 1, rank, world_size)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
