"""The batches of a session: what is read for a micro-batch is a function of (seed, step, micro-batch)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...core.errors import SpecError
from ..session.purity import CPU, seeded
from ..worker.replica_sync import Group
from .given import Collate, Given, order_of
from .indexed import IndexedData, indexed, single
from .order import Order, mix
from .sampled import Sampled

READING = 1  # tells this use of the seed from others


@dataclass(frozen=True)
class Reading:
    """One micro-batch that is to be read: its samples, and the seed of what is random in reading them."""

    step: int
    leaf: int
    indices: tuple[int, ...]
    seed: int


class Batches:
    """Reads the micro-batches of this rank."""

    def __init__(
        self, found: Given, group: Group, seed: int, global_batch: int, micro_batch: int, device: torch.device
    ) -> None:
        self.data: IndexedData = indexed(found.data, _collate(found, micro_batch))
        self._group, self._seed, self._device = group, seed, device
        self._global_batch, self._micro_batch = global_batch, micro_batch
        self.samples = len(self.data)
        if self.samples < 1:
            raise SpecError("data is empty")
        self.order: Order = order_of(found, self.samples, seed, global_batch)

    def begin(self, step: int, due: Sequence[int], following: Sequence[int]) -> None:
        """This rank computes the micro-batches ``due`` of ``step`` (from 0), and of the next one ``following``."""
        self.order.begin(step)

    @property
    def carried(self) -> dict[str, Any]:
        """What members that join later have to be given, by name."""
        return {"order of the data": self.order} if isinstance(self.order, Sampled) else {}

    def of(self, step: int, leaf: int, again: bool = False) -> Any:
        """The batch of micro-batch ``leaf`` of ``step`` (from 0); ``again``: it is computed again, for a check."""
        return read(self.data, self._reading(step, leaf), self._device)

    def _reading(self, step: int, leaf: int) -> Reading:
        first = step * self._global_batch + leaf * self._micro_batch
        indices = [self.order.at(position) for position in range(first, first + self._micro_batch)]
        seed = mix(self._seed, step, leaf, *self._group.place, READING)
        return Reading(step, leaf, tuple(self._group.part(indices)), seed)


def read(data: IndexedData, reading: Reading, device: torch.device = CPU) -> Any:
    """The batch, read with all generators seeded, those of ``device`` too."""
    with seeded(reading.seed, device):
        return data.batch(list(reading.indices))


def _collate(found: Given, micro_batch: int) -> Collate | None:
    if not found.whole:
        return found.collate
    if micro_batch != 1:
        raise SpecError(
            f"data is a DataLoader with batch_size=None, whose items are batches already, and micro_batch is "
            f"{micro_batch}; expected micro_batch=1, and global_batch=the number of items per step"
        )
    collate = found.collate
    return (lambda samples: collate(samples[0])) if collate is not None else single
