"""The batches of a session: what is read for a micro-batch is a function of (seed, step, micro-batch)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from ..worker.replica_sync import Group
from .given import Given
from .indexed_batches import IndexedBatches
from .sizes import BatchSizes
from .stream import is_stream
from .stream_batches import StreamBatches


class Batches(Protocol):
    """Reads the micro-batches of this rank."""

    @property
    def samples(self) -> int | None:
        """Samples in the data, None where that is not known."""

    @property
    def stalls(self) -> int:
        """Micro-batches for which this process had to wait."""

    @property
    def waited_s(self) -> float:
        """Seconds of these waits together."""

    @property
    def reads(self) -> Any:
        """What reading depends on, and may change; None for a stream, which is brought to its place otherwise."""

    @property
    def name(self) -> str:
        """The order of the samples, for people."""

    def begin(self, step: int, due: Sequence[int], following: Sequence[int]) -> None:
        """This rank computes the micro-batches ``due`` of ``step`` (from 0), and of each later one ``following``."""

    def of(self, step: int, leaf: int, again: bool = False) -> Any:
        """The batch of micro-batch ``leaf`` of ``step`` (from 0); ``again``: it is computed again, for a check."""

    def mark(self, step: int) -> int | None:
        """A number that all members must have alike in this step; None where the seed alone decides."""

    def state_dict(self) -> dict[str, Any]:
        """What a member that joins between two steps needs to read on."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Read on where the member was that gave this state."""

    def close(self) -> None:
        """Release processes."""


def open_batches(
    found: Given, group: Group, seed: int, sizes: BatchSizes, micro_batch: int, device: torch.device
) -> Batches:
    """Reads what a person gave. Raises SpecError for data that cannot be read by index nor as a stream."""
    kind = StreamBatches if is_stream(found.data) else IndexedBatches
    return kind(found, group, seed, sizes, micro_batch, device)
