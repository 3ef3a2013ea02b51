"""A rank without CPU time: noticed, told, given less to compute, and as good as before when it is as fast as before."""

from __future__ import annotations

from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.runtime.audit import assignments
from tests.runtime.conftest import Run, Submit
from tests.runtime.test_faults import BUSY

COMPARED = 200


def long(steps: int = 20_000) -> str:
    return BUSY.replace("session.steps(24)", f"session.steps({steps})")


def straggling(run: Run) -> list[tuple[str, int | None]]:
    return [(e.data["stage"], e.data["rank"]) for e in run.of_kind("incident.stage") if e.data["cause"] == "straggler"]


def shares(run: Run) -> list[list[int]]:
    return [[len(leaves) for _, leaves in found] for _, found in assignments(run.of_kind("step.committed"))]


def test_a_straggler_computes_less_until_it_is_fast_again(job: Submit) -> None:
    calm = job(long(COMPARED), nodes=1, spares=0, env={"PAUSE_S": "0"})
    calm.finish()
    run = job(long(), nodes=2, spares=0, env={"PAUSE_S": "0.006"})
    run.until_step(20)
    jobs.fault(run.store, run.job_id, "throttle", rank=1, factor=6, duration_s=5)
    run.until_event("incident.stage", stage="rejoined", cause="straggler")
    before = len(run.losses())
    run.until(lambda: len(run.losses()) > max(before, COMPARED), 60)
    run.stop()
    run.finish("stopped")
    assert straggling(run) == [(stage, 1) for stage in ("detected", "diagnosed", "repaired", "resumed", "rejoined")]
    incident = run.view["incidents"][0]
    assert "times as long for a micro-batch as the others" in incident["stages"][1]["text"]
    seen = shares(run)
    assert seen[0] == [4, 4] and seen[-1] == [4, 4] and [7, 1] in seen or [6, 2] in seen, run.story()
    assert not run.of_kind("member.lost")
    assert {step: run.losses()[step] for step in calm.losses()} == calm.losses(), run.story()


def test_a_spare_takes_the_place_of_who_stays_slow(job: Submit) -> None:
    run = job(long(), nodes=2, spares=1, env={"PAUSE_S": "0.006"})
    run.until_step(20)
    slow = run.node_of(1)
    jobs.fault(run.store, run.job_id, "throttle", rank=1, factor=6, duration_s=120)
    run.until_event("incident.stage", stage="replaced", cause="straggler", timeout_s=60)
    run.until_world(2)
    assert slow not in [member["node"] for member in run.view["members"]]
    assert not run.of_kind("member.lost"), "it left alive"
    run.stop()
    run.finish("stopped")
