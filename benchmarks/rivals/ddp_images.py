"""DistributedDataParallel with a DataLoader: the task of `bench data` as PyTorch's users write it."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from benchmarks.rivals import images
from benchmarks.rivals.task import committed, wrapped
from jupyter_hyperpod.bench.language_model import wait_for_turn


def main() -> None:
    """Train until it is killed."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    model = wrapped(images.network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = images.Pictures()
    sampler: DistributedSampler[Any] = DistributedSampler(data, world_size, rank)
    share = images.GLOBAL_BATCH // world_size
    loader = DataLoader(data, share, sampler=sampler, num_workers=images.WORKERS, persistent_workers=True)
    step = epoch = 0
    while True:
        sampler.set_epoch(epoch)
        for batch in loader:
            wait_for_turn(step)
            optimizer.zero_grad()
            images.loss_of(model, batch).backward()
            optimizer.step()
            step += 1
            committed(step, rank, world_size)
        epoch += 1


if __name__ == "__main__":
    main()
