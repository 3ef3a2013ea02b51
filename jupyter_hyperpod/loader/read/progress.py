"""The progress of a load: worker threads count, the caller's thread reports."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from .plan import Chunk, LoadPlan


@dataclass(frozen=True, slots=True)
class LoadProgress:
    """The state of a load at one moment. `first_layer_s` is None until the tensors up to the first block have arrived.

    `bytes_fetched` counts the bytes from the source, repeated ones included; `retries` the repeated requests.
    """

    bytes_done: int
    bytes_total: int
    tensors_done: int
    tensors_total: int
    elapsed_s: float
    first_layer_s: float | None
    bytes_fetched: int = 0
    retries: int = 0

    @property
    def bytes_per_s(self) -> float:
        return self.bytes_done / self.elapsed_s if self.elapsed_s > 0 else 0.0

    @property
    def remaining_s(self) -> float | None:
        """Seconds to the end at the mean rate, None before the first byte."""
        return (self.bytes_total - self.bytes_done) / self.bytes_per_s if self.bytes_done else None

    @property
    def done(self) -> bool:
        """True when everything has arrived."""
        return self.bytes_done == self.bytes_total and self.tensors_done == self.tensors_total


Callback = Callable[[LoadProgress], None]


class Meter:
    """Counts finished chunks of one plan. `began_s`: when the load was requested (monotonic seconds)."""

    def __init__(self, load_plan: LoadPlan, began_s: float) -> None:
        self._lock = threading.Lock()
        self._began_s = began_s
        self._bytes_done = load_plan.cached_bytes
        self._bytes_total = load_plan.cached_bytes + load_plan.bytes
        self._missing = [0] * len(load_plan.tensors)
        for chunk in load_plan.chunks:
            for index in chunk.tensors:
                self._missing[index] += 1
        self._first = {index for index in load_plan.first_layer if self._missing[index]}
        known = load_plan.tensors and not self._first
        self._first_layer_s = time.monotonic() - began_s if known else None
        self._tensors_done = self._missing.count(0)

    def add(self, chunk: Chunk) -> None:
        with self._lock:
            self._bytes_done += chunk.bytes
            for index in chunk.tensors:
                self._missing[index] -= 1
                if not self._missing[index]:
                    self._tensors_done += 1
                    self._first.discard(index)
            if not self._first and self._first_layer_s is None:
                self._first_layer_s = time.monotonic() - self._began_s

    @property
    def first_block(self) -> bool:
        """Whether the first block has arrived."""
        return self._first_layer_s is not None

    def read(self, fetched: int = 0, retries: int = 0) -> LoadProgress:
        with self._lock:
            return LoadProgress(
                self._bytes_done,
                self._bytes_total,
                self._tensors_done,
                len(self._missing),
                time.monotonic() - self._began_s,
                self._first_layer_s,
                fetched,
                retries,
            )
