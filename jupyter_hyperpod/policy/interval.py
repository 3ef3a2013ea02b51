"""Decides how often to write a durable checkpoint."""

from __future__ import annotations

import math

from ..core.units import format_duration, plural
from .decision import Decision

AUTOMATIC = "automatic"  # the value with which a session leaves the interval to this policy
PRIOR_MTBF_S = 3600.0  # assumed until the first failure, or until the run has lasted longer without one
SHORTEST_S, LONGEST_S = 1.0, 3600.0
ASSUMED_BYTES_PER_S = 200e6  # the assumed speed of writing state until it has been measured


def daly_s(cost_s: float, mtbf_s: float) -> float:
    """The interval, from the end of one checkpoint to the beginning of the next, that loses the least time.

    (Daly, A higher order estimate of the optimum checkpoint interval for restart dumps, 2006, equation 37.)
    """
    if cost_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = cost_s / (2 * mtbf_s)
    return math.sqrt(2 * cost_s * mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost_s


def decide(
    failures: int, observed_s: float, paused_s: float | None, took_s: float | None, state_bytes: int
) -> Decision[float]:
    """Seconds from one checkpoint to the next, at least the time that writing one takes.

    ``failures`` in ``observed_s`` seconds of training; training stands still for ``paused_s`` while state is copied,
    and the checkpoint is complete ``took_s`` after it began; both None where nothing has been saved yet.
    """
    mtbf_s = observed_s / failures if failures else max(PRIOR_MTBF_S, observed_s)
    assumed_s = state_bytes / ASSUMED_BYTES_PER_S
    cost_s = assumed_s if paused_s is None else paused_s
    shortest_s = max(SHORTEST_S, assumed_s if took_s is None else took_s)
    best_s = daly_s(cost_s, mtbf_s)
    every_s = min(LONGEST_S, max(shortest_s, best_s))
    seen = f"observed over {plural(failures, 'failure')}" if failures else "assumed, no failure yet"
    cost = "is thought to cost" if paused_s is None else "costs"
    text = f"checkpoint every {format_duration(every_s)}: MTBF {format_duration(mtbf_s)} {seen}, "
    text += f"saving {cost} {format_duration(cost_s)}"
    if every_s > best_s:
        text += f"; not more often than every {format_duration(shortest_s)}"
    return Decision(every_s, text)


def worth_saying(before_s: float | None, after_s: float) -> bool:
    """Whether an interval differs enough from the present one to be a new decision."""
    return before_s is None or not 0.75 * before_s <= after_s <= before_s / 0.75
