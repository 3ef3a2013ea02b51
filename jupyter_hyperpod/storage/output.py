"""Stores what workers print: the first part in the journal, the rest in rotated files beside it.

The journal takes $HYPERPOD_OUTPUT_MB megabytes (64) per worker. Further output goes to the job's directory `output`, as
the same events, in parts named ``NODE@NUMBER@BEFORE``; BEFORE is the number of bytes in all earlier parts. The parts of
one node together take at most $HYPERPOD_OUTPUT_KEPT_MB (64, at least 1): the oldest is dropped first, and every reader
gets a line about it.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..core.errors import SpecError, StoreError
from ..core.events import Event
from ..core.units import format_bytes
from .access import like_its_parent
from .journal import JournalFollower, RecordWriter, event_writer, files, follow_events
from .journal_writer import JournalWriter
from .store import JobStore, private_directory

SHARE_VARIABLE, SHARE_MB = "HYPERPOD_OUTPUT_MB", 64
KEPT_VARIABLE, KEPT_MB, KEPT_LEAST_MB = "HYPERPOD_OUTPUT_KEPT_MB", 64, 1
PARTS = 8
PIECE = 16_384  # characters of one event
MOST_BYTES = 12 * PIECE + 1024  # the largest such event as JSON
_MARK = re.compile("\x1eHYPERPOD-SHOWN-([0-9]+)\x1e\n")
_PART = re.compile(r"(.+)@(\d+)@(\d+)\.[0-9a-f]+")


def mark(number: int) -> str:
    """The text that stands in a worker's standard output where its display of this number belongs."""
    return f"\x1eHYPERPOD-SHOWN-{number}\x1e\n"


def output_directory(job: JobStore) -> Path:
    """The directory of the output that the journal does not hold."""
    return job.path / "output"


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """One file of a node; ``before`` is the number of bytes in all earlier parts."""

    node: str
    number: int
    before: int
    path: Path

    @classmethod
    def of(cls, path: Path) -> Part | None:
        """Parse a file's name; None for a file of another kind."""
        named = _PART.fullmatch(path.stem)
        return cls(named[1], int(named[2]), int(named[3]), path) if named else None


def parts(directory: Path) -> dict[str, list[Part]]:
    """Node -> its parts, the oldest first."""
    found: dict[str, list[Part]] = {}
    for part in sorted(part for path in files(directory) if (part := Part.of(path))):
        found.setdefault(part.node, []).append(part)
    return found


class OutputRelay:
    """Writes the output of one node's workers. Never raises errors of the disk. Raises SpecError for a bad setting."""

    def __init__(self, job: JobStore, node: str, journal: JournalWriter) -> None:
        self._job, self._node, self._journal = job, node, journal
        self._share = _megabytes(SHARE_VARIABLE, SHARE_MB)
        self._kept = max(_megabytes(KEPT_VARIABLE, KEPT_MB), KEPT_LEAST_MB * 1_000_000)
        self._part_bytes = max(self._kept // PARTS, MOST_BYTES)
        self._left, self._said = self._share, False
        self._expected: dict[int, tuple[str, dict[str, Any]]] = {}  # displays whose marks have not been read yet
        self._part: RecordWriter[Event] | None = None
        self._dropped = 0

    def begin(self) -> None:
        """Another worker prints from now on, with a full share of the journal."""
        self._left, self._said = self._share, False
        self._expected.clear()

    def expect(self, number: int, text: str, shown: dict[str, Any]) -> None:
        """A display whose mark comes in the output; ``text``: what it is in words."""
        self._expected[number] = text, shown

    def lacks(self, text: str) -> bool:
        """Whether the text has a mark whose display has not come yet."""
        return any(int(found[1]) not in self._expected for found in _MARK.finditer(text))

    def write(self, member: str, rank: int | None, stream: str, text: str) -> None:
        """Store a piece of a worker's output, with the displays whose marks are in it."""
        record = {"member": member, "node": self._node, "rank": rank, "stream": stream}
        at = 0
        for found in _MARK.finditer(text):
            self._write(record, text[at : found.start()])
            at = found.end()
            if (display := self._expected.pop(int(found[1]), None)) is not None:
                self._show(record, *display)
        self._write(record, text[at:])

    def _show(self, record: dict[str, Any], text: str, shown: dict[str, Any]) -> None:
        size = len(text) + sum(len(str(found)) for found in shown.get("data", {}).values())
        if size > self._left and shown.get("data"):
            self._write(record, text or "[a display was left out: this worker has printed too much]\n")
            return
        self._left -= size
        self._journal.write("output.written", record | {"text": text, "shown": shown})

    def _write(self, record: dict[str, Any], text: str) -> None:
        if not text:
            return
        rank = record["rank"]
        if self._left > 0:
            self._left -= len(text.encode(errors="replace"))
            self._journal.write("output.written", record | {"text": text})
            return
        self._say_where(rank)
        for at in range(0, len(text), PIECE):
            self._keep(record | {"text": text[at : at + PIECE]})

    def close(self) -> None:
        """Close the file; journal how much was dropped since the last report."""
        self._close_part()
        if self._dropped:
            text = f"{format_bytes(self._dropped)} of output of {self._node} were dropped: the disk refused them"
            self._journal.write("warning.raised", {"text": text})
            self._dropped = 0

    def _close_part(self) -> None:
        if self._part is not None:
            self._part.close()
            self._part = None

    def _say_where(self, rank: int | None) -> None:
        if self._said:
            return
        self._said = True
        who, chosen = (f"rank {rank}", f" --rank {rank}") if rank is not None else (self._node, "")
        text = (
            f"further output of {who} is in {output_directory(self._job)}, at most {format_bytes(self._kept)}, the "
            f"oldest is dropped first; `jupyter hyperpod logs {self._job.id}{chosen}` shows it"
        )
        self._journal.write("warning.raised", {"text": text})

    def _keep(self, record: Mapping[str, Any]) -> None:
        try:
            if self._part is None or self._part.size + 12 * len(record["text"]) + 1024 > self._part_bytes:
                self._part = self._next_part()
            if self._dropped:
                text = f"[{format_bytes(self._dropped)} of output were dropped: the disk refused them]\n"
                self._part.append("output.written", {**record, "stream": "stderr", "text": text})
                self._dropped = 0
            self._part.append("output.written", record)
        except StoreError:
            self._dropped += len(record["text"])

    def _next_part(self) -> RecordWriter[Event]:
        """Make room for one more part, and open it. Raises StoreError."""
        self._close_part()
        directory = private_directory(output_directory(self._job))
        like_its_parent(directory)
        there = parts(directory).get(self._node, [])
        sizes = {part: _size(part.path) for part in there}
        number, before = (there[-1].number + 1, there[-1].before + sizes[there[-1]]) if there else (0, 0)
        while there and sum(sizes[part] for part in there) + self._part_bytes > self._kept:
            oldest = there.pop(0)
            try:
                oldest.path.unlink(missing_ok=True)
            except OSError as error:
                raise StoreError(f"cannot remove {oldest.path}: {error.strerror}") from error
        return event_writer(directory, f"{self._node}@{number:06d}@{before}")


class OutputReader:
    """Reads the output files beside the journal. ``missed``: nodes of which the last `poll` could not read all."""

    def __init__(self, job: JobStore) -> None:
        self._directory = output_directory(job)
        self._follower: JournalFollower[Event] = follow_events(self._directory)
        self._newest: dict[str, tuple[Part, int]] = {}  # node -> the newest part read, and the bytes read of it
        self.missed: frozenset[str] = frozenset()

    def poll(self) -> list[Event]:
        """Return new output in the order of time, with a line wherever output was dropped before it was read."""
        events = self._follower.poll()
        if not events and not self._newest:
            return []
        there = parts(self._directory)
        gaps = {node: size for node, several in there.items() if (size := self._gap(node, several[0]))}
        self.missed = frozenset(gaps)
        self._newest.update({node: (there[node][0], 0) for node in gaps})
        for name, offset in self._follower.read_so_far().items():
            part = Part.of(self._directory / name)
            if part is not None and (part.node not in self._newest or part >= self._newest[part.node][0]):
                self._newest[part.node] = part, offset
        self._follower.forget({part.path.name for several in there.values() for part in several})
        return list(_with_notices(events, gaps))

    def _gap(self, node: str, oldest: Part) -> int:
        """The number of bytes dropped unread. The part read last may have grown before it was dropped."""
        if node not in self._newest:
            return oldest.before
        last, offset = self._newest[node]
        return max(0, oldest.before - last.before - offset) if oldest > last else 0


def _with_notices(events: list[Event], gaps: Mapping[str, int]) -> Iterator[Event]:
    waiting = dict(gaps)
    for event in events:
        if (dropped := waiting.pop(event.data["node"], 0)) and event.kind == "output.written":
            text = f"[{format_bytes(dropped)} of older output were dropped here]\n"
            yield replace(event, data={**event.data, "stream": "stderr", "text": text})
        yield event


def _megabytes(variable: str, default: int) -> int:
    """A setting, in bytes."""
    text = os.environ.get(variable, str(default))
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise SpecError(f"${variable} is {text[:40]!r}; expected a number of megabytes, 0 or more")
    return round(value * 1e6)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
