"""Collects uploads in parts, as JupyterLab sends large files, in the store until the last part has arrived."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..core.errors import Conflict
from ..storage.store import Store, private_directory
from ..system import portable

LAST = -1
FRESH_S = 30.0  # an upload with a part this recently is in progress, and no other of that file may begin
STALE_S = 24 * 3600.0  # an upload without a new part for this long is abandoned


class Uploads:
    """Parts of files on their way to mounts; the name of a partial file holds the number of its last part."""

    def __init__(self, store: Store) -> None:
        self._room = store.root / "mounts" / "uploads"

    @contextmanager
    def take(self, path: str, content: bytes, chunk: int | None) -> Iterator[Path | None]:
        """Take a whole file (`chunk` None) or a part of it, numbered from 1, the last one `LAST`.

        The context returns a local file with the whole content, or None while parts are missing. Raises Conflict for a
        part out of order.
        """
        private_directory(self._room)
        name = hashlib.sha256(path.encode()).hexdigest()[:32] if chunk else os.urandom(16).hex()
        if chunk in (None, 1):
            self._begin(name, path)
            part = self._room / f"{name}.1"
        else:
            part = self._next(name, path, chunk)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | portable.NOT_INHERITED | portable.NO_LINK
            with os.fdopen(os.open(part, flags, 0o600), "wb") as file:
                file.write(content)
            yield part if chunk in (None, LAST) else None
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        if chunk in (None, LAST):
            part.unlink(missing_ok=True)

    def _begin(self, name: str, path: str) -> None:
        """Remove abandoned uploads, and an abandoned one of this file."""
        for part in self._room.iterdir():
            with suppress(FileNotFoundError):
                age_s = time.time() - part.stat().st_mtime
                if part.name.startswith(name) and age_s < FRESH_S:
                    raise Conflict(f"{path} is being uploaded just now; wait until that is over, or for half a minute")
                if part.name.startswith(name) or age_s > STALE_S:
                    part.unlink()

    def _next(self, name: str, path: str, chunk: int | None) -> Path:
        """Return the partial file, renamed for this part."""
        known = [int(part.suffix[1:]) for part in self._room.glob(f"{name}.*")]
        if not known or chunk not in (LAST, max(known) + 1):
            raise Conflict(f"part {chunk} of {path} follows none that has come: begin the upload again")
        renamed = self._room / f"{name}.{max(known) + 1}"
        (self._room / f"{name}.{max(known)}").rename(renamed)
        return renamed
