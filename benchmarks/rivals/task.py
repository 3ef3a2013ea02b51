"""What every system trains here, and how an observer outside learns of its steps."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache

import torch
from torch.nn.parallel import DistributedDataParallel

from jupyter_hyperpod.bench import language_model as lm
from jupyter_hyperpod.policy.batching import assign

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


def wrapped(module: torch.nn.Module) -> DistributedDataParallel:
    """The module for data-parallel training, its gradients kept in the buckets that are reduced."""
    return DistributedDataParallel(module, gradient_as_bucket_view=True)


def train_step(
    model: DistributedDataParallel, optimizer: torch.optim.Optimizer, step: int, rank: int, world_size: int
) -> None:
    """One optimizer step; gradients of all but the last micro-batch are accumulated without communication."""
    optimizer.zero_grad()
    for last, batch in batches(step, rank, world_size):
        with nullcontext() if last else model.no_sync():
            # DDP averages over members: shares that differ in size still give the mean of the global batch
            (lm.loss_of(model, batch) * (world_size / MICRO_BATCHES)).backward()
    optimizer.step()


def save_checkpoint(path: str, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write the whole state beside ``path``, then put it in its place, so that a torn one is never read."""
    torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"{path}.new")
    os.replace(f"{path}.new", path)


def load_checkpoint(path: str, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Read the newest checkpoint, if there is one, and return its step."""
    if not os.path.exists(path):
        return 0
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["step"])


def train_from_checkpoint(rank: int, world_size: int, generation: int) -> None:
    """Train for LM_STEPS steps from the newest checkpoint, with a new one every so many steps.

    ``BENCH_CHECKPOINT`` names the file, ``BENCH_EVERY`` the steps between two; for ``generation`` see `committed`.
    """
    path, every = os.environ["BENCH_CHECKPOINT"], int(os.environ["BENCH_EVERY"])
    module = lm.LanguageModel()
    optimizer = optimizer_of(module)
    first = load_checkpoint(path, module, optimizer)
    model = wrapped(module)
    for step in range(first, lm.STEPS):
        lm.wait_for_turn(step)
        train_step(model, optimizer, step, rank, world_size)
        committed(step + 1, rank, world_size, generation)
        if rank == 0 and (step + 1) % every == 0:
            save_checkpoint(path, step + 1, module, optimizer)


def committed(step: int, rank: int, world_size: int, generation: int = 0) -> None:
    """Tell the observer that ``step`` steps are in the model, on ``world_size`` members.

    ``generation`` is any number that changes when the group of members was formed anew.
    """
    line = f"{time.time():.6f} {step} {rank} {world_size} {generation}\n"
    descriptor = os.open(OBSERVATIONS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, line.encode())
    finally:
        os.close(descriptor)
