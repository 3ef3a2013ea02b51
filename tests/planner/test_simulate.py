"""The simulator: golden figures again, what it takes from production, and that its time adds up."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from jupyter_hyperpod.core.elastic import ElasticRange
from jupyter_hyperpod.core.errors import SpecError
from jupyter_hyperpod.core.spec import COMPONENTS
from jupyter_hyperpod.planner import causes
from jupyter_hyperpod.planner.goodput import (
    CONVENTIONS,
    PRODUCTIVE,
    RESTART,
    CheckpointCosts,
    ClusterModel,
    Downtime,
    compare,
    stretch,
    undisturbed_days,
)
from jupyter_hyperpod.planner.outcome import Estimate, Outcome, student
from jupyter_hyperpod.planner.quantities import DAY_S, HOUR_S
from jupyter_hyperpod.planner.regimes import Trial, scenarios
from jupyter_hyperpod.planner.request import PlanRequest
from jupyter_hyperpod.planner.scenario import Fault, Scenario, Timing, in_place, whole_job
from jupyter_hyperpod.planner.simulate import Simulation, simulate
from jupyter_hyperpod.policy import healing, interval, membership, recovery, scaling
from jupyter_hyperpod.policy.decision import Decision

PUBLISHED = ClusterModel(256, 0.0005, 8, 5.0)
MANUAL, AUTOMATIC = Downtime.parse("280min"), Downtime.parse("40min")
POINT = 0.01  # one percentage point


@pytest.mark.parametrize("convention", list(CONVENTIONS))
def test_the_published_reduction_by_simulation(convention: str) -> None:
    days = undisturbed_days(PUBLISHED, 60e6)  # six times the work: narrower intervals in the same time
    exact = compare(PUBLISHED, MANUAL, AUTOMATIC, 60e6, convention)
    slow, quick = (
        simulate(whole_job(PUBLISHED, days, downtime, convention), seed, 5)
        for seed, downtime in enumerate((MANUAL, AUTOMATIC))
    )
    assert slow.unfinished == quick.unfinished == 0
    assert 1 - quick.wall_s.mean / slow.wall_s.mean == pytest.approx(exact.reduction, abs=POINT)
    assert slow.goodput.mean == pytest.approx(exact.manual.goodput, abs=POINT)
    if convention == PRODUCTIVE:
        assert (slow.cost.mean - quick.cost.mean) / 6 == pytest.approx(25.6e6, rel=2 * POINT)


@pytest.mark.parametrize(("failures", "instances", "hours"), [(105, 124, 1440.0), (417, 2000, 1296.0)])
def test_failures_of_published_runs_by_simulation(failures: int, instances: int, hours: float) -> None:
    cluster = ClusterModel(instances, failures / (instances * hours))
    endless = replace(in_place(cluster, hours / 24, AUTOMATIC), work_s=math.inf, limit_s=hours * HOUR_S)
    found = simulate(endless, seed=3, repetitions=10).failures
    assert found.mean == pytest.approx(failures, abs=3 * math.sqrt(failures / 10))
    assert found.margin == pytest.approx(2 * math.sqrt(failures / 10), rel=0.7)


@pytest.mark.parametrize(("instances", "rate", "hours"), [(512, 0.0004, 4.9), (16, 0.0001, 625.0)])
def test_mean_time_between_failures_by_simulation(instances: int, rate: float, hours: float) -> None:
    observed_h = 2000 * hours
    endless = whole_job(ClusterModel(instances, rate), observed_h / 24, Downtime(), RESTART)
    found = simulate(replace(endless, work_s=math.inf, limit_s=observed_h * HOUR_S), seed=1, repetitions=10)
    assert observed_h / found.failures.mean == pytest.approx(hours, rel=0.02)


def test_the_interruptions_of_the_published_mix() -> None:
    cluster = ClusterModel(causes.LLAMA3_GPUS // 8, causes.LLAMA3_INTERRUPTIONS / (2048 * causes.LLAMA3_HOURS))
    run = in_place(cluster, 54, AUTOMATIC, spares=16, checkpoints=CheckpointCosts(30.0))
    found = simulate(replace(run, work_s=math.inf, limit_s=54 * DAY_S), seed=1, repetitions=12)
    assert found.failures.mean == pytest.approx(419, abs=3 * math.sqrt(419 / 12))
    for cause in causes.LLAMA3:
        assert found.incidents[cause.name].mean == pytest.approx(cause.count, abs=4 * math.sqrt(cause.count / 12))
    assert sum(cause.count for cause in causes.LLAMA3) == 419


def test_days_without_failures_by_simulation() -> None:
    cluster = ClusterModel(256, 0.0)
    found = simulate(whole_job(cluster, undisturbed_days(cluster, 6.5e6), MANUAL, RESTART), repetitions=1)
    assert found.wall_s.mean / DAY_S == pytest.approx(132, abs=0.5)
    assert found.goodput.mean == pytest.approx(1)


@pytest.mark.parametrize("factor", [0.4, 1.0, 2.5])
def test_checkpoints_by_simulation(factor: float) -> None:
    """Saving costs 5 minutes: the simulation agrees with Daly's wall time, at his interval and far from it."""
    saved = CheckpointCosts(300.0, factor * interval.daly_s(300.0, PUBLISHED.mtbf_s))
    found = simulate(whole_job(PUBLISHED, 500, AUTOMATIC, RESTART, saved), seed=2, repetitions=2)
    assert found.goodput.mean == pytest.approx(1 / stretch(PUBLISHED, AUTOMATIC.total_s, RESTART, saved), abs=POINT)


def survivors(spares: int = 2, **more: object) -> Scenario:
    return in_place(PUBLISHED, 100, AUTOMATIC, spares=spares, checkpoints=CheckpointCosts(60.0), **more)


def test_all_time_is_accounted_for_and_a_seed_says_everything() -> None:
    for scenario in (survivors(), survivors(0, elastic=ElasticRange(192, 256, (192, 224, 240, 256)))):
        tally = Simulation(scenario, random.Random(7)).run()
        assert tally.finished and tally.useful_s == pytest.approx(scenario.work_s)
        assert sum(tally.stages.values()) == pytest.approx(tally.wall_s)
        assert tally.stages["training"] == pytest.approx(tally.useful_s)
        again = Simulation(scenario, random.Random(7)).run()
        assert (again.wall_s, again.incidents, again.stages) == (tally.wall_s, tally.incidents, tally.stages)
    assert simulate(scenario, 1, 1).record() == simulate(scenario, 1, 1).record()
    assert simulate(scenario, 1, 1).wall_s != simulate(scenario, 2, 1).wall_s


def goodput(scenario: Scenario) -> float:
    return simulate(scenario, 0, 2).goodput.mean


def test_survivors_that_go_on_lose_less_and_spares_help() -> None:
    found = [goodput(survivors(spares)) for spares in (0, 1, 8)]
    assert found == sorted(found)
    conventional = goodput(survivors(8, components=tuple(c for c in COMPONENTS if c != "inprocess")))
    assert conventional < found[0]


def test_a_state_nobody_holds_comes_from_a_checkpoint_or_begins_again() -> None:
    timing = Timing(step_s=1.0, regroup_s=1.0)
    calm = ClusterModel(4, 0.0)
    saved = Scenario(
        calm, 1000.0, Downtime(restart=50.0), faults=(Fault(500.0, causes.PROGRAM),), timing=timing,
        checkpoints=CheckpointCosts(5.0, 200.0),
    )  # fmt: skip
    tally = Simulation(saved, random.Random(0)).run()
    assert tally.stages["restart"] == 50.0
    assert tally.stages["computed again"] == pytest.approx(100.0)
    early = replace(saved, faults=(Fault(150.0, causes.PROGRAM),))
    assert Simulation(early, random.Random(0)).run().stages["computed again"] == pytest.approx(150.0)
    kept = replace(saved, faults=(Fault(500.0, causes.KILLED),))
    assert "computed again" not in Simulation(kept, random.Random(0)).run().stages


def test_how_long_faults_go_unnoticed_is_what_membership_says() -> None:
    found = {kind: causes.detection_s(kind, step_s=2.0) for kind in causes.KINDS}
    assert found[causes.HUNG] == pytest.approx(membership.hang_timeout_s(2.0, causes.FLOOR_S), abs=0.02)
    assert found[causes.PARTITION] == pytest.approx(membership.SHORT_LEASE_S + membership.STOP_S, abs=0.02)
    assert found[causes.KILLED] < 0.1 and found[causes.PREEMPTED] == 0.0
    assert [causes.convicted(members) for members in (2, 3, 4)] == [2, 1, 1]


def test_what_production_decides_the_simulation_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """One policy is changed at a time; nothing of the planner is."""
    scenario = replace(survivors(), work_s=math.inf, limit_s=40 * DAY_S)
    usual = simulate(scenario, 0, 1)

    def changed(module: object, name: str, policy: object) -> Outcome:
        with monkeypatch.context() as patch:
            patch.setattr(module, name, policy)
            return simulate(scenario, 0, 1)

    patience = changed(membership, "silence_limit_s", lambda *_: 60.0)
    assert patience.stages["detect"].mean > 2 * usual.stages["detect"].mean
    waiting = changed(membership, "next_size", lambda *_: Decision(None, "never"))
    assert waiting.stages["waiting for instances"].mean > 0 and waiting.unfinished
    begin = recovery.plan

    def from_the_seed(reports: list[recovery.MemberState], micro_batches: int) -> Decision[recovery.RecoveryPlan]:
        return begin([replace(report, step=None, checkpoints=()) for report in reports], micro_batches)

    forgetful = changed(recovery, "plan", from_the_seed)
    assert forgetful.stages["computed again"].mean > 10 * usual.stages["computed again"].mean
    hourly = changed(interval, "daly_s", lambda cost_s, mtbf_s: 120.0)
    assert hourly.stages["checkpoints"].mean > 3 * usual.stages["checkpoints"].mean
    watch = changed(healing, "heal", lambda findings, *_, **__: Decision(healing.Remedy("watch"), "leave it"))
    assert watch.stages.get("fewer instances", Estimate(0, 0)).mean < usual.stages["fewer instances"].mean
    allot = scaling.allot_free

    def nothing(claims: list[scaling.Claim], *arguments: object) -> tuple[Decision[scaling.Grant], ...]:
        found = allot(claims, *arguments)  # type: ignore[arg-type]
        return tuple(Decision(replace(d.value, start=()), "") for d in found) if claims[0].running else found

    shrinking = changed(scaling, "allot_free", nothing)
    assert shrinking.stages["fewer instances"].mean > 2 * usual.stages["fewer instances"].mean


def test_intervals_of_confidence() -> None:
    assert (student(1), student(9), student(30)) == (12.706, 2.262, 2.042)
    assert student(60) == pytest.approx(2.000, abs=0.002)
    found = Estimate.of([1.0, 2.0, 3.0])
    assert found.mean == 2.0 and found.margin == pytest.approx(4.303 / math.sqrt(3), rel=1e-3)
    assert Estimate.of([5.0]) == Estimate(5.0, 0.0)


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda: Scenario(PUBLISHED, 0.0, MANUAL), "more than none"),
        (lambda: Scenario(PUBLISHED, math.inf, MANUAL), "expected a limit"),
        (lambda: Scenario(PUBLISHED, 1.0, MANUAL, spares=-1), "-1 spares"),
        (lambda: Scenario(PUBLISHED, 1.0, MANUAL, mix=()), "mix is empty"),
        (lambda: Scenario(PUBLISHED, 1.0, MANUAL, elastic=ElasticRange(2, 8)), "outside the elastic range"),
        (lambda: Scenario(PUBLISHED, 1.0, MANUAL, components=("magic",)), "component 'magic'"),
        (lambda: Scenario(PUBLISHED, 1.0, MANUAL, convention="none"), "convention 'none'"),
        (lambda: Scenario(PUBLISHED, 1.0, MANUAL, interval="daily"), "fixed or observed"),
        (lambda: Scenario(PUBLISHED, 1.0, MANUAL, micro_batches=0), "at least one micro-batch"),
        (lambda: Fault(1.0, "gremlin"), "fault 'gremlin'"),
        (lambda: Scenario(PUBLISHED, 1.0, MANUAL, repair_s=-1.0), "not negative"),
        (lambda: Timing(step_s=0.0), "longer than nothing"),
        (lambda: causes.Cause("GPU", -1), "count -1"),
        (lambda: causes.Cause("GPU", 1, "asleep"), "kind 'asleep'"),
        (lambda: causes.Cause("GPU", 1, severity="dire"), "dire"),
        (lambda: simulate(survivors(), 0, 0), "0 repetitions"),
        (lambda: scenarios(PlanRequest(gpu_hours=1e11), Trial()), "ask for fewer runs"),
    ],
)
def test_what_cannot_be_simulated_is_told(ask: object, told: str) -> None:
    with pytest.raises(SpecError, match=told):
        ask()  # type: ignore[operator]
