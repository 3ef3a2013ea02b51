"""Stores what workers print: the first part in the journal, the rest in rotated files beside it.

The journal takes $HYPERPOD_OUTPUT_MB megabytes (64) per worker. Further output goes to the job's directory `output`, as
the same events, in parts named ``NODE@NUMBER@BEFORE``; BEFORE is the number of bytes in all earlier parts. The parts of
one node together take at most $HYPERPOD_OUTPUT_KEPT_MB (64, at least 1): the oldest is dropped first, and every reader
gets a line about it.

An event names the session and the step that the rank was in, as soon as there is one: the worker writes a mark into its
output where the step is another than before. ``NODE.steps`` (`step_index.py`) leads from steps to times.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.errors import SpecError, StoreError
from ...core.events import Event
from ...core.units import format_bytes
from ..access import like_its_parent
from ..journal import RecordWriter, event_writer, files
from ..journal_writer import JournalWriter
from ..store import JobStore, private_directory
from .step_index import StepIndex

SHARE_VARIABLE, SHARE_MB = "HYPERPOD_OUTPUT_MB", 64
KEPT_VARIABLE, KEPT_MB, KEPT_LEAST_MB = "HYPERPOD_OUTPUT_KEPT_MB", 64, 1
PARTS = 8
PIECE = 16_384  # characters of one event
MOST_BYTES = 12 * PIECE + 1024  # the largest such event as JSON
MARK_BEGINS = "\x1eHYPERPOD-"
_MARK = re.compile(f"{MARK_BEGINS}(SHOWN|STEP)-([0-9]{{1,9}})(?:-([0-9]{{1,15}}))?\x1e\n")
_PART = re.compile(r"(.+)@(\d+)@(\d+)\.[0-9a-f]+")


def mark(number: int) -> str:
    """The text that stands in a worker's standard output where its display of this number belongs."""
    return f"{MARK_BEGINS}SHOWN-{number}\x1e\n"


def step_mark(session: int, step: int) -> str:
    """The text that stands before what a worker prints in another step than that of its text before."""
    return f"{MARK_BEGINS}STEP-{session}-{step}\x1e\n"


@dataclass
class StepLabel:
    """The session and the step, both from 1, of what is read from one stream of a worker; 0 before the first step."""

    session: int = 0
    step: int = 0


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
        self._last_s = 0.0
        self._index: StepIndex | None = None

    def begin(self) -> None:
        """Another worker prints from now on, with a full share of the journal."""
        self._left, self._said = self._share, False
        self._expected.clear()

    def expect(self, number: int, text: str, shown: dict[str, Any]) -> None:
        """A display whose mark comes in the output; ``text``: what it is in words."""
        self._expected[number] = text, shown

    def lacks(self, text: str) -> bool:
        """Whether the text has a mark whose display has not come yet."""
        found = (mark for mark in _MARK.finditer(text) if mark[1] == "SHOWN")
        return any(int(mark[2]) not in self._expected for mark in found)

    def write(self, member: str, rank: int | None, stream: str, text: str, label: StepLabel) -> None:
        """Store a piece of a worker's output, with the displays whose marks are in it.

        ``label``: of the text before the first mark of a step; it is changed to that of the last.
        """
        record = {"member": member, "node": self._node, "rank": rank, "stream": stream}
        at = 0
        for found in _MARK.finditer(text):
            self._write(record, text[at : found.start()], label)
            at = found.end()
            if found[1] == "STEP":
                label.session, label.step = int(found[2]), int(found[3] or 0)
            elif (display := self._expected.pop(int(found[2]), None)) is not None:
                self._show(record, *display, label)
        self._write(record, text[at:], label)

    def _show(self, record: dict[str, Any], text: str, shown: dict[str, Any], label: StepLabel) -> None:
        size = len(text) + sum(len(str(found)) for found in shown.get("data", {}).values())
        if size > self._left and shown.get("data"):
            self._write(record, text or "[a display was left out: this worker has printed too much]\n", label)
            return
        self._left -= size
        self._journalled(record | {"text": text, "shown": shown}, label, size)

    def _write(self, record: dict[str, Any], text: str, label: StepLabel) -> None:
        if not text:
            return
        rank = record["rank"]
        if self._left > 0:
            size = len(text.encode(errors="replace"))
            self._left -= size
            self._journalled(record | {"text": text}, label, size)
            return
        self._say_where(rank)
        self._note(label, len(text))
        labelled = record | _label_of(label)
        for at in range(0, len(text), PIECE):
            self._keep(labelled | {"text": text[at : at + PIECE]})

    def _journalled(self, record: dict[str, Any], label: StepLabel, size: int) -> None:
        """Write to the journal. What has to wait there gets a later time, which the index must not attribute."""
        on_time = not self._journal.problem
        self._note(label, size)
        if not (self._journal.write("output.written", record | _label_of(label)) and on_time) and self._index:
            self._index.forget()

    def _note(self, label: StepLabel, size: int) -> None:
        if not label.session:
            return
        try:
            index = self._index or StepIndex(self._directory(), self._node)
        except (OSError, StoreError):  # a full disk: then there is no index
            return
        self._index = index
        index.note(self._clock(), label.session, label.step, size)

    def _clock(self) -> float:
        """The time, which never goes back here: an index of times leads to what was printed then."""
        self._last_s = max(self._last_s, self._journal.last_s, time.time())
        return self._last_s

    def _directory(self) -> Path:
        """Make the directory. Raises OSError."""
        return like_its_parent(private_directory(output_directory(self._job)))

    def close(self) -> None:
        """Close the file; journal how much was dropped since the last report."""
        self._close_part()
        if self._index is not None:
            self._index.close(self._clock())
            self._index = None
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
        try:
            directory = self._directory()
        except OSError as error:
            raise StoreError(f"cannot create {output_directory(self._job)}: {error.strerror}") from error
        there = parts(directory).get(self._node, [])
        sizes = {part: _size(part.path) for part in there}
        number, before = (there[-1].number + 1, there[-1].before + sizes[there[-1]]) if there else (0, 0)
        while there and sum(sizes[part] for part in there) + self._part_bytes > self._kept:
            oldest = there.pop(0)
            try:
                oldest.path.unlink(missing_ok=True)
            except OSError as error:
                raise StoreError(f"cannot remove {oldest.path}: {error.strerror}") from error
        return event_writer(directory, f"{self._node}@{number:06d}@{before}", clock=self._clock)


def _label_of(label: StepLabel) -> dict[str, int]:
    return {"session": label.session, "step": label.step} if label.session else {}


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
