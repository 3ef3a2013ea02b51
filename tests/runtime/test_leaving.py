"""Members that leave alive: preempted or no longer wanted. Nobody restarts, nothing is computed twice."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.runtime.conftest import TRAIN, Run, Submit

SLOW = {"PAUSE_S": "0.03"}


def agent_of(run: Run, rank: int) -> int:
    """The process of a rank's agent: its worker's parent."""
    return int(Path(f"/proc/{run.worker_pid(rank)}/stat").read_text().rpartition(")")[2].split()[1])


def members(run: Run) -> set[str]:
    """Node and process id of every present member."""
    return {member["member"] for member in run.view["members"]}


def nothing_was_lost(run: Run, reference: Run) -> None:
    run.finish()
    run.same_as(reference)
    assert not run.of_kind("member.lost"), run.story()
    assert run.view["redone"] == 0, run.story()
    assert not run.view["incidents"], run.story()


def reasons(run: Run) -> str:
    return "\n".join(event.data["reason"] for event in run.of_kind("decision.made"))


def test_a_preempted_node_leaves_at_a_step_boundary(job: Submit, reference: Run) -> None:
    rank = 0
    run = job(nodes=3, spares=0, env=SLOW)
    run.until_step(4)
    before, node = members(run), run.node_of(rank)
    run.preempt(rank)
    run.until_world(2)
    assert members(run) < before and node not in {m["node"] for m in run.view["members"]}
    run.until_world(3)  # the cluster has nobody else to give the node to, so it comes back
    assert len(members(run) & before) == 2
    nothing_was_lost(run, reference)
    assert f"{node} is preempted: rank {rank} has 30 s to leave" in reasons(run)
    assert f"{node} is preempted: rank {rank} leaves" in reasons(run)


@pytest.mark.parametrize(
    ("number", "whom"), [(signal.SIGUSR1, "agent"), (signal.SIGTERM, "agent"), (signal.SIGUSR1, "worker")]
)
def test_the_schedulers_signals_are_understood(job: Submit, reference: Run, number: signal.Signals, whom: str) -> None:
    run = job(nodes=2, spares=0, env=SLOW)
    run.until_step(4)
    os.kill(agent_of(run, 1) if whom == "agent" else run.worker_pid(1), number)
    run.until_world(1)
    nothing_was_lost(run, reference)


def test_a_spare_takes_the_place_of_a_preempted_node(job: Submit, reference: Run) -> None:
    run = job(nodes=3, env=SLOW)
    run.until_event("member.ready")
    run.until_step(4)
    run.preempt(1)
    run.until_event("decision.made", policy="membership", value=f"preempt {run.node_of(1)}")
    run.until_event("generation.formed", count=2)
    nothing_was_lost(run, reference)
    assert {e.data["world_size"] for e in run.of_kind("step.committed")} == {3}, "full strength all the time"


LATE = """
import os, time

been = os.path.join(os.environ["HYPERPOD_JOB_DIR"], os.environ["HYPERPOD_NODE"])
time.sleep(1.5 if os.path.exists(been) else 0)
open(been, "w").close()
"""


def test_too_few_wait_in_silence_for_one_who_comes_late(job: Submit, reference: Run) -> None:
    run = job(LATE + TRAIN, nodes=2, elastic="2:2", spares=0, env=SLOW)
    run.until_step(4)
    run.preempt(1)
    nothing_was_lost(run, reference)
    waits = [e for e in run.of_kind("decision.made") if "waiting for more" in e.data["reason"]]
    assert len(waits) == 1, run.story()


def test_several_leave_at_once(job: Submit, reference: Run) -> None:
    run = job(nodes=4, spares=0, env=SLOW)
    run.until_step(4)
    before, agents = members(run), [agent_of(run, rank) for rank in (0, 2, 3)]
    for agent in agents:
        os.kill(agent, signal.SIGUSR1)
    run.until_world(1)
    assert members(run) < before
    nothing_was_lost(run, reference)


def test_all_are_preempted_and_one_stays_until_another_has_the_state(job: Submit, reference: Run) -> None:
    run = job(nodes=2, spares=1, env=SLOW)
    run.until_event("member.ready")
    run.until_step(3)
    before = members(run)
    for agent in [agent_of(run, rank) for rank in (0, 1)]:
        os.kill(agent, signal.SIGTERM)
    run.until(lambda: bool(members(run)) and not members(run) & before, 60)
    nothing_was_lost(run, reference)


def test_a_node_that_cannot_leave_in_time_is_an_ordinary_loss(job: Submit, reference: Run) -> None:
    slow = TRAIN.replace("time.sleep(pause_s)", "time.sleep(pause_s if session.step < 6 else 0)")
    run = job(slow, nodes=2, grace_s=0.05, env={"PAUSE_S": "0.15"})
    run.until_step(2)
    run.preempt(1)
    run.until_event("member.lost")
    run.finish()
    run.same_as(reference)
    assert [incident["cause"] for incident in run.view["incidents"]] == ["preempted"]
    assert "could not leave within 0.05 s" in run.story()


def test_scaling_up_and_down_restarts_nobody(job: Submit, reference: Run) -> None:
    run = job(nodes=2, elastic="1:4", spares=0, env=SLOW)
    run.until_step(3)
    two = members(run)
    run.scale(4)
    run.until_world(4)
    four = members(run)
    run.scale(3)
    run.until_world(3)
    three = members(run)
    assert two < four and three < four and two < three
    nothing_was_lost(run, reference)


def test_a_job_grows_only_to_an_allowed_size(job: Submit, reference: Run) -> None:
    run = job(nodes=4, elastic="1,2,4", spares=0, env=SLOW)
    run.until_step(3)
    run.kill_node(3)
    run.until_event("incident.stage", stage="rejoined")
    run.scale(2)
    run.until_world(2)
    run.scale(4)
    run.until_world(4)
    run.finish()
    run.same_as(reference)
    sizes = {len(generation["nodes"]) for generation in run.view["generations"]}
    assert sizes == {2, 3, 4}, "3 only while the lost member was being replaced"
