"""Where the nodes' time went: all of it is accounted for, each part once."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.control.runs.lost_time import BETWEEN, END, RESIZED, SAVED, START, LostTime
from jupyter_hyperpod.core.events import Event


def formed(time_s: float, members: int, spares: int = 0) -> Event:
    data = {"members": [{}] * members, "spares": [{}] * spares}
    return Event("c", 1, time_s, "generation.formed", data)


def commit(time_s: float, took_s: float, steps: int = 1) -> Event:
    return Event("w", 1, time_s, "step.committed", {"step_time_s": took_s, "steps": steps})


def stage(time_s: float, name: str, cause: str = "process killed", incident: int = 1) -> Event:
    return Event("c", 1, time_s, "incident.stage", {"incident": incident, "stage": name, "cause": cause})


def account(*events: Event, end_s: float | None = None) -> LostTime:
    spent = LostTime()
    for event in events:
        spent.add(event)
    if end_s is not None:
        spent.end(end_s, over=True)
    return spent


def test_a_loss_costs_what_it_took_longer_than_an_undisturbed_step() -> None:
    spent = account(
        *(formed(0.0, 4, 1), commit(3.0, 1.0), commit(4.0, 1.0), stage(4.5, "detected"), formed(4.6, 3)),
        *(commit(7.0, 2.9), stage(7.01, "resumed"), commit(8.0, 1.0)),
        end_s=9.0,
    )
    assert spent.lost == pytest.approx(
        {START: 8.0, "process killed": 2.0 / 3.0 * (0.6 * 4 + 2.4 * 3), END: 3.0}, abs=1e-9
    )
    assert spent.total == pytest.approx(4.6 * 4 + 4.4 * 3)
    assert spent.spare == pytest.approx(4.6)
    assert spent.goodput == pytest.approx(spent.useful / spent.total)


def test_checkpoints_own_code_and_joining_have_their_causes() -> None:
    saved = Event("c", 1, 2.4, "checkpoint.saved", {"paused_s": 0.3})
    spent = account(
        *(formed(0.0, 2), commit(1.0, 1.0), saved, commit(3.0, 1.0), formed(3.2, 4), commit(5.0, 1.4)),
    )
    assert spent.lost[SAVED] == pytest.approx(0.6)
    assert spent.lost[BETWEEN] == pytest.approx(1.4)
    assert spent.lost[RESIZED] == pytest.approx((0.2 * 2 + 1.8 * 4) / 2)


def test_a_straggler_costs_no_recovery_and_old_samples_count_as_steps() -> None:
    spent = account(
        *(
            formed(0.0, 1),
            commit(1.0, 1.0),
            stage(1.5, "detected", "straggler"),
            commit(2.0, 1.0),
            commit(10.0, 1.0, 8),
        ),
    )
    assert spent.lost == {} and spent.useful == 10.0 and spent.thinned


def test_without_steps_there_is_no_goodput() -> None:
    assert account(formed(0.0, 2), end_s=3.0).goodput is None
    assert account(end_s=3.0).total == 0.0


@st.composite
def stories(draw: st.DrawFn) -> list[Event]:
    now_s, events = 0.0, []
    for number in range(draw(st.integers(0, 40))):
        now_s += draw(st.floats(0, 100))
        kind: Any = draw(st.sampled_from(["formed", "commit", "again", "stage", "saved"]))
        if kind == "formed":
            events.append(formed(now_s, draw(st.integers(0, 9)), draw(st.integers(0, 3))))
        elif kind == "saved":
            events.append(Event("c", 1, now_s, "checkpoint.saved", {"paused_s": draw(st.floats(0, 50))}))
        elif kind == "stage":
            name = draw(st.sampled_from(["detected", "resumed", "fenced"]))
            events.append(stage(now_s, name, f"cause {number}", draw(st.integers(1, 3))))
        else:
            events.append(commit(now_s, draw(st.floats(0, 200)), draw(st.sampled_from([1, 1, 64]))))
    return events


@given(stories(), st.booleans())
def test_all_time_is_accounted_for_once(events: list[Event], over: bool) -> None:
    spent, held, members, last_s = LostTime(), 0.0, 0, None
    for event in events:
        if last_s is not None:
            held += (event.time_s - last_s) * members
        if event.kind == "generation.formed":
            members = len(event.data["members"])
        last_s = event.time_s if last_s is not None or event.kind == "generation.formed" else None
        spent.add(event)
    end_s = (events[-1].time_s if events else 0.0) + 5.0
    spent.end(end_s, over=over)
    held += members * 5.0 if last_s is not None else 0.0
    assert spent.useful >= 0 and all(seconds > 0 for seconds in spent.lost.values())
    assert spent.total <= held * (1 + 1e-9) + 1e-6
    if over:
        assert math.isclose(spent.total, held, rel_tol=1e-9, abs_tol=1e-6)
