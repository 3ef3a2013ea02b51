"""The supervisor's steps: soon after news, regularly without, and in a large cluster a tenth of the time at most."""

from __future__ import annotations

import time

from jupyter_hyperpod.supervisor.step_pace import LONGEST_REST_S, RESTS, TICK_S, StepPace


def busy(cpu_s: float) -> None:
    until_s = time.thread_time() + cpu_s
    while time.thread_time() < until_s:
        pass


def test_a_step_that_costs_nothing_follows_news_at_once() -> None:
    pace = StepPace()
    pace.take(lambda: None)
    now = time.monotonic() + 0.01
    assert pace.patience_s(now) == TICK_S
    assert pace.due(True, now) and pace.due(False, now)


def test_a_costly_step_rests_and_news_are_not_forgotten_meanwhile() -> None:
    pace = StepPace()
    pace.take(lambda: busy(0.02))
    now = time.monotonic()
    assert not pace.due(True, now), "the last step has just taken 20 ms"
    assert 0.0 < pace.patience_s(now) <= RESTS * 0.03 < TICK_S + 0.1, "the news wait for no longer than the rest"
    assert pace.due(False, now + RESTS * 0.1)
    pace.take(lambda: None)
    assert pace.patience_s(time.monotonic() + 0.01) == TICK_S, "they have been attended to"


def test_a_rest_is_short_enough_for_the_watchdog_of_coordinators() -> None:
    pace = StepPace()
    pace.take(lambda: busy(0.15))
    assert pace.patience_s(time.monotonic()) <= LONGEST_REST_S < 1.0
