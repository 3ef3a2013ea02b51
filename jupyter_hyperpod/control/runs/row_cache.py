"""RowCache: the rows of jobs that have ended, in one file of the store, so that a server reads no journal again.

``rows.cache`` has a line per row, appended; of one job the last line counts. It is a cache: a line that is torn or of
another version is left out, and so is a row whose journal has changed since (its ``stamp`` differs).
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ...core.errors import StoreError
from ...core.views import FOLD
from ...storage.store import write_private
from ...system import portable

FILE = "rows.cache"
FORMAT = 1
SPARE_LINES = 1000  # so many lines that count no more are left in the file


class CachedRow(NamedTuple):
    """A row, the time of the journal's directory that it was read at, and the whole digest of the job's source."""

    stamp: int
    digest: str
    row: dict[str, Any]


class RowCache:
    """The cached rows of one store. Not for several threads at once; several processes may append."""

    def __init__(self, root: Path, columns: Collection[str]) -> None:
        """``columns``: what a row has; another version's rows are left out."""
        self._path = root / FILE
        self._columns = set(columns)
        self._rows: dict[str, CachedRow | bytes] | None = None  # bytes: nobody has asked for the row yet
        self._new: list[bytes] = []
        self._lines = 0

    def load(self) -> None:
        """Read the file, unless it was read."""
        if self._rows is None:
            self._rows = self._read()

    def get(self, job_id: str, stamp: int) -> CachedRow | None:
        """The row of a job whose journal has this stamp."""
        found = self._found(job_id)
        return found if found is not None and stamp and found.stamp == stamp else None

    def _found(self, job_id: str) -> CachedRow | None:
        self.load()
        assert self._rows is not None
        found = self._rows.get(job_id)
        if isinstance(found, bytes):
            if (row := self._understood(found)) is None:
                del self._rows[job_id]
                return None
            found = self._rows[job_id] = row
        return found

    def put(self, job_id: str, cached: CachedRow) -> None:
        """Remember a row; `flush` writes it."""
        found = self._found(job_id)
        if cached.stamp and found != cached:
            assert self._rows is not None
            self._rows[job_id] = cached
            self._new.append(_line(job_id, cached))

    def flush(self, known: Collection[str]) -> None:
        """Append what is new, or write the file anew where much of it counts no more. A store without room is left."""
        if not self._new or self._rows is None:
            return
        lines, self._new = self._new, []
        self._lines += len(lines)
        with suppress(OSError, StoreError):
            if self._lines > len(known) + SPARE_LINES:
                self._rows = {job_id: row for job_id, row in self._rows.items() if job_id in known}
                write_private(self._path, b"".join(_line(job_id, row) for job_id, row in self._rows.items()))
                self._lines = len(self._rows)
            else:
                self._append(b"".join(lines))

    def _append(self, content: bytes) -> None:
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | portable.NOT_INHERITED, 0o600)
        try:
            os.write(descriptor, b"\n" + content)  # what is left of a torn line ends here
        finally:
            os.close(descriptor)

    def _read(self) -> dict[str, CachedRow | bytes]:
        """The last whole line of each job. Its row is made when somebody asks for it."""
        found: dict[str, CachedRow | bytes] = {}
        begin = _begin()
        with suppress(OSError):
            for line in self._path.read_bytes().splitlines():
                self._lines += 1
                checksum, content = line[:8], line[9:]
                with suppress(ValueError):
                    if content.startswith(begin) and int(checksum, 16) == zlib.crc32(content):
                        job_id = content[len(begin) : content.index(b'"', len(begin))]
                        found[job_id.decode()] = content
        return found

    def _understood(self, content: bytes) -> CachedRow | None:
        with suppress(ValueError, LookupError, TypeError, AttributeError):
            _, _, stamp, digest, row = json.loads(content)
            if row.keys() == self._columns:
                return CachedRow(stamp, digest, row)
        return None


def _begin() -> bytes:
    """How a line of this version begins, up to the id of its job."""
    return json.dumps([[FORMAT, FOLD], ""], separators=(",", ":")).encode()[:-2]


def _line(job_id: str, cached: CachedRow | bytes) -> bytes:
    if isinstance(cached, bytes):
        content = cached
    else:
        content = json.dumps([[FORMAT, FOLD], job_id, *cached], separators=(",", ":"), allow_nan=False).encode()
    return b"%08x %s\n" % (zlib.crc32(content), content)
