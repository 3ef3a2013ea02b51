"""A few bytes shared by a worker and its agent, so that a beat costs no message: counter, phase, step; and a lease."""

from __future__ import annotations

import math
import mmap
import struct
import time

PHASES = ("idle", "user", "compute", "exchange", "closing", "done")
_LAYOUT = struct.Struct("<QQB")
_LEASE = struct.Struct("<d")
_LEASE_AT = 64
LEASE_POLL_S = 0.005


class Progress:
    """Created by the agent before it forks the worker. The worker writes, the agent reads; the lease the other way."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self._counter = 0
        self.allow(math.inf)

    def touch(self, phase: str, step: int) -> None:
        """Say that something moved: called by the worker at every micro-batch and every phase."""
        self._counter += 1
        _LAYOUT.pack_into(self._memory, 0, self._counter, step, PHASES.index(phase))

    def read(self) -> tuple[int, int, str]:
        """Return (counter, step, phase)."""
        counter, step, phase = _LAYOUT.unpack_from(self._memory, 0)
        return counter, step, PHASES[min(phase, len(PHASES) - 1)]

    def allow(self, until_s: float) -> None:
        """Let the worker journal until ``until_s`` (monotonic clock): called by the agent."""
        _LEASE.pack_into(self._memory, _LEASE_AT, until_s)

    def wait_until_allowed(self) -> None:
        """Return while the lease holds: called by the worker before it writes what others will believe."""
        while time.monotonic() > _LEASE.unpack_from(self._memory, _LEASE_AT)[0]:
            time.sleep(LEASE_POLL_S)
