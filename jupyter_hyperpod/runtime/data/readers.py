"""The readers of one rank: what its next micro-batches need is read ahead, by processes, in a bounded queue.

What they read is a function of (seed, step, micro-batch), so which of them reads it makes no difference, and what was
read stays good when the members change.
"""

from __future__ import annotations

import os
import select
import time
import weakref
from collections.abc import Sequence
from typing import Any

from ...core.errors import TrainingError
from ...core.units import plural
from . import transport
from .given import WorkerSettings
from .indexed import IndexedData
from .reader import Reader, end
from .reading import Reading

MOST_ENDS = 3  # of readers, over the same micro-batch
STALL_S = 1e-3  # a shorter wait is none
UNLIKE = (
    "two workers read {place} differently: worker_init_fn gives each worker something of its own, and which of them "
    "reads a sample changes with the members. Let what is read depend on the sample's index, not on the worker's number"
)


class Failed:
    """A micro-batch whose reading failed, with the traceback."""

    def __init__(self, text: str) -> None:
        self.text = text


class Readers:
    """``stalls``: micro-batches that were waited for, ``waited_s`` seconds together; ``lost``: readers that ended."""

    def __init__(self, data: IndexedData, settings: WorkerSettings) -> None:
        self._data, self._settings = data, settings
        self._readers: list[Reader] = []
        self._due: list[Reading] = []
        self._ready: dict[Reading, Any] = {}
        self._ends: dict[Reading, int] = {}
        self._both: Reading | None = None  # what two readers read that ``worker_init_fn`` may have made different
        self._seen: list[str] = []  # digests of their answers
        self.stalls, self.waited_s, self.lost = 0, 0.0, 0
        weakref.finalize(self, end, self._readers, os.getpid())

    @property
    def depth(self) -> int:
        """The most micro-batches that are read ahead."""
        return self._settings.count * self._settings.prefetch

    @property
    def ahead(self) -> int:
        """Micro-batches that are read and not used yet."""
        return len(self._ready)

    def expect(self, due: Sequence[Reading]) -> None:
        """These are computed next, in this order; what was read for others is dropped."""
        self._due = list(due)
        wanted = set(self._due)
        self._ready = {reading: value for reading, value in self._ready.items() if reading in wanted}
        self._collect(0.0)
        self._fill()

    def take(self, reading: Reading) -> Any:
        """The batch, or a `Failed`. Raises TrainingError where readers ended over it."""
        self._collect(0.0)
        if reading not in self._ready:
            if not any(reading in reader.sent for reader in self._all()):
                self._least().ask(reading)
            began_s = time.monotonic()
            while reading not in self._ready:
                self._collect(None, reading)
            waited_s = time.monotonic() - began_s
            self.stalls, self.waited_s = self.stalls + (waited_s > STALL_S), self.waited_s + waited_s
        value = self._ready.pop(reading)
        if reading in self._due:
            self._due.remove(reading)
        self._ends.pop(reading, None)
        self._fill()
        return value

    def restart(self) -> None:
        """Forget what was read, and the readers: the data has changed."""
        self._ready.clear()
        self._both, self._seen = None, []
        self.close()

    def close(self) -> None:
        """End all readers."""
        end(self._readers, os.getpid())

    def _all(self) -> list[Reader]:
        while len(self._readers) < self._settings.count:
            self._readers.append(self._begun(len(self._readers)))
        return self._readers

    def _begun(self, number: int) -> Reader:
        return Reader(self._data, number, self._settings.count, self._settings.begin)

    def _least(self) -> Reader:
        return min(self._all(), key=lambda reader: len(reader.sent))

    def _fill(self) -> None:
        """Ask for what is due and not asked for yet, as far as the queue has room."""
        asked = {reading for reader in self._all() for reading in reader.sent}
        room = self.depth - len(self._ready) - len(asked)
        for reading in self._due:
            if room <= 0:
                return
            if reading not in asked and reading not in self._ready:
                self._least().ask(reading)
                room -= 1
                self._compare(reading)

    def _compare(self, reading: Reading) -> None:
        """Let a second reader read the first micro-batch, too, where each of them has called ``worker_init_fn``."""
        if self._both is None and self._settings.begin is not None and self._settings.count > 1:
            self._both = reading
            min((r for r in self._all() if reading not in r.sent), key=lambda r: len(r.sent)).ask(reading)

    def _is_half(self, reading: Reading, value: Any) -> bool:
        """Whether another reader has still to read this. Raises TrainingError where it has read something else."""
        if reading != self._both or len(self._seen) > 1:
            return False
        self._seen.append(transport.fingerprint(value))
        if len(set(self._seen)) > 1:
            raise TrainingError(UNLIKE.format(place=reading.place))
        return any(reading in reader.sent for reader in self._readers)

    def _collect(self, timeout_s: float | None, wanted: Reading | None = None) -> None:
        """Receive what has arrived; wait for something where there is no timeout."""
        found = select.select(self._all(), [], [], timeout_s)[0]
        due = {*self._due, wanted}
        for reader in found:
            try:
                while reader.has_answer():
                    reading, kind, value = reader.answer()
                    half = kind != transport.ERROR and self._is_half(reading, value)
                    if reading in due and not half:
                        self._ready[reading] = Failed(value) if kind == transport.ERROR else value
            except EOFError:
                self._replace(reader)

    def _replace(self, reader: Reader) -> None:
        """A reader has ended: another one reads what this one was asked for. Raises TrainingError after several."""
        status, sent = reader.status(), list(reader.sent)
        self.lost += 1
        self._readers[self._readers.index(reader)] = fresh = self._begun(self._readers.index(reader))
        for reading in sent[:1]:
            self._ends[reading] = self._ends.get(reading, 0) + 1
            if self._ends[reading] >= MOST_ENDS:
                how = f"by signal {-status}" if status < 0 else f"with exit status {status}"
                raise TrainingError(
                    f"{plural(MOST_ENDS, 'worker')} that read the data ended {how} over {reading.place}. A signal 9 "
                    "may mean that the node has too little memory: fewer workers, or workers=0, which reads in the "
                    "step itself"
                )
        for reading in sent:
            fresh.ask(reading)
