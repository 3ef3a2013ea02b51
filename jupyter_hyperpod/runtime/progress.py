"""Memory shared by a worker and its agent: phase, step and pace of the worker, and its lease. It saves messages."""

from __future__ import annotations

import math
import mmap
import operator
import struct
import time

PHASES = ("idle", "user", "compute", "exchange", "closing", "done", "warm-up")
_LAYOUT = struct.Struct("<QQB")
_LEASE = struct.Struct("<d")
_LEASE_AT = 64
_PACE = struct.Struct("<dQ")
_PACE_AT = 192
LEASE_POLL_S = 0.005
_TIMES = struct.Struct("<Qddd")
_TIMES_AT = 320
_STEP = struct.Struct("<QQ")
_STEP_AT = 256
_WORDS = slice(128, 144)  # of an elastic event: its call number and its state; number of calls so far
NONE, PROPOSED, FINAL = range(3)
UNDECIDED_S = 0.001


class WorkerProgress:
    """Created by the agent before it forks the worker. The worker writes, the agent reads; the lease the other way."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self._counter = 0
        self.allow(math.inf)
        self._words = memoryview(self._memory)[_WORDS].cast("Q")  # written and read atomically

    def touch(self, phase: str, step: int) -> None:
        """Record progress: called by the worker at every micro-batch and every phase."""
        self._counter += 1
        _LAYOUT.pack_into(self._memory, 0, self._counter, step, PHASES.index(phase))

    def read(self) -> tuple[int, int, str]:
        """Return (counter, step, phase)."""
        counter, step, phase = _LAYOUT.unpack_from(self._memory, 0)
        return counter, step, PHASES[min(phase, len(PHASES) - 1)]

    def begin_step(self, session: int, step: int) -> None:
        """Record the session and the step that begin, both from 1: called by the worker."""
        _STEP.pack_into(self._memory, _STEP_AT, session, step)

    def under_way(self) -> tuple[int, int]:
        """Return (session, step) of the step that began last; zeros before the first."""
        session, step = _STEP.unpack_from(self._memory, _STEP_AT)
        return session, step

    def show_pace(self, step: int, seconds: float) -> None:
        """Record how long a micro-batch of ``step`` took on average: called by the worker."""
        _PACE.pack_into(self._memory, _PACE_AT, seconds, step)

    def pace(self) -> tuple[int, float]:
        """Return (step, seconds per micro-batch of it); step 0 before the first."""
        seconds, step = _PACE.unpack_from(self._memory, _PACE_AT)
        return step, seconds

    def add_step(self, compute_s: float, exchange_s: float, waits_s: float) -> None:
        """Count a step, and what it took of this member: called by the worker."""
        steps, *times = _TIMES.unpack_from(self._memory, _TIMES_AT)
        more = (compute_s, exchange_s, waits_s)
        _TIMES.pack_into(self._memory, _TIMES_AT, steps + 1, *map(operator.add, times, more))

    def times(self) -> tuple[int, float, float, float]:
        """Return the number of steps so far, and the seconds that they computed, exchanged, and waited for others."""
        steps, compute_s, exchange_s, waits_s = _TIMES.unpack_from(self._memory, _TIMES_AT)
        return steps, compute_s, exchange_s, waits_s

    def allow(self, until_s: float) -> None:
        """Let the worker journal until ``until_s`` (monotonic clock): called by the agent."""
        _LEASE.pack_into(self._memory, _LEASE_AT, until_s)

    def wait_until_allowed(self) -> None:
        """Wait until the lease holds: called by the worker before it writes facts."""
        while time.monotonic() > _LEASE.unpack_from(self._memory, _LEASE_AT)[0]:
            time.sleep(LEASE_POLL_S)

    def call(self) -> bool:
        """Count a call of elastic_event_detected() and return its answer; waits while that is undecided."""
        calls = self._words[1] + 1
        self._words[1] = calls
        self.touch("user", calls)
        while True:
            at, known = divmod(self._words[0], 4)
            if known == NONE or calls < at:
                return False
            if known == FINAL:
                return True
            time.sleep(UNDECIDED_S)

    @property
    def calls(self) -> int:
        """Calls of elastic_event_detected() so far."""
        return int(self._words[1])

    @property
    def detected(self) -> bool:
        """Whether a call has returned True."""
        at, known = divmod(self._words[0], 4)
        return bool(known == FINAL and self._words[1] >= at)

    def propose(self, at: int) -> bool:
        """Let call number ``at`` and all later ones wait for `decide`; False, without effect, where it has already
        happened.

        The worker counts, then reads the proposal; the agent writes the proposal, then reads the count. So at least one
        sees the other's write. The pause lets both writes become visible.
        """
        self._words[0] = at * 4 + PROPOSED
        time.sleep(UNDECIDED_S)
        if self._words[1] < at:
            return True
        self._words[0] = NONE
        return False

    def decide(self, at: int) -> None:
        """Call ``at`` and all later ones return True; 0: there is no event."""
        self._words[0] = at * 4 + FINAL if at else NONE
