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
        self._rows: dict[str, CachedRow] | None = None
        self._new: list[bytes] = []
        self._lines = 0

    def get(self, job_id: str, stamp: int) -> CachedRow | None:
        """The row of a job whose journal has this stamp."""
        if self._rows is None:
            self._rows = self._read()
        found = self._rows.get(job_id)
        return found if found is not None and stamp and found.stamp == stamp else None

    def put(self, job_id: str, cached: CachedRow) -> None:
        """Remember a row; `flush` writes it."""
        if self._rows is None:
            self._rows = self._read()
        if cached.stamp and self._rows.get(job_id) != cached:
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

    def _read(self) -> dict[str, CachedRow]:
        found: dict[str, CachedRow] = {}
        with suppress(OSError):
            for line in self._path.read_bytes().splitlines():
                self._lines += 1
                with suppress(ValueError, LookupError, TypeError):
                    checksum, content = line[:8], line[9:]
                    if int(checksum, 16) != zlib.crc32(content):
                        continue
                    versions, job_id, stamp, digest, row = json.loads(content)
                    if versions == [FORMAT, FOLD] and row.keys() == self._columns:
                        found[job_id] = CachedRow(stamp, digest, row)
        return found


def _line(job_id: str, cached: CachedRow) -> bytes:
    content = json.dumps([[FORMAT, FOLD], job_id, *cached], separators=(",", ":"), allow_nan=False).encode()
    return b"%08x %s\n" % (zlib.crc32(content), content)
