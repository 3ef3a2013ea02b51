"""Fetches many chunks at once, with a few threads that block in the kernel. The first error ends all of them.

Threads are added while they raise the rate (`pace`). Once no chunk is left to start, idle threads request chunks again
that take much longer than others did. The first reader wins, and the other has stopped before the load returns. Where
both wrote to the same memory, the chunk is verified once more (`reverify`).
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal

from . import pace
from .http_connection import Cancel, Cancelled
from .plan import Chunk
from .progress import Callback, Meter
from .source import Counters

Outcome = Literal["read", "found", "busy"]  # found: it had arrived already; busy: a peer is reading it, retry
Fetch = Callable[[Chunk, Cancel], Outcome]
Reverify = Callable[[Chunk], None]
TICK_S = 0.05
AGAIN_S = 0.01
TELL_S = 0.1
LIMIT = 64
SAMPLES = 32


def first_connections(sharers: int = 1) -> int:
    """Connections until the first block has arrived: few, so that it does not compete with other chunks.

    Processes that share a load share these, too.
    """
    return max(1, max(3, min(16, 1 + (os.cpu_count() or 1))) // sharers)


@dataclass
class _Task:
    chunk: Chunk
    began_s: float = 0.0
    again_s: float = 0.0
    done: bool = False
    readers: list[Cancel] = field(default_factory=list)


class Stream:
    """One load: `run` returns when every chunk has been fetched, or raises the first error with all threads ended."""

    def __init__(
        self,
        chunks: Sequence[Chunk],
        fetch: Fetch,
        meter: Meter,
        counters: Counters,
        connections: int | None = None,
        progress: Callback | None = None,
        sharers: int = 1,
        reverify: Reverify | None = None,
    ) -> None:
        self._waiting = deque(_Task(chunk) for chunk in chunks)
        self._with_peers: deque[_Task] = deque()
        self._fetch = fetch
        self._reverify = reverify
        self._meter = meter
        self._counters = counters
        self._progress = progress
        self._changed = threading.Condition()
        self._running: list[_Task] = []
        self._left = len(self._waiting)
        self._error: BaseException | None = None
        self._stopping = False
        self._durations: deque[float] = deque(maxlen=SAMPLES)
        self._threads: list[threading.Thread] = []
        self._busy = 0
        start = first_connections(sharers) if connections is None else connections
        self._pace = pace.Pace(start, LIMIT if connections is None else connections)

    def run(self) -> None:
        """Fetch everything; `progress` is called from this thread. Raises LoaderError."""
        try:
            self._staff()
            self._watch()
        except BaseException as error:
            self._stop(error)
            raise
        finally:
            for thread in self._threads:
                thread.join()
        if self._error is not None:
            raise self._error
        self._tell()

    # ---- the caller's thread -----------------------------------------------------------------------------------

    def _watch(self) -> None:
        told_s = window_s = time.monotonic()
        before, refused = self._counters.fetched, self._counters.throttled
        widened = False
        while True:
            with self._changed:
                if self._stopping or not self._left:
                    return
                self._changed.wait(TICK_S)
            now_s = time.monotonic()
            if not widened and self._meter.first_block:
                widened = True
                self._pace = pace.widen(self._pace)
                self._staff()
            if now_s - told_s >= TELL_S:
                told_s = now_s
                self._tell()
            if now_s - window_s >= pace.WINDOW_S and self._waiting:
                fetched, throttled = self._counters.fetched, self._counters.throttled
                rate = (fetched - before) / (now_s - window_s)
                self._pace = pace.adjust(self._pace, rate, throttled - refused)
                window_s, before, refused = now_s, fetched, throttled
                self._staff()

    def _staff(self) -> None:
        wanted = min(self._pace.connections, self._left)
        while len(self._threads) < wanted:
            name = f"load-{len(self._threads)}"
            thread = threading.Thread(target=self._work, args=(len(self._threads),), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _tell(self) -> None:
        if self._progress is not None:
            self._progress(self._meter.read(self._counters.fetched, self._counters.retries))

    def _stop(self, error: BaseException) -> None:
        with self._changed:
            if self._error is None:
                self._error = error
            self._stopping = True
            readers = [reader for task in self._running for reader in task.readers]
            self._changed.notify_all()
        for reader in readers:
            reader.cancel()

    # ---- the workers -------------------------------------------------------------------------------------------

    def _work(self, number: int) -> None:
        while (found := self._next(number)) is not None:
            task, cancel = found
            try:
                outcome = self._fetch(task.chunk, cancel)
            except BaseException as error:
                if self._leave(task, cancel):
                    self._lost(task.chunk)
                elif not isinstance(error, Cancelled):
                    self._stop(error)
            else:
                if outcome == "busy":
                    self._ask_again(task, cancel)
                else:
                    self._finish(task, cancel, outcome)

    def _next(self, number: int) -> tuple[_Task, Cancel] | None:
        """Wait for the next task and return it; None when this thread is not needed any more."""
        with self._changed:
            while True:
                if self._stopping or not self._left:
                    return None
                now_s = time.monotonic()
                task = self._late(now_s)
                if number < self._pace.connections and (queue := self._queue(now_s)):
                    task = queue.popleft()
                    task.began_s = now_s
                    self._running.append(task)
                if task is not None:
                    cancel = Cancel()
                    task.readers.append(cancel)
                    return task, cancel
                self._changed.wait(AGAIN_S if self._with_peers else TICK_S)

    def _queue(self, now_s: float) -> deque[_Task]:
        """The queue of the next task: chunks that peers were reading come first, once they may have arrived."""
        due = self._with_peers and self._with_peers[0].again_s <= now_s
        return self._with_peers if due else self._waiting

    def _ask_again(self, task: _Task, cancel: Cancel) -> None:
        with self._changed:
            task.readers.remove(cancel)
            if not task.readers and not task.done:
                self._running.remove(task)
                task.again_s = time.monotonic() + AGAIN_S
                self._with_peers.append(task)

    def _late(self, now_s: float) -> _Task | None:
        if self._waiting or not self._running or not self._durations:
            return None
        usual_s = statistics.median(self._durations)
        alone = [task for task in self._running if len(task.readers) == 1]
        slowest = min(alone, key=attrgetter("began_s"), default=None)
        return slowest if slowest and pace.should_hedge(now_s - slowest.began_s, usual_s) else None

    def _leave(self, task: _Task, cancel: Cancel) -> bool:
        """Give up reading; True where another reader has fetched the chunk."""
        with self._changed:
            task.readers.remove(cancel)
            return task.done

    def _lost(self, chunk: Chunk) -> None:
        """A second reader has ended in the middle of a chunk that had already arrived."""
        try:
            if self._reverify is not None:
                self._reverify(chunk)
        except BaseException as error:
            self._stop(error)

    def _finish(self, task: _Task, cancel: Cancel, outcome: Outcome) -> None:
        with self._changed:
            task.readers.remove(cancel)
            first = not task.done
            losers = list(task.readers) if first else []
            if first:
                task.done = True
                self._running.remove(task)
                if outcome == "read":
                    self._durations.append(time.monotonic() - task.began_s)
        for loser in losers:
            loser.cancel()
        if first:
            self._meter.add(task.chunk)
            with self._changed:
                self._left -= 1
                if not self._left:
                    self._changed.notify_all()
