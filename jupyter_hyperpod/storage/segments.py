"""The files of a journal: each writer's segments, in the order in which they were written.

WRITER.jsonl                    the first segment of a writer
WRITER+FIRST.jsonl              a later one; FIRST is the number (seq) of its first record
WRITER+FIRST~LAST@STRIDE.jsonl  segments of one writer that were joined; of the samples, about one of STRIDE is kept

A segment is complete when its writer has begun the next one. Only complete segments are joined (`thinning.py`). Joined
segments appear under their name at once, before the old ones are removed: a reader that finds both reads each record
once, by its number.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

SUFFIX = ".jsonl"
OUTPUT_WRITER = "output-"  # with this begin the names of writers that write output only, of which the oldest is dropped
SEGMENT_BYTES = 1 << 20
_NAME = re.compile(r"(.+?)(?:\+(\d{12})(?:~(\d{12})@(\d{12}))?)?\.jsonl")


@dataclass(frozen=True, slots=True)
class JournalSegment:
    """One file. ``last`` is the number of its last record where the name says it; ``stride`` is 1 where all samples
    are there."""

    writer: str
    first: int
    last: int | None
    stride: int
    name: str

    @classmethod
    def of(cls, name: str) -> JournalSegment | None:
        """Parse a file's name; None for a file of another kind."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        writer, first, last, stride = found.groups()
        return cls(writer, int(first or 1), int(last) if last else None, int(stride or 1), name)

    @property
    def order(self) -> tuple[str, int, int]:
        """The place among all segments: where a joined one and its parts are both there, the joined one comes first."""
        return self.writer, self.first, -(self.last or 0)


def first_name(writer: str) -> str:
    """The name of a writer's first file."""
    return f"{writer}{SUFFIX}"


def later_name(writer: str, first: int) -> str:
    """The name of the file that begins with record ``first``."""
    return f"{writer}+{first:012d}{SUFFIX}"


def joined_name(writer: str, first: int, last: int, stride: int) -> str:
    """The name of the file that replaces the segments with the records ``first`` to ``last``."""
    return f"{writer}+{first:012d}~{last:012d}@{stride:012d}{SUFFIX}"


def names(directory: Path) -> list[str]:
    """The names of a journal's files."""
    with suppress(FileNotFoundError):
        return sorted(name for name in os.listdir(directory) if name.endswith(SUFFIX))
    return []


def in_order(found: Iterable[str]) -> list[JournalSegment]:
    """The segments of these names, writer by writer, in the order in which they were written."""
    return sorted(filter(None, map(JournalSegment.of, found)), key=lambda segment: segment.order)


def as_written(name: str) -> tuple[str, int, int]:
    """Sorts files by when they were written: a follower takes a segment for complete when it sees the next one."""
    segment = JournalSegment.of(name)
    return (name, 0, 0) if segment is None else segment.order


def last_records(segments: list[JournalSegment]) -> dict[str, int]:
    """Name -> the number of the last record, of all complete segments. ``segments`` are in order."""
    ends = {segment.name: segment.last for segment in segments if segment.last is not None}
    for before, after in zip(segments, segments[1:], strict=False):
        if before.writer == after.writer and before.first < after.first and before.last is None:
            ends[before.name] = after.first - 1
    return ends


def unread(segments: list[JournalSegment], cursor: Mapping[str, int]) -> list[JournalSegment]:
    """Those that may hold records after ``cursor`` (writer -> the last number that was read)."""
    ends = last_records(segments)
    return [s for s in segments if s.name not in ends or ends[s.name] > cursor.get(s.writer, 0)]
