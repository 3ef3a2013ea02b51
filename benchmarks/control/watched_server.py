"""A Jupyter server whose event loop is watched: how long each callback occupies it.

``python -m benchmarks.control.watched_server [options of jupyter server]``. A line on standard input asks: ``reset``
forgets what was seen, ``report`` answers with a line of JSON on standard output. The product is not changed for it.
"""

from __future__ import annotations

import asyncio.events
import gc
import json
import math
import sys
import threading
import time
from typing import Any

LONG_S = 0.005
NAMED = 5


class Watch:
    """What occupied the loop: all times in seconds, and the names of the longest."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self._took_s: list[float] = []
        self._most_cpu_s = self._longest_collection_s = 0.0
        self._long: list[tuple[float, float, str]] = []

    def note(self, took_s: float, cpu_s: float, handle: asyncio.events.Handle) -> None:
        self._took_s.append(took_s)
        self._most_cpu_s = max(self._most_cpu_s, cpu_s)
        if took_s > LONG_S:
            self._long.append((took_s, cpu_s, _name(handle)))

    def collecting(self, phase: str, _: object) -> None:
        """Called by the interpreter as it begins and ends to collect garbage, in whichever thread."""
        if phase == "start":
            self._collecting_s = time.thread_time()
        else:
            took_s = time.thread_time() - self._collecting_s
            self._longest_collection_s = max(self._longest_collection_s, took_s)

    def report(self) -> dict[str, Any]:
        took_s = sorted(self._took_s)
        p99_s = took_s[max(0, math.ceil(0.99 * len(took_s)) - 1)] if took_s else 0.0
        longest = sorted(self._long, reverse=True)
        return {
            "callbacks": len(took_s),
            "longest_s": took_s[-1] if took_s else 0.0,
            "longest_cpu_s": self._most_cpu_s,
            "p99_s": p99_s,
            "longest_collection_s": self._longest_collection_s,
            "busy_s": sum(took_s),
            "longest": [[took_s, cpu_s, name] for took_s, cpu_s, name in longest[:NAMED]],
        }


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
        began_s, cpu_s = time.perf_counter(), time.thread_time()
        run(handle)
        if threading.get_ident() == main:
            watch.note(time.perf_counter() - began_s, time.thread_time() - cpu_s, handle)

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
