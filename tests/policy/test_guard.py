"""The guard: what is a spike, what is not, and that the same numbers always get the same judgement."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.core.errors import SpecError
from jupyter_hyperpod.policy.guard import Guard, StepFinding, StepReading, judge

QUIET = [2.0 + 0.01 * (i % 5) for i in range(32)]


def reading(*losses: float, finite: bool = True, step: int = 40) -> StepReading:
    return StepReading(step, sum(losses) / len(losses), finite, losses)


def test_a_sound_step_is_left_alone() -> None:
    decision = judge(Guard(), reading(2.0, 2.1), QUIET, 0)
    assert decision.value is None and decision.reason == "step 40 is sound"


def test_a_loss_that_is_not_finite_stops_and_names_its_micro_batches() -> None:
    decision = judge(Guard(), reading(2.0, math.nan, 2.0, math.inf, finite=False), QUIET, 0)
    assert decision.value == StepFinding("non-finite gradient", "stop", (1, 3))
    assert decision.reason == (
        "the gradient of step 40 is not finite, that of micro-batches 1, 3 is not: the job stops"
    )


def test_a_gradient_that_is_not_finite_need_not_show_in_the_loss() -> None:
    marked = StepReading(3, 2.0, False, (2.0, math.nan))
    assert judge(Guard(non_finite="skip"), marked, [], 0).value == StepFinding("non-finite gradient", "skip", (1,))
    overflowed = StepReading(3, 2.0, False, (2.0, 2.0))
    assert "the sum overflows" in judge(Guard(), overflowed, [], 0).reason


def test_a_loss_may_be_bad_while_the_gradient_is_not() -> None:
    decision = judge(Guard(), StepReading(3, math.inf, True, (math.inf,)), [], 0)
    assert decision.value == StepFinding("non-finite loss", "stop", (0,))


def test_a_spike_is_skipped_and_its_highest_micro_batch_named() -> None:
    decision = judge(Guard(), reading(2.0, 50.0, 3.0), QUIET, 0)
    assert decision.value == StepFinding("loss spike", "skip", (1,))
    assert "highest in micro-batch 1 (50)" in decision.reason and "its update is not applied" in decision.reason


def test_nothing_is_a_spike_before_the_warm_up_or_below() -> None:
    assert judge(Guard(), reading(90.0), QUIET[:15], 0).value is None
    assert judge(Guard(), reading(90.0), QUIET[:16], 0).value is not None
    assert judge(Guard(), reading(-90.0), QUIET, 0).value is None


def test_a_flat_curve_has_no_spikes_of_a_hair() -> None:
    flat = [1.0] * 32
    assert judge(Guard(), reading(1.01), flat, 0).value is None
    assert judge(Guard(), reading(1.2), flat, 0).value is not None


def test_outliers_among_the_past_do_not_hide_the_next_one() -> None:
    past = [*QUIET, 400.0, 500.0, 600.0]
    assert judge(Guard(), reading(300.0), past, 0).value is not None


def test_what_is_ignored_is_no_finding() -> None:
    guard = Guard(non_finite="ignore", loss_spike="ignore")
    assert judge(guard, reading(math.nan, finite=False), QUIET, 0).value is None
    assert judge(guard, reading(1e9), QUIET, 0).value is None


def test_patience_ends() -> None:
    guard = Guard(patience=2)
    actions = []
    for skipped in range(4):
        value = judge(guard, reading(80.0), QUIET, skipped).value
        actions.append(value.action if value else None)
    assert actions == ["skip", "skip", "stop", "stop"]


@pytest.mark.parametrize("seed", range(20))
def test_ordinary_noise_is_no_spike(seed: int) -> None:
    rng = random.Random(seed)
    losses = [5.0 * math.exp(-i / 300) + rng.gauss(0, 0.1) for i in range(600)]
    for i in range(16, 600):
        assert judge(Guard(), reading(losses[i]), losses[max(0, i - 64) : i], 0).value is None


@given(st.lists(st.floats(0.1, 10), min_size=16, max_size=64), st.floats(0.1, 1e6))
def test_a_higher_loss_is_never_less_of_a_spike(recent: list[float], loss: float) -> None:
    if judge(Guard(), reading(loss), recent, 0).value is not None:
        assert judge(Guard(), reading(loss * 2), recent, 0).value is not None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"non_finite": "explode"}, "non_finite is 'explode'; expected one of stop, skip"),
        ({"loss_spike": ""}, "loss_spike is ''"),
        ({"window": 8}, "warm_up is 16 and window 8"),
        ({"warm_up": 1}, "warm_up is 1"),
        ({"threshold": 0.0}, "threshold is 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object], words: str) -> None:
    with pytest.raises(SpecError, match=words):
        Guard(**settings)  # type: ignore[arg-type]
