"""What the corruption benchmark draws and reads; that it runs is seen by running it."""

from __future__ import annotations

import random
from typing import Any

import pytest

from benchmarks.recovery.corruption import CAUSE, GAPS, KINDS, delay, flips, schedule
from jupyter_hyperpod.core.events import Event

pytestmark = pytest.mark.slow


def event(time_s: float, kind: str, **data: Any) -> Event:
    return Event("w", 1, time_s, kind, data)


def test_how_soon_a_flipped_bit_is_found() -> None:
    flip = event(1.0, "fault.injected", fault="flip-parameter", step=7, member="a")
    lost = event(2.0, "member.lost", member="a", cause=CAUSE)
    early, late = (event(at, "step.committed", step=7) for at in (1.5, 2.5))
    assert flips([flip, lost, early]) == [flip]
    assert delay(flip, [flip, event(1.2, "step.committed", step=6), lost, late]) == 0
    assert delay(flip, [flip, early, lost]) == 1
    assert delay(flip, [flip, early, event(2.0, "member.lost", member="b", cause=CAUSE)]) is None


def test_bits_are_flipped_where_and_when_it_was_drawn() -> None:
    plan = schedule(20, 3, random.Random(1))
    assert plan == schedule(20, 3, random.Random(1)) and len(plan) == 30
    assert all(kind in KINDS and rank in range(3) for kind, _, rank in plan)
    assert all(later - step >= GAPS[0] for (_, step, _), (_, later, _) in zip(plan, plan[1:], strict=False))
