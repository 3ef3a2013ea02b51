"""What every system trains here, and how an observer outside learns of its steps."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from functools import cache

import torch

from ...policy.batching import assign
from .. import language_model as lm

MICRO_BATCHES = lm.GLOBAL_BATCH // lm.MICRO_BATCH
OBSERVATIONS = os.environ["BENCH_OBSERVATIONS"]


def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
    """The optimizer of the cell."""
    return torch.optim.AdamW(model.parameters(), lr=3e-4)


@cache
def _data() -> tuple[object, torch.Tensor]:
    data = lm.tokens()
    return data, torch.randperm(len(data), generator=torch.Generator().manual_seed(0))


def batches(step: int, rank: int, world_size: int) -> Iterator[tuple[bool, tuple[torch.Tensor, torch.Tensor]]]:
    """``(is the last, (inputs, targets))`` of the rank's micro-batches at ``step`` (from 0), shared out as ours are."""
    data, order = _data()
    share = assign(MICRO_BATCHES, world_size)[rank]
    for index in share:
        first = step * lm.GLOBAL_BATCH + index * lm.MICRO_BATCH
        chosen = [int(order[place % len(order)]) for place in range(first, first + lm.MICRO_BATCH)]
        yield index == share[-1], data.batch(chosen)  # type: ignore[attr-defined]


def committed(step: int, rank: int, world_size: int) -> None:
    """Tell the observer that ``step`` steps are in the model, on ``world_size`` members."""
    line = f"{time.time():.6f} {step} {rank} {world_size} {os.getpid()}\n"
    descriptor = os.open(OBSERVATIONS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)
