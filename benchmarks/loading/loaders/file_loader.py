"""The file on a local disk, by the ways there are: parallel pread, mmap."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping

import torch

from benchmarks.loading.loaders.process import Facts, Load, Task, into_place, read_header, tensors_in


def prepare(task: Task) -> Load:
    """``settings["way"]`` is pread or mmap."""
    way = task.settings["way"]
    return {"pread": _pread, "mmap": _mapped}[way](task)


def _pread(task: Task) -> Load:
    file = os.open(task.reference, os.O_RDONLY)

    def fill(offset: int, view: memoryview) -> None:
        done = 0
        while done < len(view):
            done += os.preadv(file, [view[done:]], offset + done)

    return lambda facts: into_place(task, lambda offset, length: os.pread(file, length, offset), fill)


def _mapped(task: Task) -> Load:
    def load(facts: Facts) -> Mapping[str, torch.Tensor]:
        with open(task.reference, "rb") as file:
            content = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE)
        start, header = read_header(content[: 8 + int.from_bytes(content[:8], "little")])
        return tensors_in(torch.frombuffer(content, dtype=torch.uint8)[start:], header)

    return load
