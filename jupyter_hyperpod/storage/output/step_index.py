"""Which steps the output of a node belongs to, and when it was printed: a small file beside the output.

Output is sorted by time, so a time leads to a place in it. An entry says: what was printed from `since_s` until just
before `until_s` belongs to the steps from `low` to `high` of this session. One is appended per `SPAN_BYTES` of output,
and where the session changes; nothing waits for the disk. A full file gets shorter: of its older half, neighbours are
joined.

An agent that begins with a clock that was set back begins with an entry of no length: from its time on, entries before
it speak for their own output only.

An entry has a checksum. A time that no entry speaks for is read: so an index that is torn, damaged, thinned or missing
costs time, but hides nothing.
"""

from __future__ import annotations

import math
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ...system import portable
from ..access import file_mode

SUFFIX = ".steps"
SPAN_BYTES = 128 << 10
MOST_ENTRIES = 8192
MARGIN_S = 0.01  # between the time noted here and that of the output, which is a moment later
_CONTENT = struct.Struct("<ddQQI")
_SUM = struct.Struct("<I")
ENTRY_BYTES = _CONTENT.size + _SUM.size

Window = tuple[float, float]  # from a time to another, both included


@dataclass(frozen=True, slots=True)
class StepRange:
    """The steps from ``first`` to ``last`` (None: to the newest) of a session."""

    session: int
    first: int
    last: int | None = None

    def has(self, session: int, step: int) -> bool:
        """Whether the step is one of them."""
        return session == self.session and self.first <= step <= (math.inf if self.last is None else self.last)


class StepSpan(NamedTuple):
    """Output from ``since_s`` until just before ``until_s`` (Unix epoch, the node's clock): of these steps, from 1."""

    since_s: float
    until_s: float
    session: int
    low: int
    high: int

    def meets(self, wanted: StepRange) -> bool:
        """Whether some of the output may be of these steps."""
        last = math.inf if wanted.last is None else wanted.last
        return self.session == wanted.session and self.low <= last and self.high >= wanted.first


def encode_span(span: StepSpan) -> bytes:
    """Encode one entry in `ENTRY_BYTES`."""
    content = _CONTENT.pack(span.since_s, span.until_s, span.low, span.high, span.session)
    return content + _SUM.pack(zlib.crc32(content))


def decode_spans(content: bytes) -> list[StepSpan]:
    """The whole entries in a file's content; what is between them is skipped."""
    found, at = [], 0
    while at + ENTRY_BYTES <= len(content):
        (checksum,) = _SUM.unpack_from(content, at + _CONTENT.size)
        if checksum != zlib.crc32(content[at : at + _CONTENT.size]):
            at += 1
            continue
        since_s, until_s, low, high, session = _CONTENT.unpack_from(content, at)
        if since_s <= until_s and low <= high:
            found.append(StepSpan(since_s, until_s, session, low, high))
        at += ENTRY_BYTES
    return found


def read_spans(directory: Path, node: str) -> list[StepSpan]:
    """The index of one node; empty where there is none."""
    try:
        return decode_spans((directory / f"{node}{SUFFIX}").read_bytes())
    except OSError:
        return []


def labelled_since_s(directory: Path) -> float:
    """Since when output names its steps, as the indexes of all nodes say: inf where there is none.

    That of a job of an earlier version does not, nor what such a job had printed when this version went on with it.
    """
    began_s = [math.inf]
    with suppress(OSError):
        for name in os.listdir(directory):
            if name.endswith(SUFFIX):
                began_s += [_began_s(directory / name)]
    return min(began_s)


def _began_s(path: Path) -> float:
    """When an index begins; -inf where nothing can be read of its beginning."""
    try:
        with open(path, "rb") as file:
            spans = decode_spans(file.read(64 * ENTRY_BYTES))
    except OSError:
        return -math.inf
    return min((span.since_s for span in spans), default=-math.inf)


def windows(spans: Sequence[StepSpan], wanted: StepRange) -> list[Window]:
    """When output of these steps may have been printed, in order: all times but those that belong to other steps.

    ``spans`` are in the order in which they were written.
    """
    found = [(span.since_s - MARGIN_S, span.until_s + MARGIN_S) for span in spans if span.meets(wanted)]
    reached_s = -math.inf
    for since_s, until_s in sorted(_spoken_for(spans)):
        if since_s > reached_s:
            found.append((reached_s, since_s))
        reached_s = max(reached_s, until_s)
    return list(_joined([*found, (reached_s, math.inf)]))


def _spoken_for(spans: Sequence[StepSpan]) -> Iterator[Window]:
    """The times of all whose output the entries say the steps: of each, those before any later entry."""
    back_s = math.inf
    for span in reversed(spans):
        if span.since_s <= back_s:
            yield span.since_s, min(span.until_s, back_s)
        back_s = min(back_s, span.since_s)


def _joined(found: Iterable[Window]) -> Iterator[Window]:
    """Windows in order, those that touch as one."""
    waiting: Window | None = None
    for window in sorted(found):
        if waiting is None or window[0] > waiting[1]:
            if waiting is not None:
                yield waiting
            waiting = window
        else:
            waiting = waiting[0], max(waiting[1], window[1])
    if waiting is not None:
        yield waiting


def shortened(spans: Sequence[StepSpan]) -> list[StepSpan]:
    """At most three quarters of the entries: of the older half, neighbours of one session are joined."""
    half = len(spans) // 2
    joined: list[StepSpan] = []
    for place, span in enumerate(spans[:half]):
        before = joined[-1] if joined else None
        if place % 2 and before and before.session == span.session and before.until_s == span.since_s:
            low, high = min(before.low, span.low), max(before.high, span.high)
            joined[-1] = before._replace(until_s=span.until_s, low=low, high=high)
        else:
            joined.append(span)
    kept = [*joined, *spans[half:]]
    return kept[max(0, len(kept) - 3 * len(spans) // 4) :]


class StepIndex:
    """Writes the index of one node. A disk that refuses an entry is no error: a reader then reads more."""

    def __init__(self, directory: Path, node: str) -> None:
        """Go on with the file of an earlier agent of this node, where there is one."""
        self._path = directory / f"{node}{SUFFIX}"
        self._file = -1
        self._count = 0
        self._span: StepSpan | None = None
        self._bytes = 0
        self._is_open = False

    def note(self, time_s: float, session: int, step: int, size: int) -> None:
        """So many bytes of output that belong to this step come now."""
        if not self._is_open:
            self._begin(time_s, session, step)
        span = self._span
        if span is not None and (span.session != session or self._bytes >= SPAN_BYTES):
            self._append(span._replace(until_s=max(time_s, span.since_s)))
            span = None
        if span is None:
            self._bytes = 0
            span = StepSpan(time_s, time_s, session, step, step)
        low, high = min(span.low, step), max(span.high, step)
        self._span = span if (low, high) == (span.low, span.high) else span._replace(low=low, high=high)
        self._bytes += size

    def forget(self) -> None:
        """Speak for no output since the last entry: its times are not known."""
        self._span = None

    def close(self, time_s: float) -> None:
        """Write what is known, and close the file."""
        if self._span is not None:
            self._append(self._span._replace(until_s=max(time_s, self._span.since_s)))
            self._span = None
        self._close_file()

    def _close_file(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _begin(self, time_s: float, session: int, step: int) -> None:
        """Say so where an earlier agent's clock was ahead; an index that cannot take this goes."""
        self._is_open = True
        with suppress(OSError):
            spans = decode_spans(self._path.read_bytes()) if self._path.exists() else []
            behind = max((span.until_s for span in spans), default=-math.inf) > time_s
            if behind and not self._append(StepSpan(time_s, time_s, session, step, step)):
                self._path.unlink(missing_ok=True)
                self._close_file()

    def _append(self, span: StepSpan) -> bool:
        """Write one entry; False where the disk refuses."""
        with suppress(OSError):
            if self._file < 0:
                self._count = len(decode_spans(self._path.read_bytes())) if self._path.exists() else 0
                self._file = self._create(self._path, os.O_APPEND)
            if self._count >= MOST_ENTRIES:
                self._shorten()
            written = os.write(self._file, encode_span(span))
            self._count += 1
            return written == ENTRY_BYTES
        return False

    def _shorten(self) -> None:
        spans = shortened(decode_spans(self._path.read_bytes()))
        draft = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        file = self._create(draft, os.O_APPEND | os.O_TRUNC)
        try:
            content = b"".join(map(encode_span, spans))
            if os.write(file, content) < len(content):
                raise OSError("the disk is full")
            os.replace(draft, self._path)
        except OSError:
            os.close(file)
            draft.unlink(missing_ok=True)
            raise
        os.close(self._file)
        self._file, self._count = file, len(spans)

    def _create(self, path: Path, flags: int) -> int:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | portable.NOT_INHERITED | flags, 0o600)
        if (mode := file_mode(path.parent)) != 0o600:
            portable.set_mode(file, mode)  # whatever the umask
        return file
