"""The interface of all destinations of a model (`Destination`, `Upload`). Files are invisible until published."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ...core.errors import LoaderError
from ..read.http_connection import Cancel

Views = Sequence[memoryview]


class MaybeDone(LoaderError):
    """The request failed, but the server may have carried it out."""


class NotDurable(LoaderError):
    """The operation succeeded, but may not survive a power failure."""


class Upload(Protocol):
    """One file that is being written. `write` may be called by many threads; the other methods by one."""

    def write(self, number: int, offset: int, views: Views, cancel: Cancel) -> None:
        """Write part `number` (from 0 on), which begins at byte `offset`. Raises LoaderError and Cancelled."""

    def finish(self) -> None:
        """Make everything written durable against a power failure. Raises LoaderError."""

    def publish(self) -> None:
        """Make the file visible, in one step. Raises LoaderError."""

    def abort(self) -> None:
        """Remove the unpublished file. A published file stays, because it may have replaced another one."""


class Destination(Protocol):
    """A directory of any kind. Methods raise LoaderError: MaybeDone where they may have succeeded."""

    def url(self, name: str) -> str:
        """Return where the file `name` is or will be."""

    def begin(self, name: str, size: int) -> Upload:
        """Prepare to write a file of `size` bytes."""

    def put(self, name: str, content: bytes) -> None:
        """Write a small file, in one step."""

    def has(self, name: str) -> bool | None:
        """Whether the file exists; None where permissions hide that."""

    def comes_back(self, name: str) -> bool:
        """Whether a removed file may come back."""
        return False

    def remove(self, name: str) -> None:
        """Remove a file if it exists."""
