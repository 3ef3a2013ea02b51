"""Holds what one node's output takes on the disk within its cap: the oldest file is dropped first, and is counted.

The files are the segments of the journal's writer of output (``output-NODE``) and the parts beside the journal. What
was dropped stands in ``NODE.dropped`` beside the parts: readers say it where the output begins.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from ...core.errors import ProtocolError, StoreError
from ...core.events import decode_event
from ..access import like_its_parent
from ..journal import files
from ..segments import OUTPUT_WRITER, JournalSegment
from ..store import JobStore, private_directory, write_readable

FILES = 16  # so many files, or more, take the cap: each is dropped as a whole
DROPPED = ".dropped"
PIECE = 16_384  # characters of one event
MOST_BYTES = 12 * PIECE + 1024  # the largest such event as JSON
_PART = re.compile(r"(.+)@(\d+)@(\d+)(@again)?\.[0-9a-f]+")
_HEX = len(".12345678")


def output_directory(job: JobStore) -> Path:
    """The directory of the output that the journal does not hold."""
    return job.path / "output"


def make_output_directory(job: JobStore) -> Path:
    """Make it, where it is missing. Raises OSError and StoreError."""
    return like_its_parent(private_directory(output_directory(job)))


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """One file of a node; ``before`` is the number of bytes in all earlier parts.

    ``again``: its agent began with a clock that was behind what earlier ones had written.
    """

    node: str
    number: int
    before: int
    path: Path
    again: bool = False

    @classmethod
    def of(cls, path: Path) -> Part | None:
        """Parse a file's name; None for a file of another kind."""
        named = _PART.fullmatch(path.stem)
        return cls(named[1], int(named[2]), int(named[3]), path, named[4] is not None) if named else None


def parts(directory: Path) -> dict[str, list[Part]]:
    """Node -> its parts, the oldest first."""
    found: dict[str, list[Part]] = {}
    for part in sorted(part for path in files(directory) if (part := Part.of(path))):
        found.setdefault(part.node, []).append(part)
    return found


def rows(kept: Iterable[Part]) -> list[list[Part]]:
    """The parts of a node, in order, where time goes on from one to the next; another list where it went back."""
    found: list[list[Part]] = []
    for part in kept:
        if part.again or not found:
            found.append([])
        found[-1].append(part)
    return found


def node_of(writer: str) -> str:
    """The node of a journal's writer of output."""
    return writer.removeprefix(OUTPUT_WRITER)[:-_HEX]


@dataclass(frozen=True, slots=True)
class DroppedOutput:
    """What a node's output has lost to the ``cap``: bytes of the journal; the number and the first byte of the part
    that followed the newest dropped one."""

    cap: int = 0
    journal: int = 0
    number: int = 0
    before: int = 0

    @classmethod
    def of(cls, directory: Path, node: str) -> DroppedOutput:
        """What stands beside the parts; nothing where that cannot be read."""
        with suppress(OSError, ValueError, TypeError, AttributeError):
            found: Any = json.loads((directory / f"{node}{DROPPED}").read_bytes())
            return cls(**{each.name: max(0, int(found.get(each.name, 0))) for each in fields(cls)})
        return cls()

    def total(self, kept: list[Part]) -> int:
        """The bytes that are gone; ``kept``: the parts that are there."""
        return self.journal + (kept[0].before if kept else self.before)


@dataclass(frozen=True, slots=True)
class _File:
    """One file of a node, the time of its last line, and its size."""

    written_s: float
    path: Path
    size: int


class OutputCap:
    """Makes room for the output of one node. ``written``: how many bytes its present agent has written so far."""

    def __init__(self, job: JobStore, node: str, cap: int, written: Callable[[], int]) -> None:
        self.cap = cap
        self.dropped = DroppedOutput.of(output_directory(job), node)
        self._job, self._node, self._written = job, node, written
        self._others: int | None = None  # bytes in files that are there, less those that this agent has written

    def make_room(self, size: int, open_files: Collection[Path | None], file_bytes: int) -> None:
        """Drop the oldest files, where ``size`` more bytes would not fit; a bit more, so that this is rare.

        Raises StoreError where one cannot be removed.
        """
        if self._others is not None and self._others + self._written() + size <= self.cap:
            return
        there = list(self._files())
        total = sum(file.size for file in there)
        if total + size > self.cap:
            for file in sorted(there, key=_age):
                if total + size + file_bytes <= self.cap:
                    break
                if file.path not in open_files:
                    self._drop(file)
                    total -= file.size
            self._say()
        self._others = total - self._written()

    def next_part(self, now_s: float) -> str:
        """The name of the writer of the next part."""
        there = parts(output_directory(self._job)).get(self._node, [])
        number, before, again = self.dropped.number, self.dropped.before, ""
        if there:
            number, before = there[-1].number + 1, there[-1].before + _size(there[-1].path)
            again = "@again" if _end_s(there[-1].path) > now_s else ""
        return f"{self._node}@{number:06d}@{before}{again}"

    def _files(self) -> Iterator[_File]:
        for directory in (self._job.events, output_directory(self._job)):
            for path in files(directory):
                if self._is_mine(path):
                    with suppress(OSError):
                        found = path.stat()
                        yield _File(found.st_mtime, path, found.st_size)

    def _is_mine(self, path: Path) -> bool:
        if path.parent != self._job.events:
            part = Part.of(path)
            return part is not None and part.node == self._node
        if not path.name.startswith(OUTPUT_WRITER + self._node):
            return False
        segment = JournalSegment.of(path.name)
        return segment is not None and node_of(segment.writer) == self._node

    def _drop(self, file: _File) -> None:
        try:
            file.path.unlink(missing_ok=True)
        except OSError as error:
            raise StoreError(f"cannot remove {file.path}: {error.strerror}") from error
        if part := Part.of(file.path):
            self.dropped = replace(self.dropped, number=part.number + 1, before=part.before + file.size)
        else:
            self.dropped = replace(self.dropped, journal=self.dropped.journal + file.size)

    def _say(self) -> None:
        """Write down what was dropped; on a full disk, the next time."""
        self.dropped = replace(self.dropped, cap=self.cap)
        content: Mapping[str, int] = asdict(self.dropped)
        with suppress(OSError, StoreError):
            directory = make_output_directory(self._job)
            write_readable(directory / f"{self._node}{DROPPED}", json.dumps(content).encode())


def _age(file: _File) -> tuple[float, float, str, int]:
    """Sorts the oldest first. A file system tells times by ticks of milliseconds or seconds: several files may be full
    in one."""
    segment = JournalSegment.of(file.path.name)
    place = (segment.writer, segment.first) if segment else (file.path.name, 0)
    return file.written_s, _begin_s(file.path), *place


def _begin_s(path: Path) -> float:
    """When the first line of a file was written; 0 where that cannot be read."""
    with suppress(OSError, ProtocolError), open(path, "rb") as file:
        return decode_event(file.readline(2 * MOST_BYTES).rstrip(b"\n")).time_s
    return 0.0


def _end_s(path: Path) -> float:
    """When the last whole line of a part was written; inf where that cannot be read."""
    with suppress(OSError), open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - 2 * MOST_BYTES))
        for line in reversed(file.read().split(b"\n")[:-1]):
            with suppress(ProtocolError):
                return decode_event(line).time_s
    return math.inf


def _size(path: Path) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
