"""Copies chunks to a device: each thread has two pinned buffers and a stream of its own.

On other devices than a GPU the same code runs without pinning and streams.
"""

from __future__ import annotations

import threading
from contextlib import nullcontext
from typing import Any

import torch

from . import tensors as made
from .http_connection import Cancel
from .landing import Landing
from .model_files import Files
from .plan import Chunk, LoadPlan, Placed
from .stream import Outcome
from .verify import Verifier

BUFFERS = 2


class DeviceLanding(Landing):
    """One block of device memory per file, and the staging buffers of every thread."""

    def __init__(self, files: Files, load_plan: LoadPlan, device: torch.device, checks: Verifier | None) -> None:
        self._files = files
        self._device = _numbered(device)
        self._checks = checks
        self._staging_bytes = max((chunk.bytes for chunk in load_plan.chunks), default=0)
        self._landed = [torch.empty(length, dtype=torch.uint8, device=self._device) for length in load_plan.landings]
        self._free = _mark(self._device)
        self._local = threading.local()
        self._stagings: list[_Staging] = []

    def fetch(self, chunk: Chunk, cancel: Cancel) -> Outcome:
        staging = self._staging()
        buffer = staging.next()
        view = memoryview(buffer.numpy().data)[: chunk.bytes]
        self._files.read(chunk, view, cancel)
        if self._checks is not None:
            self._checks.check(chunk, view, cancel)
        there = self._landed[chunk.file][chunk.place : chunk.place + chunk.bytes]
        staging.copy(there, buffer[: chunk.bytes])
        return "read"

    def reverify(self, chunk: Chunk) -> None:
        """Each reader has memory of its own: nothing to do."""

    def tensor(self, tensor: Placed) -> torch.Tensor:
        """Waits for copies that are under way."""
        self._settle()
        dtype = made.torch_dtype(tensor.dtype, self._files.sources[tensor.file].name)
        flat = self._landed[tensor.file][tensor.place : tensor.place + tensor.bytes]
        if flat.storage_offset() % dtype.itemsize:
            flat = flat.clone()
        return flat.view(dtype).view(tensor.shape)

    def close(self) -> None:
        """Even after an error, all copies have ended when the memory is freed."""
        self._settle()
        self._stagings.clear()

    def _settle(self) -> None:
        for staging in list(self._stagings):
            staging.settle()

    def _staging(self) -> _Staging:
        if not hasattr(self._local, "staging"):
            self._local.staging = _Staging(self._staging_bytes, self._device, self._free)
            self._stagings.append(self._local.staging)
        staging: _Staging = self._local.staging
        return staging


class _Staging:
    """Two buffers in turn: one is being copied while the other is being filled."""

    def __init__(self, length: int, device: torch.device, free: Any) -> None:
        cuda = device.type == "cuda"
        self._stream: Any = None
        with torch.cuda.device(device) if cuda else nullcontext():  # a new thread uses the first device
            self._buffers = [torch.empty(length, dtype=torch.uint8, pin_memory=cuda) for _ in range(BUFFERS)]
            if cuda:
                self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
                self._stream.wait_event(free)
        self._events: list[Any] = [None] * BUFFERS
        self._turn = 0

    def next(self) -> torch.Tensor:
        """Return a buffer whose last copy has ended."""
        if (event := self._events[self._turn]) is not None:
            event.synchronize()
        return self._buffers[self._turn]

    def copy(self, there: torch.Tensor, here: torch.Tensor) -> None:
        """Begin to copy the present buffer and turn to the other."""
        if self._stream is None:
            there.copy_(here)
        else:
            with torch.cuda.stream(self._stream):
                there.copy_(here, non_blocking=True)
                event = torch.cuda.Event()  # type: ignore[no-untyped-call]
                event.record(self._stream)
                self._events[self._turn] = event
        self._turn = (self._turn + 1) % BUFFERS

    def settle(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()


def _numbered(device: torch.device) -> torch.device:
    """Add the number to "cuda": it means the caller's current device, and each thread has its own."""
    if device == torch.device("cuda"):
        return torch.device("cuda", torch.cuda.current_device())
    return device


def _mark(device: torch.device) -> Any:
    """An event after which new memory is free: earlier operations of the caller may still use it until then."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record(torch.cuda.current_stream(device))
    return event
