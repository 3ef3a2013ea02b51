"""Environment variables of this process: the one that switches samples of nodes off, and others for a while."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

SAMPLES_VARIABLE, SAMPLES_OFF = "HYPERPOD_NODE_SAMPLES", "off"


def samples_switched_off() -> dict[str, str]:
    """The variable with which this process asks for no samples of what nodes use; nothing where it does not."""
    off = os.environ.get(SAMPLES_VARIABLE, "").strip().lower() == SAMPLES_OFF
    return {SAMPLES_VARIABLE: SAMPLES_OFF} if off else {}


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
