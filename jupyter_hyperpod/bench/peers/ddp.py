"""DistributedDataParallel over gloo, nothing else: what a step costs without any resilience."""

from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from .. import language_model as lm
from .task import MICRO_BATCHES, batches, committed, optimizer_of


def main() -> None:
    """Train for LM_STEPS steps; gradients of all but the last micro-batch are accumulated without communication."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(lm.LanguageModel(), gradient_as_bucket_view=True)
    optimizer = optimizer_of(model)
    for step in range(lm.STEPS):
        lm.wait_for_turn(step)
        optimizer.zero_grad()
        for last, batch in batches(step, rank, world_size):
            with nullcontext() if last else model.no_sync():
                # DDP averages over members: shares that differ in size still give the mean of the global batch
                (lm.loss_of(model, batch) * (world_size / MICRO_BATCHES)).backward()
        optimizer.step()
        committed(step + 1, rank, world_size)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
