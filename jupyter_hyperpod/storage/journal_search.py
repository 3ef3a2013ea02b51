"""Looks for events of some kinds in a journal that may be long."""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from ..core.errors import ProtocolError
from ..core.events import Event, decode_event
from . import segments
from .journal import identity, is_known
from .segments import OUTPUT_WRITER

OUTPUT = "output.written"
SLICE_BYTES = 1 << 18


class Search:
    """Looks for events of some kinds: a slice per call, and later only what is new.

    Lines that name no such kind are not even parsed. Only writers whose names begin with ``writers`` are read, and none
    whose names begin with one of ``without``.
    """

    def __init__(
        self, directory: Path, kinds: Collection[str], writers: str = "", without: tuple[str, ...] = ()
    ) -> None:
        self._directory = directory
        self._kinds = frozenset(kinds)
        self._words = [f'"{kind}"'.encode() for kind in kinds]
        self._writers, self._without = writers, without if OUTPUT in kinds else (*without, OUTPUT_WRITER)
        self._offsets: dict[str, int] = {}
        self._cursor: dict[str, int] = {}
        self._over: set[str] = set()  # files that were read and will not grow
        self._found: list[Event] = []

    def poll(self, budget_s: float = math.inf) -> list[Event] | None:
        """Read for about ``budget_s``: what has been found since the last answer, merged by time; None where more is
        to be read."""
        until_s = time.monotonic() + budget_s
        there = segments.in_order(segments.names(self._directory))
        complete = segments.last_records(there)
        for segment in segments.unread(there, self._cursor):
            wanted = segment.name.startswith(self._writers) and not segment.name.startswith(self._without)
            if not wanted or segment.name in self._over:
                continue
            if not self._read(segment.name, until_s):
                return None
            if segment.name in complete:
                self._over.add(segment.name)
        found, self._found = self._found, []
        return sorted(found, key=lambda event: event.time_s)

    def _read(self, name: str, until_s: float) -> bool:
        """Read on in one file; False where the time was over before its end."""
        path, offset = self._directory / name, self._offsets.get(name, 0)
        with suppress(OSError):
            if path.stat().st_size <= offset:
                return True
            with open(path, "rb") as file:
                file.seek(offset)
                while lines := file.readlines(SLICE_BYTES):
                    torn = not lines[-1].endswith(b"\n")  # or it is being written
                    whole = lines[:-1] if torn else lines
                    self._offsets[name] = offset = offset + sum(map(len, whole))
                    self._take(whole)
                    if torn:
                        return True
                    if time.monotonic() > until_s:
                        return False
        return True

    def _take(self, lines: list[bytes]) -> None:
        for line in lines:
            if any(word in line for word in self._words) and not is_known(line, self._cursor):
                with suppress(ProtocolError):
                    event = decode_event(line)
                    if event.kind in self._kinds:
                        self._found.append(event)
        if lines and (last := identity(lines[-1])):
            self._cursor[last[0]] = max(last[1], self._cursor.get(last[0], 0))


def read_kinds(
    directory: Path, kinds: Collection[str], writers: str = "", without: tuple[str, ...] = ()
) -> list[Event]:
    """Events of the given kinds written so far, merged by time; lines that name no such kind are not even parsed."""
    return Search(directory, kinds, writers, without).poll() or []
