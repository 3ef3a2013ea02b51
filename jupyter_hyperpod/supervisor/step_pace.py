"""When the supervisor's next step is due. With thousands of jobs and nodes a step takes long, and news come often."""

from __future__ import annotations

import time
from collections.abc import Callable

TICK_S, STANDBY_TICK_S = 0.25, 0.05
RESTS, LONGEST_REST_S = 9.0, 0.5  # times as long as a step took, before the next one; at most this


class StepPace:
    """A step follows news at once, or the one before after `TICK_S`, but steps take at most a tenth of the time."""

    def __init__(self) -> None:
        self._rest_until_s = 0.0
        self._news = False

    def patience_s(self, now_s: float) -> float:
        """How long to wait for news."""
        rest_s = max(0.0, self._rest_until_s - now_s)
        return rest_s if self._news else max(TICK_S, rest_s)

    def due(self, news: bool, now_s: float) -> bool:
        """Whether to take a step, after a wait that ended with ``news`` or without."""
        self._news = self._news or news
        return now_s >= self._rest_until_s

    def take(self, step: Callable[[], None]) -> None:
        """Take a step. What counts is the processor's time: a busy machine must not make steps rare."""
        self._news = False
        began_s = time.thread_time()
        step()
        self._rest_until_s = time.monotonic() + min(RESTS * (time.thread_time() - began_s), LONGEST_REST_S)
