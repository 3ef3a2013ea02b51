"""Decides the state of a log rule for a rank, or for all ranks together. Time is an argument; matching happens
elsewhere.

WAITING, until something matches; HEALTHY; SLOW, when a metric was on the wrong side often enough in a row; HANGING,
when nothing matched for too long; FAULTED, when a forbidden line was printed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..core.rules import LogRule
from .decision import Decision

WAITING, HEALTHY, SLOW, HANGING, FAULTED = "WAITING", "HEALTHY", "SLOW", "HANGING", "FAULTED"
BROKEN = frozenset({HANGING, FAULTED})  # states that count as a fault


@dataclass(frozen=True, slots=True)
class Standing:
    """``since_s``: the time (seconds) of the job's start or of the last match, from which the rule measures."""

    state: str = WAITING
    since_s: float = 0.0
    bad_points: int = 0
    value: float | None = None
    stopped: bool = False


def matched(rule: LogRule, standing: Standing, group: str | None, now_s: float) -> Decision[Standing]:
    """A line matches the pattern; ``group`` is its first group, where the pattern has one."""
    if standing.stopped:
        return Decision(standing, f"{rule.name} is over")
    if rule.fault_on_match:
        return Decision(replace(standing, state=FAULTED, since_s=now_s), f"{rule.name}: a line that means a fault")
    value = number(group)
    standing = replace(standing, since_s=now_s, value=value)
    if value is None or rule.threshold is None:
        return Decision(replace(standing, state=HEALTHY, bad_points=0), f"{rule.name} was printed")
    if not rule.breaks(value):
        return Decision(replace(standing, state=HEALTHY, bad_points=0), f"{rule.name} is {value:g}")
    points = standing.bad_points + 1
    said = f"{rule.name} is {value:g}, {rule.operator} {rule.threshold:g} in {points} lines in a row"
    state = SLOW if points >= rule.data_points else HEALTHY if standing.state == WAITING else standing.state
    return Decision(replace(standing, state=state, bad_points=points), said)


def stopped(rule: LogRule, standing: Standing) -> Decision[Standing]:
    """A line matches the stop pattern: the rule is over for this rank."""
    return Decision(
        replace(standing, state=HEALTHY, stopped=True), f"{rule.name} is over: its stop pattern was printed"
    )


def looked(rule: LogRule, standing: Standing, now_s: float) -> Decision[Standing]:
    """Time passes without a match. The start cut-off limits the wait for the first one, the frequency for the next."""
    limit_s = rule.start_cutoff_s if standing.state == WAITING else rule.frequency_s
    silent_s = now_s - standing.since_s
    if standing.stopped or limit_s is None or silent_s <= limit_s or standing.state in BROKEN:
        return Decision(standing, "")
    what = "was not printed" if standing.state == WAITING else "was not printed again"
    said = f"{rule.name} {what} within {limit_s:g} s"
    return Decision(replace(standing, state=HANGING), said)


def number(text: str | None) -> float | None:
    """The metric in a group; None where it is no finite number."""
    try:
        value = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) else None
