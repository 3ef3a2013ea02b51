"""The destinations of chunks (`Landing`), in memory of the pool and in mapped files (`HostLanding`)."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch

from ..memory import POOL, Bytes
from . import tensors as made
from .http_connection import Cancel
from .local import FileSource, Mapping, map_ahead
from .model_files import Files
from .plan import HUGE_PAGE_BYTES, Chunk, LoadPlan, Placed
from .stream import Outcome
from .verify import Verifier


class Landing(Protocol):
    """Receives chunks and returns tensors. `sharers`: processes of this host that share it, this one included."""

    sharers: int = 1

    def fetch(self, chunk: Chunk, cancel: Cancel) -> Outcome:
        """Read a chunk to where it belongs; called by many threads. "busy": another process reads it, retry soon."""

    def reverify(self, chunk: Chunk) -> None:
        """Verify a chunk again, because a second reader was cancelled while writing there. Raises LoaderError."""

    def tensor(self, tensor: Placed) -> torch.Tensor:
        """Return a tensor; all its chunks have landed."""

    def close(self) -> None:
        """Free what only the load needs; nothing is fetched any more."""


class HostLanding(Landing):
    """Tensors in memory: one block for everything read, and the mapped files."""

    def __init__(self, files: Files, load_plan: LoadPlan, checks: Verifier | None) -> None:
        self._files = files
        self._checks = checks
        self._mapped: list[Mapping | None] = []
        sizes = []
        for source, length in zip(files.sources, load_plan.landings, strict=True):
            mapped = source.map() if load_plan.whole and isinstance(source, FileSource) else None
            self._mapped.append(mapped)
            sizes.append(0 if mapped else -(-length // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES)
        block = POOL.lease(sum(sizes)) if any(sizes) else np.empty(0, np.uint8)
        ends = np.cumsum(sizes)
        self._landed: list[Bytes] = []
        for index, (mapped, header) in enumerate(zip(self._mapped, files.headers, strict=True)):
            begin = int(ends[index]) - sizes[index]
            phase = load_plan.landings[index] - header.data_bytes
            here = mapped.bytes[header.data_offset - phase :] if mapped else block[begin : begin + sizes[index]]
            self._landed.append(here)
        self._cached = not load_plan.chunks
        self._views = [memoryview(landed.data) for landed in self._landed]

    def fetch(self, chunk: Chunk, cancel: Cancel) -> Outcome:
        mapped = self._mapped[chunk.file]
        view = self._view(chunk)
        if mapped is not None:
            mapped.populate(chunk.offset, chunk.length, cancel)
        else:
            self._files.read(chunk, view, cancel)
        if self._checks is not None:
            self._checks.check(chunk, view, cancel)
        return "read"

    def reverify(self, chunk: Chunk) -> None:
        if self._checks is not None:
            self._checks.check(chunk, self._view(chunk), Cancel())

    def tensor(self, tensor: Placed) -> torch.Tensor:
        return made.view(self._landed[tensor.file], tensor, self._files.sources[tensor.file].name)

    def close(self) -> None:
        if self._cached:
            map_ahead(filter(None, self._mapped))

    def _view(self, chunk: Chunk) -> memoryview:
        return self._views[chunk.file][chunk.place : chunk.place + chunk.bytes]
