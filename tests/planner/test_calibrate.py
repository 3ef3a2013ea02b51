"""What journals measured: recorded ones, and made ones of which the answer is known."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_hyperpod.core.errors import SpecError
from jupyter_hyperpod.core.events import Event, decode_event
from jupyter_hyperpod.planner.calibrate import kind_of, measure

JOURNALS = Path(__file__).resolve().parents[1] / "journals"


def recorded(name: str) -> list[Event]:
    return [decode_event(line) for line in (JOURNALS / f"{name}.jsonl").read_bytes().splitlines()]


def made(steps: int = 40, kill_after: int | None = 20, stall_s: float = 3.0, injected: bool = True) -> list[Event]:
    """Steps of 2 s on 4 members; one is killed, the others stand still for ``stall_s``, a spare is ready 5 s later."""
    events: list[Event] = []

    def add(time_s: float, kind: str, **data: object) -> None:
        events.append(Event("w", len(events) + 1, time_s, kind, data))

    now_s = 1000.0
    for step in range(1, steps + 1):
        now_s += 2.0
        if kill_after is not None and step == kill_after + 1:
            at_s, now_s = now_s - 1.0, now_s + stall_s
            if injected:
                add(at_s - 0.1, "fault.injected", fault="kill", node="n1", rank=1, member="m1")
            add(at_s, "member.lost", member="m1", node="n1", rank=1, cause="process killed", detail="")
            about = {"incident": "i1", "cause": "process killed", "node": "n1", "rank": 1, "rung": None, "text": ""}
            add(at_s, "incident.stage", stage="detected", **about)
            add(at_s + 0.1, "generation.formed", generation=2, members=[], spares=[], target=4, reason="")
            add(at_s + 5.0, "member.ready", member="m1b", node="n1")
        add(now_s, "step.committed", step=step, generation=1, loss=1.0, loss_hex="", step_time_s=2.0, samples=4,
            world_size=4, assignment={}, redone=0)  # fmt: skip
    add(now_s, "checkpoint.saved", step=steps, path="", bytes=1, took_s=9.0, paused_s=0.5)
    return events


def test_a_made_journal_is_measured_to_the_digit() -> None:
    found = measure("made", made())
    assert found.step_s == pytest.approx(2.0) and found.step_times == {4: pytest.approx(2.0)}
    assert found.stalls == {"killed": pytest.approx(3.0)}
    assert found.join_s == pytest.approx(5.0) and found.regroup_s is None and found.saving_s == 0.5
    assert (found.failures, found.injected, found.instances) == (1, 1, 4)
    assert found.goodput == pytest.approx(78.0 / 81.0)
    assert found.rate is None and "provoked" in found.sentence
    assert found.timing().regroup_s == pytest.approx(3.0)


def test_a_failure_that_nobody_provoked_is_a_rate_unless_it_is_absurd() -> None:
    long = made(steps=8000, injected=False)
    assert measure("made", long).rate == pytest.approx(1 / (4 * 16_001 / 3600), rel=1e-3)
    assert measure("made", made(injected=False)).rate is None


def test_what_probes_and_rules_find_are_failures_and_what_a_person_asks_for_is_none() -> None:
    assert [kind_of(cause) for cause in ("NvidiaXid74", "MountHangs", "unhealthy node")] == ["preempted"] * 3
    assert (kind_of("log rule loss-is-nan"), kind_of("process killed")) == ("hung", "killed")
    assert not kind_of("ByHand") and not kind_of("slow rank")


def test_recorded_journals_are_measured_or_refused_with_a_reason() -> None:
    for name in ("kill", "happy", "elastic", "partition", "durable"):
        try:
            found = measure(name, recorded(name))
        except SpecError as error:
            assert "calibrating needs" in str(error)
        else:
            assert 0 < found.goodput <= 1 and found.step_s > 0
            assert found.record()["job_id"] == name
    with pytest.raises(SpecError, match="committed 0 steps"):
        measure("cluster", recorded("cluster"))
