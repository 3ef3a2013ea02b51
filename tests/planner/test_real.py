"""A real job under faults, its journal, and the simulation of the same faults."""

from __future__ import annotations

import random

import pytest

from benchmarks.planner.plan import APART, FAULTS, KIND_OF, STEPS, disturbed, predict, schedule
from benchmarks.recovery.chaos import Blow
from jupyter_hyperpod.bench.laboratory import laboratory

LENGTH = 36


@pytest.mark.slow
def test_a_job_under_faults_is_simulated_from_its_own_journal() -> None:
    """Its own timing, so that it holds on a busy machine as well; `bench plan` takes that of another job."""
    dealt: list[Blow] = []
    with laboratory(4, 2) as store:
        blows = [Blow(8, "kill", 1), Blow(20, "hang", 2)]
        measured = disturbed(store, blows, dealt, LENGTH)
    assert [blow.kind for blow in dealt] == ["kill", "hang"]
    assert measured.failures == 2 and measured.injected == 2 and measured.rate is None
    assert set(measured.stalls) == {"killed", "hung"}
    assert measured.stalls["killed"] >= 0  # what the others finish in the time of an undisturbed step costs nothing
    assert measured.stalls["hung"] > 0  # nobody goes on before the silence is noticed
    predicted = predict(measured, dealt, LENGTH)
    assert predicted == pytest.approx(measured.goodput, rel=0.1)
    assert predicted < 1


def test_schedules_have_every_kind_and_leave_time_between() -> None:
    for seed in range(20):
        blows = schedule(random.Random(seed), list(KIND_OF))
        steps = [blow.step for blow in blows]
        assert len(blows) == FAULTS and {blow.kind for blow in blows} == set(KIND_OF)
        assert all(later - earlier >= APART for earlier, later in zip(steps, steps[1:], strict=False))
        assert steps[0] >= APART and steps[-1] < STEPS - 5
