"""Environment variables of this process that have other values for a while."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


@contextmanager
def replaced(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables, and put back what was there before. Threads that do this at once need a lock."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
