"""A Jupyter server whose event loop is watched: how long each callback occupies it, and what it waited for.

``python -m benchmarks.control.watched_server [options of jupyter server]``. A line on standard input asks: ``reset``
forgets what was seen, ``report`` answers with a line of JSON on standard output. The product is not changed for it.
"""

from __future__ import annotations

import asyncio.events
import gc
import heapq
import json
import math
import resource
import sys
import threading
import time
from dataclasses import dataclass
from typing import Any

LONG_S = 0.005
NAMED = 5
SHORTEST_S, GROWTH, BUCKETS = 1e-6, 1.02, 1000  # from 1 µs to 400 s, each bucket 2 % longer than the one before


@dataclass(frozen=True, slots=True)
class Moment:
    """What the clocks say: times in seconds, and how often the thread gave its core away or was deprived of it."""

    time_s: float
    own_s: float  # processor time of this thread
    all_s: float  # that of all threads
    waits: int
    preemptions: int

    @classmethod
    def now(cls) -> Moment:
        used = resource.getrusage(resource.RUSAGE_THREAD)
        return cls(time.perf_counter(), time.thread_time(), time.process_time(), used.ru_nvcsw, used.ru_nivcsw)


class Watch:
    """What occupied the loop, in memory that does not grow: it would count as the server's."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._counts = [0] * BUCKETS
        self._longest_s = self._most_cpu_s = self._busy_s = self._longest_collection_s = 0.0
        self._longest: list[dict[str, Any]] = []

    def note(self, before: Moment, after: Moment, handle: asyncio.events.Handle) -> None:
        took_s, cpu_s = after.time_s - before.time_s, after.own_s - before.own_s
        self._counts[_bucket(took_s)] += 1
        self._busy_s += took_s
        self._longest_s, self._most_cpu_s = max(self._longest_s, took_s), max(self._most_cpu_s, cpu_s)
        if took_s > LONG_S:
            found: dict[str, Any] = {"took_s": took_s, "cpu_s": cpu_s, "others_s": after.all_s - before.all_s - cpu_s}
            found |= {"waits": after.waits - before.waits, "preemptions": after.preemptions - before.preemptions}
            found |= {"name": _name(handle)}
            self._longest = heapq.nlargest(NAMED, [*self._longest, found], key=lambda one: one["took_s"])

    def collecting(self, phase: str, _: object) -> None:
        """Called by the interpreter as it begins and ends to collect garbage, in whichever thread."""
        if phase == "start":
            self._collecting_s = time.thread_time()
        else:
            took_s = time.thread_time() - self._collecting_s
            self._longest_collection_s = max(self._longest_collection_s, took_s)

    def report(self) -> dict[str, Any]:
        return {
            "callbacks": sum(self._counts),
            "longest_s": self._longest_s,
            "longest_cpu_s": self._most_cpu_s,
            "p99_s": min(_quantile(self._counts, 0.99), self._longest_s),
            "longest_collection_s": self._longest_collection_s,
            "busy_s": self._busy_s,
            "longest": self._longest,
        }


def _bucket(took_s: float) -> int:
    return min(BUCKETS - 1, max(0, math.ceil(math.log(max(took_s, SHORTEST_S) / SHORTEST_S, GROWTH))))


def _quantile(counts: list[int], share: float) -> float:
    """The upper end of the bucket with this quantile, in seconds: at most 2 % too much."""
    wanted, so_far = share * sum(counts), 0
    for bucket, count in enumerate(counts):
        so_far += count
        if so_far >= wanted:
            return SHORTEST_S * GROWTH**bucket
    return 0.0


def _name(handle: Any) -> str:
    """The coroutine or function of a callback."""
    callback = handle._callback
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return str(getattr(owner.get_coro(), "__qualname__", owner))
    while hasattr(callback, "func"):
        callback = callback.func
    return str(getattr(callback, "__qualname__", callback))


def watch_loop() -> Watch:
    """Time every callback of the main thread's event loop from now on."""
    handles: Any = asyncio.events.Handle
    watch, run, main = Watch(), handles._run, threading.main_thread().ident

    def timed(handle: asyncio.events.Handle) -> None:
        before = Moment.now()
        run(handle)
        if threading.get_ident() == main:
            watch.note(before, Moment.now(), handle)

    handles._run = timed
    gc.callbacks.append(watch.collecting)
    return watch


def answer(watch: Watch) -> None:
    """Answer the lines of standard input until it ends."""
    for line in sys.stdin:
        if line.strip() == "reset":
            watch.reset()
        print(json.dumps(watch.report()), flush=True)


if __name__ == "__main__":
    threading.Thread(target=answer, args=(watch_loop(),), daemon=True).start()
    from jupyter_server.serverapp import main

    main()
