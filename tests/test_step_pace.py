"""The supervisor's steps: soon after news, regularly without, and in a large cluster a tenth of the time at most."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import pytest

from jupyter_hyperpod.supervisor import step_pace
from jupyter_hyperpod.supervisor.step_pace import LONGEST_REST_S, RESTS, TICK_S, StepPace


class Machine:
    """A machine on which a step needs so much of the processor, and others take as much time again and again."""

    def __init__(self) -> None:
        self.now_s, self.used_s = 1000.0, 5.0

    def busy(self, cpu_s: float) -> Callable[[], None]:
        def step() -> None:
            self.used_s += cpu_s
            self.now_s += 10 * cpu_s

        return step


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    clocks = SimpleNamespace(monotonic=lambda: made.now_s, thread_time=lambda: made.used_s)
    monkeypatch.setattr(step_pace, "time", clocks)
    return made


def test_a_step_that_costs_nothing_follows_news_at_once(machine: Machine) -> None:
    pace = StepPace()
    pace.take(machine.busy(0.0))
    now = machine.now_s + 0.01
    assert pace.patience_s(now) == TICK_S
    assert pace.due(True, now) and pace.due(False, now)


def test_a_costly_step_rests_and_news_are_not_forgotten_meanwhile(machine: Machine) -> None:
    pace = StepPace()
    pace.take(machine.busy(0.02))
    now = machine.now_s
    assert not pace.due(True, now), "the last step has just taken 20 ms"
    assert pace.patience_s(now) == pytest.approx(RESTS * 0.02), "the news wait for no longer than the rest"
    assert pace.due(False, now + RESTS * 0.021), "it is the processor's time that counts"
    pace.take(machine.busy(0.0))
    assert pace.patience_s(machine.now_s + 0.01) == TICK_S, "they have been attended to"


def test_a_rest_is_short_enough_for_the_watchdog_of_coordinators(machine: Machine) -> None:
    pace = StepPace()
    pace.take(machine.busy(0.15))
    assert pace.patience_s(machine.now_s) <= LONGEST_REST_S < 1.0
