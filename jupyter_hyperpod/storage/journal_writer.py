"""The writer of events that a full disk cannot stop. It never drops a fact; it drops samples, counts them and says so.

What the disk refuses waits in memory, in order, and is written when there is room again. `core.events.WAITING_SAMPLES`
says which kinds are samples: of those only `SAMPLES_LIMIT_BYTES` wait, the oldest are dropped first. Facts have no such
limit: beyond `FACTS_LIMIT_BYTES` the process says so on its standard error, and `crowded` is true. A process that can
stop making facts then has to: the step loop of a worker stands still until there is room. Facts
that wait are lost only with the process itself. At its end samples that still wait are dropped, and counted as well.
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
from .journal import Writer, event_writer

FACTS_LIMIT_BYTES = 64 << 20
SAMPLES_LIMIT_BYTES = 32 << 20
EVENT_BYTES = 300  # about what an event takes besides its texts
RETRY_S = 0.05
_Waiting = tuple[str, Mapping[str, Any], bool, int]  # kind, data, durable, size in bytes


class JournalWriter:
    """Writes the events of one process to `directory`; ``problem`` says why the disk refuses, or is empty.

    Not thread-safe: one per thread. The file is created with the first event.
    """

    def __init__(self, directory: Path, name: str) -> None:
        self.problem = ""
        self._directory = directory
        self._name = name
        self._writer: Writer[Event] | None = None
        self._waiting: deque[_Waiting] = deque()
        self._facts_bytes = self._samples_bytes = 0
        self._dropped = 0
        self._said_crowded = False

    @property
    def waiting(self) -> int:
        """How many facts wait for room."""
        return sum(kind not in WAITING_SAMPLES for kind, *_ in self._waiting)

    @property
    def crowded(self) -> bool:
        """True while more facts wait than should: whoever can wait, waits (`settle`) before the next one."""
        return self._facts_bytes > FACTS_LIMIT_BYTES

    def write(self, kind: str, data: Mapping[str, Any], *, durable: bool = False) -> bool:
        """Write an event after those that still wait; False where it has to wait itself.

        Raises ProtocolError for what no journal can hold; never for what the disk does.
        """
        size = _size(data)
        self._waiting.append((kind, data, durable, size))
        self._count(kind, size)
        written = self.flush()
        if not written:
            if self._samples_bytes > SAMPLES_LIMIT_BYTES:
                self._drop_samples(SAMPLES_LIMIT_BYTES // 2)  # half of what may wait, so that this is rare
            self._say_if_crowded()
        return written

    def flush(self) -> bool:
        """Try to write what waits, and how much was dropped; True when nothing is left."""
        try:
            while self._waiting:
                self._write_first()
            if self._dropped:
                were = "was" if self._dropped == 1 else "were"
                samples = f"{plural(self._dropped, 'sample')} (output, metrics) of {self._name}"
                text = f"{samples} {were} dropped: {self.problem}"
                self._open().append("warning.raised", {"text": text})
                self._dropped = 0
        except StoreError as error:
            self.problem = str(error)
            return False
        self.problem = ""
        self._said_crowded = False
        return True

    def settle(self, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Wait until every fact is on the disk, however long there is no room; ``meanwhile`` is called as time passes.

        Says on standard error what it waits for.
        """
        if self.flush() or not self.waiting:
            return
        self._say(f"waiting for room: {self.waiting} facts are not written yet")
        while self.waiting:
            time.sleep(RETRY_S)
            meanwhile()
            self.flush()

    def close(self) -> None:
        """Try once more; then without the samples, but with their number. Say what is lost, close the file."""
        if not self.flush():
            self._drop_samples(0)
            if not self.flush():
                samples = f"{plural(self._dropped, 'sample')} (output, metrics)"
                self._say(f"lost with this process: {plural(self.waiting, 'fact')} and {samples}")
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _open(self) -> Writer[Event]:
        if self._writer is None:
            self._writer = event_writer(self._directory, self._name)
        return self._writer

    def _write_first(self) -> None:
        kind, data, durable, size = self._waiting[0]
        try:
            self._open().append(kind, data, durable=durable)
        except ProtocolError:  # it must not stand in the way of those behind it
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
    """About as many bytes as a value takes, one level deep."""
    if isinstance(value, str):
        return len(value)
    return 16 * len(value) if isinstance(value, (list, tuple, dict)) else 0
