"""The demonstration must fail when what it claims is not so: each claim is broken once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from jupyter_hyperpod.bench.proof import Run, RunComparison
from jupyter_hyperpod.core.events import Event

STEPS, MICRO_BATCHES, KILL_AFTER = 6, 4, 3


def run_of(*, killed: bool) -> Run:
    """A journal of six steps of a second each on two nodes, one of which may be killed after the third."""
    events: list[Event] = []

    def add(time_s: float, kind: str, **data: Any) -> None:
        events.append(Event("writer", len(events) + 1, time_s, kind, data))

    def generation(time_s: float, number: int) -> None:
        add(time_s, "generation.formed", generation=number, members=[], spares=[], target=2, reason="")

    generation(0.0, 1)
    batch = {"global_batch": 8, "micro_batch": 2, "micro_batches": MICRO_BATCHES}
    add(0.0, "session.opened", total_steps=STEPS, parameters=10, state_bytes=1000, **batch)
    for step in range(1, STEPS + 1):
        hurt, after = killed and step == KILL_AFTER + 1, killed and step > KILL_AFTER
        if hurt:
            add(step - 0.5, "fault.injected", fault="kill", node="node-2", rank=None, member="m2")
            add(step - 0.4, "member.lost", member="m2", node="node-2", rank=1, cause="killed", detail="")
            about = {"incident": "i1", "cause": "killed", "node": "node-2", "rank": 1, "rung": None, "text": ""}
            add(step - 0.4, "incident.stage", stage="detected", since_s=step - 0.5, **about)
            add(step + 0.75, "incident.stage", stage="resumed", **about)
            generation(step - 0.3, 2)
        if killed and step == KILL_AFTER + 2:
            generation(step - 0.6, 3)
        shares = [["m1", [0, 1, 2, 3]]] if hurt else [["m1", [0, 1]], ["m2", [2, 3]]]
        add(
            step + (0.75 if after else 0.0), "step.committed", step=step, loss=1.0 / step, loss_hex=(1.0 / step).hex(),
            generation=1 if not after else 2 if hurt else 3, step_time_s=1.0, samples=8,
            world_size=len(shares), assignment=shares, redone=2 * hurt,
        )  # fmt: skip
    add(9.0, "session.closed", step=STEPS, digest="d1")
    add(9.0, "job.state", state="succeeded", reason="")
    return Run("killed" if killed else "calm", tuple(events))


def changed(run: Run, kind: str, at: int, **data: Any) -> Run:
    events = list(run.events)
    index = [i for i, event in enumerate(events) if event.kind == kind][at]
    events[index] = replace(events[index], data={**events[index].data, **data})
    return Run(run.job_id, tuple(events))


def without(run: Run, kind: str, at: int = 0) -> Run:
    index = [i for i, event in enumerate(run.events) if event.kind == kind][at]
    return Run(run.job_id, run.events[:index] + run.events[index + 1 :])


def committed_again(run: Run, **data: Any) -> Run:
    commit = run.of_kind("step.committed")[2]
    again = replace(commit, writer="other", time_s=commit.time_s + 0.1, data={**commit.data, **data})
    return Run(run.job_id, tuple(sorted((*run.events, again), key=lambda event: event.time_s)))


def figure(comparison: RunComparison, what: str) -> str:
    return next(shown for name, shown, _ in comparison.checks() if what in name)


def test_a_recovery_is_measured_from_the_journal() -> None:
    comparison = RunComparison(run_of(killed=True), run_of(killed=False))
    assert comparison.holds, comparison.table().render()
    assert comparison.step_s == 1.0 and comparison.killed_step == 4
    assert comparison.recovery_s == pytest.approx(4.75 - 3.5), "the step that was under way belongs to it"
    assert comparison.stall_s == pytest.approx(4.75 - 3.5 - 1.0)
    assert comparison.full_strength_s == pytest.approx(5.75 - 3.5)
    assert comparison.undisturbed.losses[1] == (2, 0.5)
    assert "node-2 at step 4" in comparison.table().render()


def test_a_commit_journaled_twice_is_still_one_step() -> None:
    comparison = RunComparison(committed_again(run_of(killed=True), generation=2), run_of(killed=False))
    assert comparison.disturbed.steps_lost == 0 and comparison.holds


BROKEN: dict[str, tuple[Callable[[Run], Run], str, str]] = {
    "a loss differs in its last bit": (
        lambda run: changed(run, "step.committed", 4, loss_hex="0x1.999999999999bp-3"),
        "loss curves",
        "no",
    ),
    "final state differs": (lambda run: changed(run, "session.closed", 0, digest="d2"), "final weights", "no"),
    "session never closed": (lambda run: without(run, "session.closed"), "final weights", "no"),
    "a step is missing": (lambda run: without(run, "step.committed", 2), "steps lost", "1"),
    "a step was taken twice": (lambda run: committed_again(run, loss_hex="0x1.8p-2"), "loss curves", "no"),
    "a sample is skipped": (
        lambda run: changed(run, "step.committed", 1, assignment=[["m1", [0, 1]], ["m2", [2]]]),
        "samples",
        "2",
    ),
    "a sample is repeated": (
        lambda run: changed(run, "step.committed", 1, assignment=[["m1", [0, 1, 2]], ["m2", [2, 3]]]),
        "samples",
        "2",
    ),
    "nothing was killed": (lambda run: without(run, "fault.injected"), "node killed", "none"),
    "it did not end well": (
        lambda run: changed(run, "job.state", 0, state="failed"),
        "both runs",
        "failed and succeeded",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_every_claim_can_be_refuted(case: str) -> None:
    breaks, what, shown = BROKEN[case]
    comparison = RunComparison(breaks(run_of(killed=True)), run_of(killed=False))
    assert not comparison.holds
    assert figure(comparison, what) == shown


def test_a_disturbed_run_is_no_reference() -> None:
    comparison = RunComparison(run_of(killed=True), run_of(killed=True))
    assert not comparison.holds and figure(comparison, "met no fault") == "no"
