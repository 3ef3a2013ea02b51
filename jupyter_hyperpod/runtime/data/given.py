"""Reads what a person gives as data: a data set, or a DataLoader, whose settings are taken over."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import data as torch_data

from ...core.errors import SpecError
from .indexed import single
from .order import Lanes, Order, Sequential, Shuffled
from .sampled import Sampled
from .sizes import BatchSizes
from .stream import is_stream

Collate = Callable[[list[Any]], Any]
ORDERS = ("shuffled", "sequential", "lanes")
PREFETCH = 2  # micro-batches per worker, as a DataLoader has it
DIVIDED = (
    "the order is a DistributedSampler, which gives each process other samples; hp.Session divides them itself: leave "
    "the sampler out, and write shuffle=True or order=..."
)


@dataclass(frozen=True)
class WorkerSettings:
    """``count`` processes read ahead, each at most ``prefetch`` micro-batches; ``begin(number)`` is called in each."""

    count: int = 0
    prefetch: int = PREFETCH
    begin: Callable[[int], object] | None = None


@dataclass(frozen=True)
class Given:
    """Data as it was given. ``collate`` is None where samples are put together as usual.

    ``drop_last``: an epoch has whole global batches only. ``whole``: each item of the data is a batch already.
    """

    data: Any
    order: str | Iterable[int] = "shuffled"
    collate: Collate | None = None
    drop_last: bool = False
    whole: bool = False
    workers: WorkerSettings = WorkerSettings()


def given(data: Any, order: str | Iterable[int] | None = None, workers: int | None = None) -> Given:
    """What a session's arguments say about its data. Raises SpecError for what cannot be kept."""
    if isinstance(data, torch_data.DataLoader):
        found = _of_loader(data, order)
    else:
        found = Given(data, "shuffled" if order is None else order)
    if order is not None and is_stream(found.data):
        raise SpecError(
            "the data is a stream, which has the order in which it gives its samples; leave order out, or shuffle in "
            "the stream"
        )
    if isinstance(found.order, torch_data.DistributedSampler):
        raise SpecError(DIVIDED)
    if isinstance(found.order, str) and found.order not in ORDERS or not isinstance(found.order, Iterable):
        raise SpecError(f"order is {found.order!r}; expected {', '.join(ORDERS)}, or a sampler of torch.utils.data")
    if workers is not None:
        if workers < 0:
            raise SpecError(f"workers is {workers}; expected 0 or more processes")
        found = replace(found, workers=replace(found.workers, count=workers))
    return found


def collate_of(found: Given, micro_batch: int) -> Collate | None:
    """How samples are put together; None: as usual. Raises SpecError for several items that are batches already."""
    if not found.whole:
        return found.collate
    if micro_batch != 1:
        raise SpecError(
            f"data is a DataLoader with batch_size=None, whose items are batches already, and micro_batch is "
            f"{micro_batch}; expected micro_batch=1, and global_batch=the number of items per step"
        )
    collate = found.collate
    return (lambda samples: collate(samples[0])) if collate is not None else single


def order_of(found: Given, samples: int, seed: int, sizes: BatchSizes | int) -> Order:
    """The order of ``samples`` samples for steps of these ``sizes``. Raises SpecError where there are too few."""
    global_batch = sizes if isinstance(sizes, int) else sizes.samples(0)
    cut = global_batch if found.drop_last else 1
    kept = samples - samples % cut
    if not kept:
        raise SpecError(
            f"data is a DataLoader with drop_last=True and {samples} samples, fewer than global_batch={global_batch}; "
            "leave drop_last out, or make the global batch smaller"
        )
    if not isinstance(found.order, str):
        return Sampled(found.order, seed, samples, sizes, cut)
    if found.order == "lanes":
        return Lanes(samples, global_batch)
    return Sequential(kept) if found.order == "sequential" else Shuffled(seed, samples, kept)


def _of_loader(loader: torch_data.DataLoader[Any], order: str | Iterable[int] | None) -> Given:
    sampler, drop_last = loader.sampler, loader.drop_last
    if (batches := loader.batch_sampler) is not None and loader.batch_size is None:
        sampler, drop_last = _of_batches(batches)
    collate = None if loader.collate_fn is torch_data.default_collate else loader.collate_fn
    workers = WorkerSettings(loader.num_workers, loader.prefetch_factor or PREFETCH, loader.worker_init_fn)
    whole = loader.batch_size is None and batches is None
    found = Given(loader.dataset, "shuffled", collate, drop_last, whole, workers)
    if isinstance(loader.dataset, torch_data.IterableDataset):
        return found
    own = _of_sampler(sampler)
    if order is not None and own != order:
        shown = order if isinstance(order, str) else type(order).__name__
        raise SpecError(
            f"data is a DataLoader with an order of its own ({own if isinstance(own, str) else type(own).__name__}), "
            f"and order={shown} was given, too; pass its data set, hp.Session(model, optimizer, loader.dataset, "
            "order=...), or leave order out"
        )
    return replace(found, order=own)


def _of_batches(batches: Any) -> tuple[Any, bool]:
    """The sampler inside a plain batch sampler, and whether an incomplete batch is left out."""
    if type(batches) is not torch_data.BatchSampler:
        raise SpecError(
            f"data is a DataLoader with the batch sampler {type(batches).__name__}, which chooses whole batches; "
            "hp.Session cuts batches of global_batch and micro_batch samples: give it a sampler of samples, "
            "DataLoader(..., sampler=...), or order=..."
        )
    return batches.sampler, batches.drop_last


def _of_sampler(sampler: Any) -> str | Iterable[int]:
    """The order that a DataLoader's sampler stands for: where it says no more than a word does, the word."""
    if isinstance(sampler, torch.utils.data.SequentialSampler):
        return "sequential"
    whole = type(sampler) is torch_data.RandomSampler and not sampler.replacement and sampler._num_samples is None
    return "shuffled" if whole else sampler
