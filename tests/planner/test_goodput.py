"""The golden figures of the closed form, and requests that cannot be answered."""

from __future__ import annotations

import math

import pytest

from jupyter_hyperpod.core.errors import SpecError
from jupyter_hyperpod.planner import face, goodput
from jupyter_hyperpod.planner.goodput import CheckpointCosts, ClusterModel, Downtime, compare, same_reduction, stretch
from jupyter_hyperpod.planner.quantities import parse_count, parse_price, parse_rate, parse_time
from jupyter_hyperpod.planner.request import PlanRequest
from jupyter_hyperpod.policy import interval

HOUR_S, MINUTE_S = 3600.0, 60.0
PUBLISHED = ClusterModel(256, 0.0005, 8, 5.0)
MANUAL, AUTOMATIC = Downtime.parse("280min"), Downtime.parse("40min")


def test_mean_time_between_failures() -> None:
    assert ClusterModel(512, parse_rate("0.04%/h")).mtbf_s / HOUR_S == pytest.approx(4.9, abs=0.05)
    assert ClusterModel(16, parse_rate("0.01%/h")).mtbf_s / HOUR_S == pytest.approx(625)
    assert PUBLISHED.mtbf_s / HOUR_S == pytest.approx(7.81, abs=0.005)
    assert math.isinf(ClusterModel(16, 0.0).mtbf_s)


@pytest.mark.parametrize(("convention", "reduction"), [("productive", 0.3205), ("restart", 0.40), ("serial", 0.56)])
def test_reduction_by_each_convention(convention: str, reduction: float) -> None:
    found = compare(PUBLISHED, MANUAL, AUTOMATIC, 10e6, convention)
    assert found.reduction == pytest.approx(reduction, abs=0.0005 if convention == "productive" else 0.005)


def test_saving() -> None:
    assert compare(PUBLISHED, MANUAL, AUTOMATIC, 10e6).saving == pytest.approx(25.6e6, abs=0.05e6)


def test_checkpoint_intervals() -> None:
    assert CheckpointCosts(5 * MINUTE_S).every_s(PUBLISHED.mtbf_s) == interval.daly_s(5 * MINUTE_S, PUBLISHED.mtbf_s)
    assert interval.daly_s(5 * MINUTE_S, PUBLISHED.mtbf_s) / MINUTE_S == pytest.approx(65.2, abs=0.05)


@pytest.mark.parametrize(
    ("before_s", "after_s", "said"),
    [(None, 1.0, True), (100.0, 75.0, False), (100.0, 74.0, True), (100.0, 133.0, False), (100.0, 134.0, True)],
)
def test_an_interval_that_hardly_differs_is_not_said(before_s: float | None, after_s: float, said: bool) -> None:
    assert interval.worth_saying(before_s, after_s) is said


def test_an_interval_is_never_shorter_than_what_is_written_takes() -> None:
    quick = interval.decide(failures=10**6, observed_s=1.0, paused_s=1e-6, took_s=1e-6, state_bytes=0)
    assert quick.value == 1.0 and "not more often than every" in quick.reason
    rare = interval.decide(failures=1, observed_s=7200.0, paused_s=1.0, took_s=1.0, state_bytes=0)
    assert 60 < rare.value < 3600 and "not more often" not in rare.reason


def test_the_interval_of_a_plan_and_of_a_job_is_one_function(monkeypatch: pytest.MonkeyPatch) -> None:
    assert goodput.daly_s is interval.daly_s
    best_s = CheckpointCosts(300.0).every_s(7.8125 * HOUR_S)
    decided = interval.decide(failures=1, observed_s=7.8125 * HOUR_S, paused_s=300.0, took_s=300.0, state_bytes=0)
    assert best_s is not None and decided.value == min(interval.LONGEST_S, best_s)
    assert decided.reason == "checkpoint every 1 h: MTBF 7 h 48 min observed over 1 failure, saving costs 5 min"


def test_days_of_a_run() -> None:
    assert goodput.undisturbed_days(ClusterModel(256, 0.0), 6.5e6) == pytest.approx(132, abs=0.5)


def test_other_pairs_with_the_same_reduction() -> None:
    pairs = same_reduction(compare(PUBLISHED, MANUAL, AUTOMATIC, 10e6), [240 * 60.0, 300 * 60.0, 360 * 60.0])
    assert [round(quick_s / MINUTE_S) for _, quick_s in pairs] == [13, 54, 94]


def test_daly_is_best_where_failures_restart_repairs() -> None:
    best_s = interval.daly_s(300.0, PUBLISHED.mtbf_s)
    ratios = [
        stretch(PUBLISHED, AUTOMATIC.total_s, "restart", CheckpointCosts(300.0, best_s * factor))
        for factor in (0.5, 0.9, 1.0, 1.1, 2.0)
    ]
    assert min(ratios) == ratios[2]
    whole = PUBLISHED.mtbf_s * math.exp(2400 / PUBLISHED.mtbf_s) * math.expm1((best_s + 300) / PUBLISHED.mtbf_s)
    assert ratios[2] == pytest.approx(whole / best_s)


@pytest.mark.parametrize("convention", list(goodput.CONVENTIONS))
def test_limits(convention: str) -> None:
    """Nothing fails: only saving costs time. Rare failures: all conventions agree to first order."""
    saved = CheckpointCosts(60.0, 600.0)
    assert stretch(ClusterModel(256, 0.0), 2400.0, convention, saved) == pytest.approx(1.1)
    assert stretch(ClusterModel(256, 1e-9), 2400.0, convention) - 1 == pytest.approx(256e-9 * 2400 / 3600, rel=1e-3)


def test_downtime_by_stage() -> None:
    found = Downtime.parse("detect=5min, diagnose=25min,repair=3h,restart=1h,recompute=10min")
    assert found.total_s == 280 * MINUTE_S
    assert compare(PUBLISHED, found, AUTOMATIC, 10e6).reduction == pytest.approx(0.3205, abs=0.0005)


def test_quantities() -> None:
    assert parse_rate("0.05%") == parse_rate("0.05 %/h") == parse_rate("1.2%/d") == parse_rate("5e-4/h") == 5e-4
    assert (parse_count("10M"), parse_count("6.5e6"), parse_count("350k")) == (10e6, 6.5e6, 350e3)
    assert parse_price("5") == parse_price("$5") == parse_price("5 $") == 5.0


@pytest.mark.parametrize(
    ("ask", "told"),
    [
        (lambda: parse_rate("-0.05%"), "negative"),
        (lambda: parse_rate("0.05"), "no unit"),
        (lambda: parse_rate("50%"), "is the unit right"),
        (lambda: parse_rate("often"), "not a failure rate"),
        (lambda: parse_time("280"), "no unit"),
        (lambda: parse_time("-3min"), "negative"),
        (lambda: parse_count("many"), "not a number"),
        (lambda: parse_price("cheap"), "not an amount of money"),
        (lambda: ClusterModel(0, 0.0005), "0 instances"),
        (lambda: ClusterModel(256, -1e-4), "rate -0.0001/h"),
        (lambda: ClusterModel(256, 1e-4, 0), "0 GPUs"),
        (lambda: ClusterModel(256, 1e-4, 8, -1.0), "price -1"),
        (lambda: CheckpointCosts(300.0, 0.0), "checkpoint interval 0 s"),
        (lambda: CheckpointCosts(-1.0), "checkpoint cost -1 s"),
        (lambda: Downtime.parse("mend=3h"), "expected each of detect, diagnose"),
        (lambda: Downtime.parse("repair=3h,repair=2h"), "once"),
        (lambda: Downtime(repair=-1.0), "repair is -1.0 s"),
        (lambda: compare(PUBLISHED, AUTOMATIC, MANUAL, 10e6), "are the two exchanged"),
        (lambda: compare(PUBLISHED, MANUAL, AUTOMATIC, 0), "more than none"),
        (lambda: stretch(PUBLISHED, 9 * HOUR_S, "serial"), "never ends"),
        (lambda: stretch(PUBLISHED, 500 * HOUR_S, "restart"), "never ends"),
        (lambda: stretch(PUBLISHED, 60.0, "optimistic"), "convention 'optimistic'"),
    ],
)
def test_what_cannot_be_is_told(ask: object, told: str) -> None:
    with pytest.raises(SpecError, match=told):
        ask()  # type: ignore[operator]


def test_the_record_names_its_convention() -> None:
    found = face.answer(PlanRequest(convention="serial"))
    assert found.record["convention"] == "serial"
    assert found.record["reduction"] == pytest.approx(0.56, abs=0.005)
    assert "convention: serial" in found.lines[0]
    assert found.record["reductions"]["productive"] == pytest.approx(0.3205, abs=0.0005)
