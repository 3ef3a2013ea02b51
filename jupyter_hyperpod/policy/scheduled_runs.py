"""Decides what becomes of a time of a schedule: a run, or none, and why."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.units import format_duration, plural
from .decision import Decision

ONCE, NONE = "once", "none"
CATCH_UP = (ONCE, NONE)
SKIP, ALLOW = "skip", "allow"
OVERLAP = (SKIP, ALLOW)
RUN, LEAVE_OUT, WAIT = "run", "leave out", "wait"
ON_TIME_S = 120.0  # a supervisor that is restarted, or a busy machine, takes less


@dataclass(frozen=True, slots=True)
class TimesDue:
    """The times of a schedule that have come since the last one that was settled.

    ``newest_s``: the newest, None where there is none. ``count``: how many, at most `COUNTED`.
    """

    newest_s: float | None
    count: int


COUNTED = 1000


def decide(due: TimesDue, now_s: float, at: str, catch_up: str, overlap: str, unfinished: str) -> Decision[str]:
    """What becomes of the newest time that has come: `RUN`, `LEAVE_OUT`, or `WAIT` where none has.

    ``at``: that time in words. ``unfinished``: a run of the same schedule that has not ended, "" where there is none.
    Of several times that have come, only the newest counts.
    """
    if due.newest_s is None:
        return Decision(WAIT, "no time of it has come")
    late_s = now_s - due.newest_s
    times = f"{due.count:,}{' or more' if due.count >= COUNTED else ''} times were" if due.count > 1 else f"{at} was"
    missed = f"{times} missed, the last one by {format_duration(late_s)}" if late_s > ON_TIME_S else ""
    if missed and catch_up == NONE:
        return Decision(LEAVE_OUT, f"{missed}; --catch-up none leaves out what was missed")
    if unfinished and overlap == SKIP:
        return Decision(LEAVE_OUT, f"{unfinished} had not ended at {at}; --overlap skip starts no second run")
    if missed:
        return Decision(RUN, f"{missed}: one run makes up for that")
    if due.count > 1:
        return Decision(RUN, f"due at {at}; {plural(due.count - 1, 'earlier time')} had no run")
    return Decision(RUN, f"due at {at}")
