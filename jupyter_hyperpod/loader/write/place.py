"""The interface of every place that a model is written to. What is written is seen when it is published, not before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ...core.errors import LoaderError
from ..read.http_connection import Cancel

Views = Sequence[memoryview]


class MaybeDone(LoaderError):
    """It failed, and may have been done all the same."""


class NotDurable(LoaderError):
    """It was done, but may not survive a power failure."""


class Upload(Protocol):
    """One file that is being written. `write` may be called by many threads; the other methods by one."""

    def write(self, number: int, offset: int, views: Views, cancel: Cancel) -> None:
        """Write part `number` (from 0 on), which begins at byte `offset`. Raises LoaderError and Cancelled."""

    def finish(self) -> None:
        """Everything is written: have it survive a power failure. Raises LoaderError."""

    def publish(self) -> None:
        """Make the file visible, in one step. Raises LoaderError."""

    def abort(self) -> None:
        """Leave nothing of it behind. What has been published stays: it may have taken the place of another file."""


class Place(Protocol):
    """A directory of any kind. Methods raise LoaderError: MaybeDone where what they do may have been done."""

    def url(self, name: str) -> str:
        """Return where the file `name` is or will be."""

    def begin(self, name: str, size: int) -> Upload:
        """Prepare to write a file of `size` bytes."""

    def put(self, name: str, content: bytes) -> None:
        """Write a small file, in one step."""

    def has(self, name: str) -> bool | None:
        """Whether there is such a file; None where that may not be known."""

    def comes_back(self, name: str) -> bool:
        """Whether such a file may be there again after it was removed."""

    def remove(self, name: str) -> None:
        """Remove a file, or do nothing where there is none."""
