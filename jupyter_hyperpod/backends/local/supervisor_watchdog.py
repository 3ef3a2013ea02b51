"""The supervisor's watchdog in the zygote: restarts the supervisor when it has died, and ends it first where it hangs.

A supervisor that connects says how it was started and which file it removes when it takes its leave. While that file is
there, an end of the connection means that it died.
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ...system.diagnostics import note
from ...system.json_lines import JsonLineChannel, Message
from ...system.processes import Identity, alive, is_stopped

SILENT_S = 10.0
STOPPED_S = 2.0
AWAY_S = 3.0  # between two looks: more than the zygote waits for requests
RESTARTS, WITHIN_S = 5, 60.0


class SupervisorWatchdog:
    """Watches the supervisor from the zygote. ``start(arguments)`` starts a new one. Times are on the monotonic clock.

    The new one is told when the old one was lost, in seconds since the Unix epoch.
    """

    def __init__(self, directory: Path, start: Callable[[list[str]], object]) -> None:
        self._directory = directory
        self._start = start
        self._channel: JsonLineChannel | None = None
        self._supervisor = Identity(0, 0)
        self._arguments: list[str] = []
        self._mark = ""
        self._since = ""  # the option by which it is told
        self._heard_s = 0.0
        self._looked_s = 0.0
        self._excused_s = 0.0  # since something was heard
        self._stood_s: float | None = None  # the last sign of life of one that is being ended
        self._started_s: deque[float] = deque(maxlen=RESTARTS)

    def heard(self, message: Message, channel: JsonLineChannel) -> None:
        """A supervisor said something: who it is, or only that it is there."""
        if message.get("successor"):
            self._channel, self._arguments, self._mark = channel, list(message["successor"]), str(message["mark"])
            self._supervisor = Identity(*message["supervisor"])
            self._since, self._stood_s = str(message.get("since", "")), None
        if channel is self._channel:
            self._heard_s, self._excused_s = time.monotonic(), 0.0

    def left(self, channel: JsonLineChannel) -> None:
        """A connection has ended: start the supervisor again, unless it took its leave or dies again and again."""
        if channel is not self._channel:
            return
        self._channel = None
        if not (self._directory / self._mark).exists():
            return
        now_s = time.monotonic()
        if len(self._started_s) == RESTARTS and now_s - self._started_s[0] < WITHIN_S:
            note(f"the supervisor died {RESTARTS} times within {WITHIN_S:g} s: it is not started again")
            return
        self._started_s.append(now_s)
        note(f"the supervisor (process {self._supervisor.pid}) died: starting it again")
        lost_s = time.time() - (now_s - (now_s if self._stood_s is None else self._stood_s))
        self._start([*self._arguments, *([f"{self._since}={lost_s:.6f}"] if self._since else [])])

    def check(self) -> None:
        """End a supervisor that stands still; its connection ends with it. Call it at least every other second."""
        now_s = time.monotonic()
        away_s, self._looked_s = now_s - self._looked_s, now_s
        if self._channel is None:
            return
        if away_s > AWAY_S:  # the whole machine may have stood still
            self._excused_s += min(away_s, now_s - self._heard_s)
        silent_s = now_s - self._heard_s - self._excused_s
        if silent_s > (STOPPED_S if is_stopped(self._supervisor.pid) else SILENT_S) and alive(self._supervisor):
            note(f"the supervisor (process {self._supervisor.pid}) was silent for {silent_s:.1f} s and is ended")
            with suppress(ProcessLookupError):
                os.kill(self._supervisor.pid, signal.SIGKILL)
            self._stood_s = self._heard_s if self._stood_s is None else self._stood_s
            self._heard_s, self._excused_s = now_s, 0.0
