"""Writes events even while the disk is full: facts wait in memory, samples may be dropped and are counted.

Events that the disk refuses wait in memory, in order, until there is room. `core.events.WAITING_SAMPLES` says which
kinds are samples: at most `SAMPLES_LIMIT_BYTES` of them wait, the oldest are dropped first. Facts are never dropped:
beyond `FACTS_LIMIT_BYTES` the process reports it on standard error, and `crowded` is true. A process that can then has
to stop producing facts: the step loop of a worker stops until there is room. Waiting facts are lost only with the
process itself. When the process ends, waiting samples are dropped and counted.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..core.errors import ProtocolError, StoreError
from ..core.events import WAITING_SAMPLES, Event
from ..core.units import plural
from .journal import RecordWriter, event_writer
from .room import write_event
from .segments import SEGMENT_BYTES

FACTS_LIMIT_BYTES = 64 << 20
SAMPLES_LIMIT_BYTES = 32 << 20
EVENT_BYTES = 300  # about the size of an event without its texts
RETRY_S = 0.05
CLOCKS_AGREE_S = 1.0  # hosts that differ by less are left as they are
_Waiting = tuple[str, Mapping[str, Any], bool, int]  # kind, data, durable, size in bytes


class JournalWriter:
    """Writes the events of one process to `directory`; ``problem`` is the disk's error, or empty.

    Not thread-safe: one per thread. The file is created with the first event; another follows when it is full.
    """

    def __init__(
        self,
        directory: Path,
        name: str,
        segment_bytes: int = SEGMENT_BYTES,
        warn: Callable[[str], object] | None = None,
    ) -> None:
        """``warn`` journals how many samples were dropped; where None, that is done here."""
        self.problem = ""
        self._segment_bytes = segment_bytes
        self._warn = warn or self._warn_here
        self._directory = directory
        self._name = name
        self._writer: RecordWriter[Event] | None = None
        self._waiting: deque[_Waiting] = deque()
        self._facts_bytes = self._samples_bytes = 0
        self._dropped = self._written = 0  # the latter in files that are closed
        self._said_crowded = False
        self._ahead_s = 0.0

    def follow(self, time_s: float) -> None:
        """The first event comes after ``time_s`` (Unix epoch): the clock of the host before this one may be ahead.

        Journals are merged by time, so what a successor writes must not seem to be older.
        """
        behind_s = time_s - time.time()
        self._ahead_s = behind_s if behind_s > CLOCKS_AGREE_S else 0.0

    @property
    def last_s(self) -> float:
        """The time of the event written last, 0 before the first."""
        return self._writer.last_s if self._writer is not None else 0.0

    @property
    def written(self) -> int:
        """The number of bytes written."""
        return self._written + (self._writer.written if self._writer is not None else 0)

    @property
    def path(self) -> Path | None:
        """The present file, None before the first event."""
        return self._writer.path if self._writer is not None else None

    @property
    def waiting(self) -> int:
        """The number of facts that wait for room."""
        return sum(kind not in WAITING_SAMPLES for kind, *_ in self._waiting)

    @property
    def crowded(self) -> bool:
        """True while too many facts wait: a caller that can wait calls `settle` before the next fact."""
        return self._facts_bytes > FACTS_LIMIT_BYTES

    def write(self, kind: str, data: Mapping[str, Any], *, durable: bool = False) -> bool:
        """Write an event after the waiting ones; False where it has to wait, too.

        Raises ProtocolError for an event that no journal can hold; errors of the disk are not raised.
        """
        size = _size(data)
        self._waiting.append((kind, data, durable, size))
        self._count(kind, size)
        written = self.flush()
        if not written:
            if self._samples_bytes > SAMPLES_LIMIT_BYTES:
                self._drop_samples(SAMPLES_LIMIT_BYTES // 2)  # down to half the limit, so that this is rare
            self._say_if_crowded()
        return written

    def write_end(self, root: Path, kind: str, data: Mapping[str, Any]) -> bool:
        """Write the event that says how something ended, on a full disk with the room kept aside in the store ``root``.

        So it may come before events that wait; False where it has to wait, too.
        """
        if self.write(kind, data):
            return True
        if not write_event(root, self._directory, self._name, kind, data):
            return False
        self._waiting.pop()
        self._count(kind, -_size(data))
        return True

    def flush(self) -> bool:
        """Try to write the waiting events and the number of dropped samples; True when nothing waits any more."""
        try:
            while self._waiting:
                self._write_first()
            if self._dropped:
                were = "was" if self._dropped == 1 else "were"
                samples = f"{plural(self._dropped, 'sample')} (output, metrics) of {self._name}"
                text = f"{samples} {were} dropped: {self.problem}"
                self._warn(text)
                self._dropped = 0
        except StoreError as error:
            self.problem = str(error)
            return False
        self.problem = ""
        self._said_crowded = False
        return True

    def settle(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Wait until every fact is on the disk, without a time limit; ``meanwhile`` is called while waiting.

        Reports on standard error why it waits.
        """
        if self.flush() or not self.waiting:
            return
        self._say(f"waiting for room: {self.waiting} facts are not written yet")
        while self.waiting:
            time.sleep(RETRY_S)
            meanwhile()
            self.flush()

    def close(self) -> None:
        """Try once more; then drop the samples and write their number. Report the losses and close the file."""
        if not self.flush():
            self._drop_samples(0)
            if not self.flush():
                samples = f"{plural(self._dropped, 'sample')} (output, metrics)"
                self._say(f"lost with this process: {plural(self.waiting, 'fact')} and {samples}")
        self._close_file()

    def rest(self) -> None:
        """Close the file, unless something waits: nothing comes for a while. The next event begins another file."""
        if self.flush():
            self._close_file()

    def _close_file(self) -> None:
        if self._writer is not None:
            self._written += self._writer.written
            self._writer.close()
            self._writer = None

    def _open(self) -> RecordWriter[Event]:
        if self._writer is None:
            self._writer = event_writer(self._directory, self._name, self._segment_bytes, self._now_s)
        return self._writer

    def _now_s(self) -> float:
        return time.time() + self._ahead_s

    def _warn_here(self, text: str) -> None:
        self._open().append("warning.raised", {"text": text})

    def _write_first(self) -> None:
        kind, data, durable, size = self._waiting[0]
        try:
            self._open().append(kind, data, durable=durable)
        except ProtocolError:  # it must not block the events behind it
            self._forget_first(kind, size)
            raise
        self._forget_first(kind, size)

    def _forget_first(self, kind: str, size: int) -> None:
        self._waiting.popleft()
        self._count(kind, -size)

    def _count(self, kind: str, size: int) -> None:
        if kind in WAITING_SAMPLES:
            self._samples_bytes += size
        else:
            self._facts_bytes += size

    def _drop_samples(self, kept_bytes: int) -> None:
        """Drop the oldest until at most `kept_bytes` of samples wait."""
        kept: deque[_Waiting] = deque()
        for entry in self._waiting:
            kind, _, _, size = entry
            if kind in WAITING_SAMPLES and self._samples_bytes > kept_bytes:
                self._samples_bytes -= size
                self._dropped += 1
            else:
                kept.append(entry)
        self._waiting = kept

    def _say_if_crowded(self) -> None:
        if self.crowded and not self._said_crowded:
            self._said_crowded = True
            megabytes = self._facts_bytes / 1e6
            self._say(f"{self.waiting} facts ({megabytes:.0f} MB) wait in memory and will not be dropped: make room")

    def _say(self, text: str) -> None:
        with suppress(OSError):  # the log may be on the same disk
            print(f"{self._name} (process {os.getpid()}): {self.problem}; {text}", file=sys.stderr, flush=True)


def _size(data: Mapping[str, Any]) -> int:
    return EVENT_BYTES + sum(_length(value) for value in data.values())


def _length(value: Any) -> int:
    """About the size of a value in bytes, one level deep."""
    if isinstance(value, str):
        return len(value)
    return 16 * len(value) if isinstance(value, (list, tuple, dict)) else 0
