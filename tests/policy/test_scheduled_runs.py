"""What becomes of a time of a schedule."""

from __future__ import annotations

import pytest

from jupyter_hyperpod.policy.scheduled_runs import LEAVE_OUT, ON_TIME_S, RUN, WAIT, TimesDue, decide

NOW_S = 1_000_000.0
ONE, LATE, MANY = TimesDue(NOW_S - 3, 1), TimesDue(NOW_S - 3600, 1), TimesDue(NOW_S - 3600, 24)


@pytest.mark.parametrize(
    ("due", "catch_up", "overlap", "unfinished", "value", "said"),
    [
        (TimesDue(None, 0), "once", "skip", "", WAIT, "no time of it has come"),
        (ONE, "none", "skip", "", RUN, "due at 06:30"),
        (ONE, "once", "skip", "job-a", LEAVE_OUT, "job-a had not ended at 06:30; --overlap skip starts no second run"),
        (ONE, "once", "allow", "job-a", RUN, "due at 06:30"),
        (LATE, "once", "skip", "", RUN, "06:30 was missed, the last one by 1 h: one run makes up for that"),
        (LATE, "none", "skip", "", LEAVE_OUT, "06:30 was missed, the last one by 1 h; --catch-up none leaves out"),
        (MANY, "once", "skip", "", RUN, "24 times were missed, the last one by 1 h: one run makes up for that"),
        (MANY, "once", "skip", "job-a", LEAVE_OUT, "job-a had not ended"),
        (TimesDue(NOW_S - 1, 1000), "once", "skip", "", RUN, "due at 06:30; 999 earlier times had no run"),
        (TimesDue(NOW_S - 1, 2), "none", "skip", "", RUN, "due at 06:30; 1 earlier time had no run"),
    ],
)
def test_what_becomes_of_a_time(
    due: TimesDue, catch_up: str, overlap: str, unfinished: str, value: str, said: str
) -> None:
    decision = decide(due, NOW_S, "06:30", catch_up, overlap, unfinished)
    assert decision.value == value and said in decision.reason


def test_a_time_is_on_time_for_a_while() -> None:
    """A supervisor that is started again, or a busy machine, does not make a time a missed one."""
    assert decide(TimesDue(NOW_S - ON_TIME_S, 1), NOW_S, "06:30", "none", "skip", "").value == RUN
    assert decide(TimesDue(NOW_S - ON_TIME_S - 1, 1), NOW_S, "06:30", "none", "skip", "").value == LEAVE_OUT
