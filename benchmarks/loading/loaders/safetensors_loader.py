"""The file on a local disk, by the format's own library."""

from __future__ import annotations

from safetensors.torch import load_file

from benchmarks.loading.loaders.process import Load, Task


def prepare(task: Task) -> Load:
    """Nothing to prepare."""
    return lambda facts: load_file(task.reference)
