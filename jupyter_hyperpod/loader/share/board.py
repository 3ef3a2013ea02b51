"""A notice board per model, on which the ranks of a job exchange short named texts, in the job's private directory.

A text is the target of a symbolic link, so it appears whole or not at all. If several ranks write the same name,
exactly one wins, on network file systems, too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...storage.store import private_directory
from ...system.locks import take_lock

LOCK_PATIENCE_S = 1.0
LOCK_AGAIN_S = 0.001


class Board:
    """The board of one model. Raises StoreError where it cannot be made."""

    def __init__(self, path: Path) -> None:
        self._path = private_directory(path)

    def put(self, name: str, text: str) -> str:
        """Put `text` under `name` unless it is taken; return the text that is there then. Raises OSError."""
        while True:
            try:
                os.symlink(text, self._path / name)
            except FileExistsError:
                if (found := self.get(name)) is not None:
                    return found
            except FileNotFoundError:  # the last rank of an earlier load has just removed everything
                private_directory(self._path)
            else:
                return text

    def get(self, name: str) -> str | None:
        """Return the text under `name`, None where there is none."""
        try:
            return os.readlink(self._path / name)
        except OSError:
            return None

    def remove(self, name: str) -> None:
        with suppress(OSError):
            os.unlink(self._path / name)

    def names(self, prefix: str) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self._path) if name.startswith(prefix))
        except OSError:
            return []

    def leave(self, name: str, prefix: str) -> None:
        """Remove `name`; the last rank under `prefix` removes everything."""
        with suppress(OSError), self.locked():
            self.remove(name)
            if not self.names(prefix):
                for left in self.names(""):
                    self.remove(left)
                os.rmdir(self._path)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Exclude other processes of this host, except where one holds the lock for too long, or locks do not work."""
        descriptor = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with suppress(OSError):
                take_lock(descriptor, LOCK_PATIENCE_S, LOCK_AGAIN_S)
            yield
        finally:
            os.close(descriptor)
