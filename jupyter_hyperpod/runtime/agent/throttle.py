"""Takes CPU time from a worker: its agent stops and continues it many times per second.

A quota of a control group would do the same, but usually needs privileges; this works everywhere. Sleeping costs no CPU
time, so only computing becomes slower.
"""

from __future__ import annotations

import signal

from .replica_processes import ReplicaProcesses
from .worker_process import WorkerProcess

PERIOD_S = 0.04


class Throttle:
    """Lets ``process`` run for one part in ``factor`` of each period, until ``until_s`` on the monotonic clock."""

    def __init__(self, process: WorkerProcess | ReplicaProcesses, factor: float, until_s: float) -> None:
        self._process = process
        self._running_s = PERIOD_S / factor
        self._until_s = until_s
        self._running = True
        self._next_s = 0.0

    def tick(self, now_s: float) -> float | None:
        """Stop or continue the worker where it is time to; return the seconds until it is again, None at the end."""
        if now_s >= self._until_s:
            self.end()
            return None
        if now_s >= self._next_s:
            self._running = not self._running
            self._process.signal(signal.SIGCONT if self._running else signal.SIGSTOP)
            self._next_s = now_s + (self._running_s if self._running else PERIOD_S - self._running_s)
        return self._next_s - now_s

    def end(self) -> None:
        """Let the worker run."""
        self._process.signal(signal.SIGCONT)
