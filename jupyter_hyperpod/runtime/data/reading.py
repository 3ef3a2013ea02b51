"""Reads one micro-batch: a pure function of its samples and its seed, in any process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ..session.purity import CPU, seeded
from .indexed import IndexedData

SHOWN = 20  # samples that an error names


@dataclass(frozen=True)
class Reading:
    """One micro-batch that is to be read: its samples, and the seed of what is random in reading them."""

    step: int
    leaf: int
    indices: tuple[int, ...]
    seed: int

    @property
    def place(self) -> str:
        """The micro-batch, for people."""
        more = ", …" if len(self.indices) > SHOWN else ""
        samples = ", ".join(map(str, self.indices[:SHOWN])) + more
        return f"micro-batch {self.leaf} of step {self.step + 1}, samples {samples}"


def read(data: IndexedData, reading: Reading, device: torch.device = CPU) -> Any:
    """The batch, read on one thread with all generators seeded, those of ``device`` too."""
    with _one_thread(), seeded(reading.seed, device):
        try:
            return data.batch(list(reading.indices))
        except Exception as error:
            error.add_note(f"while the data was read for {reading.place}")
            raise


@contextmanager
def _one_thread() -> Iterator[None]:
    """Threads affect the arithmetic, and a process that reads ahead has one."""
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
