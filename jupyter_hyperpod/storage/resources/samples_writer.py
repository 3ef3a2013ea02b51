"""Writes what the nodes of a job have used."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from ...core.errors import StoreError
from ..access import like_its_parent
from ..journal_writer import JournalWriter
from ..store import JobStore, private_directory
from .node_uses import FOLDER

SEGMENT_BYTES = 1 << 18  # smaller than those of facts: samples are thinned sooner


def samples_writer(job: JobStore, warn: Callable[[str], object]) -> JournalWriter:
    """A writer of samples; ``warn`` is told where some were dropped because the disk was full."""
    folder = job.path / FOLDER
    with suppress(OSError, StoreError):  # then its samples wait, and are dropped in the end
        like_its_parent(private_directory(folder))
    return JournalWriter(folder, "coordinator", SEGMENT_BYTES, warn)
