"""The same training on SLURM: submitted, disturbed for real, and the same bits as on one local node."""

from __future__ import annotations

import signal

import pytest

from jupyter_hyperpod.bench.testbed import CONTROLLER, Testbed
from jupyter_hyperpod.control import jobs
from tests.runtime.conftest import Run
from tests.slurm.conftest import Submit

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(240)]
START_S = 120.0


def queue(bed: Testbed, run: Run) -> list[list[str]]:
    """(partition, state) of the job's elements."""
    done = bed.run(CONTROLLER, "squeue", "-h", "-r", "-t", "all", "-n", run.job_id, "-o", "%P %T")
    return [line.split() for line in done.stdout.splitlines()]


def test_a_node_whose_power_is_cut_costs_no_step_and_is_replaced(bed: Testbed, job: Submit, reference: Run) -> None:
    run = job("--nodes", "3", "--elastic", "1:3", "--spares", "0", "--slurm", "elastic-partition=spot", pause_s=0.3)
    run.until_world(3, START_S)
    victim = run.node_of(1)
    bed.power_cut(victim)
    run.until_event("member.lost", timeout_s=START_S)
    run.until_world(2, START_S)
    run.until_world(3, START_S)
    assert victim not in [member["node"] for member in run.view["members"]]
    run.finish(timeout_s=START_S)
    run.same_as(reference)
    assert run.view["incidents"][0]["cause"] in ("network partition", "node lost"), run.story()
    bed.until(lambda: all(state != "RUNNING" for _, state in queue(bed, run)), "nothing is left in the queue")


def test_a_killed_worker_and_a_stop(bed: Testbed, job: Submit) -> None:
    run = job("--nodes", "2", "--elastic", "1:2", "--spares", "0", pause_s=0.3)
    run.until_world(2, START_S)
    run.kill(1)
    run.until_event("incident.stage", stage="rejoined", timeout_s=START_S)
    run.stop()
    assert run.until_ended(60)["state"] == "stopped"
    bed.until(lambda: {state for _, state in queue(bed, run)} <= {"COMPLETED", "CANCELLED", "FAILED"}, "it is over")


def test_an_urgent_job_takes_an_elastic_node_and_gives_it_back(bed: Testbed, job: Submit, reference: Run) -> None:
    run = job("--nodes", "4", "--elastic", "2:4", "--spares", "0", "--slurm", "elastic-partition=spot", pause_s=0.4)
    run.until_world(4, START_S)
    urgent = bed.start(CONTROLLER, ["srun", "-p", "urgent", "-N1", "--exclusive", "sleep", "3"])
    run.until_world(3, START_S)
    assert urgent.wait(START_S) == 0
    run.until_world(4, START_S)
    run.finish(timeout_s=START_S)
    run.same_as(reference)
    assert [incident["cause"] for incident in run.view["incidents"]] in ([], ["preempted"]), run.story()


def test_a_job_waits_and_says_why(bed: Testbed, job: Submit) -> None:
    blocker = bed.start(CONTROLLER, ["srun", "-p", "urgent", "-N4", "--exclusive", "sleep", "600"])
    bed.until(lambda: set(bed.states().values()) == {"alloc"}, "all nodes are taken")
    run = job("--nodes", "2")
    run.until(lambda: "SLURM" in run.view["reason"], START_S)
    assert "Resources" in run.view["reason"] or "Priority" in run.view["reason"]
    jobs.scale(run.store, run.job_id, 1)
    run.stop()
    assert run.until_ended(60)["state"] == "stopped"
    bed.until(lambda: {state for _, state in queue(bed, run)} == {"CANCELLED"}, "nothing waits any more")
    blocker.send_signal(signal.SIGTERM)
    blocker.wait(30)
