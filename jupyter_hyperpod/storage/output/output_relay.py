"""Stores what workers print: the first part of a worker's in the journal, the rest in rotated files beside it.

Both together take at most the job's `--output-cap` on each node (`output_cap.py`): the oldest is dropped first, and
every reader gets a line about it. The journal takes half of it per worker, and at most $HYPERPOD_OUTPUT_MB megabytes
(64), by a writer that writes nothing else: so whole files of it can go. Further output goes to the job's directory
`output`, as the same events, in parts named ``NODE@NUMBER@BEFORE``; BEFORE is the number of bytes in all earlier parts.

A display that does not fit into the worker's share of the journal is kept as its text, with a sentence about the rest
that stands where the display would, and in the display as ``left_out``.

An event names the session and the step that the rank was in, as soon as there is one: the worker writes a mark into its
output where the step is another than before. It does the same where a cell of a notebook begins: an event without text
says so (``begins``), and those that follow name the cell. ``NODE.steps`` (`step_index.py`) leads from steps to times.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ...core.errors import SpecError, StoreError
from ...core.events import Event
from ...core.spec import OUTPUT_CAP
from ...core.units import few, format_bytes
from ..journal import RecordWriter, event_writer
from ..journal_writer import JournalWriter
from ..segments import OUTPUT_WRITER, SEGMENT_BYTES
from ..store import JobStore
from .output_cap import FILES, MOST_BYTES, PIECE, OutputCap, make_output_directory, output_directory
from .step_index import StepIndex

SHARE_VARIABLE, SHARE_MB = "HYPERPOD_OUTPUT_MB", 64
PLAIN, SHORT = "text/plain", PIECE // 4  # a text of so many characters is kept in a display without a share, too
MARK_BEGINS = "\x1eHYPERPOD-"
_MARK = re.compile(f"{MARK_BEGINS}(SHOWN|STEP|CELL)-([0-9]{{1,9}})(?:-([0-9]{{1,15}}))?\x1e\n")


def mark(number: int) -> str:
    """The text that stands in a worker's standard output where its display of this number belongs."""
    return f"{MARK_BEGINS}SHOWN-{number}\x1e\n"


def step_mark(session: int, step: int) -> str:
    """The text that stands before what a worker prints in another step than that of its text before."""
    return f"{MARK_BEGINS}STEP-{session}-{step}\x1e\n"


def cell_mark(number: int) -> str:
    """The text that stands where a code cell of a notebook begins; 0: the last one has ended."""
    return f"{MARK_BEGINS}CELL-{number}\x1e\n"


@dataclass
class StepLabel:
    """The session and the step, both from 1, of what is read from one stream of a worker; 0 before the first step.

    ``cell``: the number of the notebook's code cell; 0 where no cell has said that it begins.
    """

    session: int = 0
    step: int = 0
    cell: int = 0


class OutputRelay:
    """Writes the output of one node's workers. Never raises errors of the disk. Raises SpecError for a bad setting.

    ``journal`` gets what is said about it. ``cap``: the bytes that the output may take on the disk.
    """

    def __init__(self, job: JobStore, node: str, journal: JournalWriter, cap: int = OUTPUT_CAP) -> None:
        self._job, self._node, self._journal = job, node, journal
        self._most_share = _megabytes(SHARE_VARIABLE, SHARE_MB)
        self._share = min(self._most_share, cap // 2)
        self._file_bytes = max(cap // FILES, MOST_BYTES)
        segment_bytes = min(self._file_bytes, SEGMENT_BYTES)
        self._first = JournalWriter(job.events, f"{OUTPUT_WRITER}{node}", segment_bytes, self._warn)
        self._cap = OutputCap(job, node, cap, lambda: self._first.written + self._parts_written())
        self._left, self._said, self._said_left_out = self._share, False, False
        self._expected: dict[int, tuple[str, dict[str, Any]]] = {}  # displays whose marks have not been read yet
        self._part: RecordWriter[Event] | None = None
        self._closed_parts = 0  # bytes in parts of this agent that are complete
        self._dropped = 0
        self._last_s = 0.0
        self._index: StepIndex | None = None

    def begin(self) -> None:
        """Another worker prints from now on, with a full share of the journal."""
        self._left, self._said, self._said_left_out = self._share, False, False
        self._expected.clear()
        self._close_part()  # so that it can be dropped as the oldest

    def flush(self) -> None:
        """Try to write what a full disk has refused."""
        self._first.flush()

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
            elif found[1] == "CELL":
                self._begin_cell(record, int(found[2]), label)
            elif (display := self._expected.pop(int(found[2]), None)) is not None:
                self._show(record, *display, label)
        self._write(record, text[at:], label)

    def _begin_cell(self, record: dict[str, Any], number: int, label: StepLabel) -> None:
        label.cell = number or label.cell  # what comes after the end is the last cell's
        if record["stream"] == "stdout":
            self._piece(record | {"text": "", "begins": number}, label)

    def _show(self, record: dict[str, Any], text: str, shown: dict[str, Any], label: StepLabel) -> None:
        size = len(text) + sum(len(str(found)) for found in shown.get("data", {}).values())
        if size > self._left and shown.get("data"):
            self._show_text(record, text, shown, label)
            return
        self._left -= size
        as_json = len(json.dumps(shown))
        self._journalled(record | {"text": text, "shown": shown}, label, size, 12 * len(text) + as_json + 1024)

    def _show_text(self, record: dict[str, Any], text: str, shown: dict[str, Any], label: StepLabel) -> None:
        """Keep the text of a display that does not fit, and say what is not kept. ``text`` is "" where it was kept."""
        plain = str(shown["data"].get(PLAIN, ""))
        long = len(plain) > SHORT
        sizes = {kind: len(str(found)) for kind, found in shown["data"].items()}
        if text or not long:
            sizes.pop(PLAIN, None)
        if text and long:
            self._write(record, text, label)
        text, short = (text, plain) if plain and not long else ("", "")
        told = {}
        if sizes:
            largest = sorted(sizes, key=lambda kind: -sizes[kind])
            names = few([f"{kind[:80]} of {format_bytes(sizes[kind])}" for kind in largest])
            why = self._why_left_out()
            said = f"[not shown: {names}; {why}. Or save it to a file under shared:// and open that in the notebook]"
            short, text = "\n".join(filter(None, [short, said])), f"{text}{said}\n"
            told = {"left_out": f"{names}; {why}"}
            self._warn_left_out(record["rank"], names, why)
        if short:
            kept = shown | {"data": {PLAIN: short}, "metadata": {}} | told
            self._piece(record | {"text": text, "shown": kept}, label)

    def _why_left_out(self) -> str:
        more, options = 2 * self._share or SHARE_MB * 1_000_000, []
        if self._cap.cap < 2 * more:
            options.append(f"--output-cap {format_bytes(2 * more).replace(' ', '')}")
        if self._most_share < more:
            options.append(f"--env {SHARE_VARIABLE}={more / 1e6:g}")
        left = f"{format_bytes(self._left)} are" if self._left > 0 else "nothing is"
        return (
            f"what this worker prints and displays may take {format_bytes(self._share)} of the journal, and "
            f"{left} left. For more, submit with `{' '.join(options)}`"
        )

    def _warn_left_out(self, rank: int | None, names: str, why: str) -> None:
        """Say it once of a worker in the journal; where each display would be, a line says so."""
        if not self._said_left_out:
            self._said_left_out = True
            who = f"rank {rank}" if rank is not None else self._node
            self._warn(
                f"a display of {who} is kept as text only, without {names}, and so are more that do not fit: {why}"
            )

    def _write(self, record: dict[str, Any], text: str, label: StepLabel) -> None:
        for at in range(0, len(text), PIECE):
            self._piece(record | {"text": text[at : at + PIECE]}, label)

    def _piece(self, record: dict[str, Any], label: StepLabel) -> None:
        size = len(record["text"].encode(errors="replace"))
        if self._left > 0:
            self._left -= size
            self._journalled(record, label, size, _most_bytes(record))
            return
        self._say_where(record["rank"])
        self._note(label, len(record["text"]))
        self._keep(record | _label_of(label))

    def _journalled(self, record: dict[str, Any], label: StepLabel, size: int, most: int) -> None:
        """Write to the journal. What has to wait there gets a later time, which the index must not attribute.

        ``most``: bytes that this may take there.
        """
        with suppress(StoreError):  # a file that cannot be removed: then more is kept
            self._make_room(most)
        on_time = not self._first.problem
        self._note(label, size)
        if not (self._first.write("output.written", record | _label_of(label)) and on_time) and self._index:
            self._index.forget()

    def _make_room(self, size: int) -> None:
        open_files = {self._first.path, self._part.path if self._part is not None else None}
        self._cap.make_room(size, open_files, self._file_bytes)

    def _warn(self, text: str) -> None:
        self._journal.write("warning.raised", {"text": text})

    def _note(self, label: StepLabel, size: int) -> None:
        if not label.session:
            return
        try:
            index = self._index or StepIndex(make_output_directory(self._job), self._node)
        except (OSError, StoreError):  # a full disk: then there is no index
            return
        self._index = index
        index.note(self._clock(), label.session, label.step, size)

    def _clock(self) -> float:
        """The time, which never goes back here: an index of times leads to what was printed then."""
        self._last_s = max(self._last_s, self._first.last_s, time.time())
        return self._last_s

    def close(self) -> None:
        """Close the file; journal how much was dropped since the last report."""
        self._close_part()
        self._first.close()
        if self._index is not None:
            self._index.close(self._clock())
            self._index = None
        if self._dropped:
            text = f"{format_bytes(self._dropped)} of output of {self._node} were dropped: the disk refused them"
            self._warn(text)
            self._dropped = 0

    def _close_part(self) -> None:
        if self._part is not None:
            self._closed_parts += self._part.size
            self._part.close()
            self._part = None

    def _say_where(self, rank: int | None) -> None:
        if self._said:
            return
        self._said = True
        self._first.rest()  # so that its file can be dropped as the oldest
        who, chosen = (f"rank {rank}", f" --rank {rank}") if rank is not None else (self._node, "")
        self._warn(
            f"further output of {who} is in {output_directory(self._job)}; all that it has printed takes at most "
            f"{format_bytes(self._cap.cap)}, the oldest is dropped first (--output-cap); `jupyter hyperpod logs "
            f"{self._job.id}{chosen}` shows it"
        )

    def _parts_written(self) -> int:
        return self._closed_parts + (self._part.size if self._part is not None else 0)

    def _keep(self, record: Mapping[str, Any]) -> None:
        try:
            most = _most_bytes(record)
            self._make_room(most)
            if self._part is None or self._part.size + most > self._file_bytes:
                self._part = self._next_part()
            if self._dropped:
                text = f"[{format_bytes(self._dropped)} of output were dropped: the disk refused them]\n"
                self._part.append("output.written", {**record, "stream": "stderr", "text": text})
                self._dropped = 0
            self._part.append("output.written", record)
        except StoreError:
            self._dropped += len(record["text"])

    def _next_part(self) -> RecordWriter[Event]:
        """Open one more part. Raises StoreError."""
        self._close_part()
        try:
            directory = make_output_directory(self._job)
        except OSError as error:
            raise StoreError(f"cannot create {output_directory(self._job)}: {error.strerror}") from error
        return event_writer(directory, self._cap.next_part(self._clock()), clock=self._clock)


def _most_bytes(record: Mapping[str, Any]) -> int:
    """The bytes that a piece of output takes at most as an event."""
    shown = len(json.dumps(record["shown"])) if "shown" in record else 0
    return 12 * len(record["text"]) + shown + 1024


def _label_of(label: StepLabel) -> dict[str, int]:
    found = {"session": label.session, "step": label.step} if label.session else {}
    return found | ({"cell": label.cell} if label.cell else {})


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
