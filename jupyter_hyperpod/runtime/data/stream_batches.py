"""The batches of a stream: each step takes the next block of it, cut into micro-batches."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...core.errors import TrainingError
from ...core.units import plural
from ..session.purity import seeded
from ..worker.replica_sync import Group
from .given import Given, collate_of
from .order import READING, mix
from .sizes import BatchSizes
from .stream import SampleStream

NO_WORKERS = (
    "the data is a stream, which each step reads itself: the {count} of the loader have no effect, and no part in the "
    "result"
)


class StreamBatches:
    """Reads the micro-batches of this rank from a stream. The samples of the present step are kept for recovery."""

    name = "stream"
    reads = None
    samples = None
    stalls = 0
    waited_s = 0.0

    def __init__(
        self, found: Given, group: Group, seed: int, sizes: BatchSizes, micro_batch: int, device: torch.device
    ) -> None:
        self._collate = collate_of(found, micro_batch) or torch.utils.data.default_collate
        self._group, self._seed, self._device, self._micro_batch = group, seed, device, micro_batch
        self._stream = SampleStream(found.data, seed, sizes.samples(0), device, found.drop_last, self._show)
        self._block: list[Any] = []
        self._present = -1
        if found.workers.count:
            group.warn(NO_WORKERS.format(count=plural(found.workers.count, "worker")))

    def begin(self, step: int, due: Sequence[int], following: Sequence[int]) -> None:
        """Read the samples of ``step`` (from 0), of all micro-batches: others may be lost."""
        while self._present != step:
            self._show()
            self._present = self._stream.next_step
            if self._present > step:
                raise TrainingError(f"the stream is at step {self._present + 1}, and step {step + 1} is due")
            self._block = self._stream.block()

    def of(self, step: int, leaf: int, again: bool = False) -> Any:
        """The batch of micro-batch ``leaf`` of ``step`` (from 0)."""
        first = leaf * self._micro_batch
        mine = self._group.part(list(range(first, first + self._micro_batch)))
        seed = mix(self._seed, step, leaf, *self._group.place, READING)
        with seeded(seed, self._device):
            samples = [self._block[place] for place in mine]
            if self._collate is not torch.utils.data.default_collate:
                samples = copy.deepcopy(samples)  # the batch may hold them, and be changed
            return self._collate(samples)

    def mark(self, step: int) -> int:
        """A number that is the same where the same samples were read."""
        return zlib.crc32(self._stream.mark.encode())

    def state_dict(self) -> dict[str, Any]:
        """The place of the next block."""
        return self._stream.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Read on where another member was."""
        self._stream.load_state_dict(state)
        self._block, self._present = [], -1

    def close(self) -> None:
        """There are no processes."""

    def _show(self) -> None:
        """Show that something moves: reading again may take long."""
        self._group.touch("user", max(self._present, 0))
