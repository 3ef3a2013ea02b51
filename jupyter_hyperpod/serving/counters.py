"""Counts a gateway's requests and the latency of its answers."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field

WINDOW_S = 10.0
LATENCIES_KEPT = 20_000


@dataclass
class RequestCounts:
    """``accepted`` requests end as ``answered``, ``failed`` (no replica could) or ``left`` (the client had gone)."""

    accepted: int = 0
    answered: int = 0
    failed: int = 0
    left: int = 0
    retried: int = 0
    refused: int = 0
    _latencies: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=LATENCIES_KEPT))

    def took(self, seconds: float) -> None:
        """A request was answered after ``seconds``."""
        self.answered += 1
        self._latencies.append((time.monotonic(), seconds))

    def recent(self) -> tuple[float, float | None, float | None]:
        """Answers per second over the last ten seconds, and the median and 99th percentile of their latency (s)."""
        since_s = time.monotonic() - WINDOW_S
        while self._latencies and self._latencies[0][0] < since_s:
            self._latencies.popleft()
        ordered = sorted(seconds for _, seconds in self._latencies)
        if not ordered:
            return 0.0, None, None
        return (
            len(ordered) / WINDOW_S,
            ordered[len(ordered) // 2],
            ordered[min(len(ordered) * 99 // 100, len(ordered) - 1)],
        )

    def counts(self) -> dict[str, int]:
        """The counters since the gateway started."""
        names = ("accepted", "answered", "failed", "left", "retried", "refused")
        return {name: getattr(self, name) for name in names}
