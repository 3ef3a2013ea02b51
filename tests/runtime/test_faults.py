"""Every fault class, provoked for real, and how it ends. What is injected is undone bit for bit where it can be.

| fault | tests |
|---|---|
| process killed | test_recovery: a_killed_rank_costs_no_step, a_killed_rank_is_replaced; here: asked for in the cell |
| process hung | test_recovery: a_rank_that_hangs_is_fenced, a_rank_that_spins_is_fenced |
| node lost | test_recovery: a_killed_node_is_replaced, a_stopped_node_is_fenced |
| network partition | test_partition |
| straggler | test_stragglers; here: a_throttled_rank_is_slow_and_not_taken_for_dead |
| NaN, infinity, loss spike | test_guard |
| silent data corruption | test_integrity; here: that a flipped bit is one |
| the person's exception | test_cells; here: an_injected_exception |
| coordinator killed | test_recovery: a_killed_coordinator_stalls_nobody and five more; here: killed and hung |
| supervisor killed | test_supervisor: a_supervisor_that_is_broken, what_happened_while_there_was_none |
| two at once | test_recovery: two_ranks, two_nodes, the_coordinator_and_a_rank, the_coordinator_and_a_node |
| during a recovery | test_recovery: a_kill_during_a_recovery, the_coordinator_dies_while_a_generation_forms |
| in the first, in the last step | test_recovery: a_kill_in_the_first_step, a_kill_in_the_last_step |
| during a join | here: a_kill_while_a_newcomer_joins |
| everything | test_recovery: all_ranks_killed_begin_again; here: everything_is_killed |
| any of them, any time | test_recovery: a_random_schedule_of_faults_changes_no_bit |
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.supervisor.coordinator_watchdog import STOPPED_S
from tests.runtime.conftest import TRAIN, Run, Submit

# computes instead of sleeping: only CPU time can be taken away
BUSY = TRAIN.replace(
    "    time.sleep(pause_s)\n",
    "    began_s = time.process_time()\n    while time.process_time() - began_s < pause_s: pass\n",
)
# at the top of a cell: a fault by `hp.faults`
ASKED = "import jupyter_hyperpod as hp\nhp.faults.inject({kind!r}, step={step}, rank={rank})\n"


def asked(kind: str, step: int, rank: int, source: str = TRAIN) -> str:
    return ASKED.format(kind=kind, step=step, rank=rank) + source


def test_a_kill_asked_for_in_the_cell_comes_once(job: Submit, reference: Run) -> None:
    run = job(asked("kill", 7, 1), env={"PAUSE_S": "0.01"})
    view = run.finish()
    injected = run.of_kind("fault.injected")
    assert [(e.data["fault"], e.data["step"], e.data["rank"]) for e in injected] == [("kill", 7, 1)]
    assert [i["cause"] for i in view["incidents"]] == ["process killed"]
    run.same_as(reference)


def test_an_injected_exception_ends_the_job_with_its_traceback(job: Submit) -> None:
    run = job()
    run.until_step(4)
    jobs.fault(run.store, run.job_id, "exception", rank=1)
    view = run.finish("failed")
    assert "Injected on rank 1 at line" in view["reason"]
    assert view["error"]["rank"] == 1 and "step.run(loss_fn)" in "".join(view["error"]["traceback"])


@pytest.mark.parametrize("kind", ["flip-gradient", "flip-parameter", "flip-optimizer"])
def test_a_flipped_bit_changes_what_is_trained(job: Submit, reference: Run, kind: str) -> None:
    source = TRAIN.replace("scheduler=scheduler)", "scheduler=scheduler, audit=None)")
    for step in range(7, 17):  # the lowest bit of one number may be rounded away again
        source = asked(kind, step, 0, source)
    run = job(source, nodes=1, spares=0, env={"PAUSE_S": "0"})
    view = run.until_ended(60)
    # a count of steps that has become negative is more than AdamW can bear, and so may be a very large moment
    borne = view["state"] == "succeeded"
    assert borne or "OverflowError" in view["reason"] or "is not finite" in view["reason"], run.story()
    assert {e.data["fault"] for e in run.of_kind("fault.injected")} == {kind}
    losses, calm = run.losses(), reference.losses()
    assert [losses[step] for step in range(1, 7)] == [calm[step] for step in range(1, 7)]
    assert view["digest"] != reference.view["digest"]


def test_a_fault_in_no_session_is_refused(job: Submit, tmp_path: Path) -> None:
    run = job("print('here')\nimport time\nwhile True: time.sleep(0.05)", nodes=1, spares=0)
    run.until_event("output.written")
    jobs.fault(run.store, run.job_id, "nan", rank=0)
    run.until_event("command.done")
    done = run.of_kind("command.done")[0].data
    assert not done["ok"] and "takes effect in a step of hp.Session" in done["reason"]
    run.stop()
    run.finish("stopped")


def test_a_throttled_rank_is_slow_and_not_taken_for_dead(job: Submit, reference: Run) -> None:
    run = job(BUSY, nodes=2)
    run.until_step(4)
    jobs.fault(run.store, run.job_id, "throttle", rank=1, factor=8, duration_s=0.6)
    run.finish()
    assert not run.of_kind("member.lost"), run.story()
    run.same_as(reference)


@pytest.mark.parametrize("kind", ["kill", "hang"])
def test_a_broken_coordinator_is_replaced_while_members_train(job: Submit, reference: Run, kind: str) -> None:
    run = job(env={"PAUSE_S": "0.1"})
    run.until_step(2)
    before = run.coordinator_pid()
    jobs.fault(run.store, run.job_id, kind, target="coordinator")
    run.until_event("incident.stage", stage="repaired")
    assert run.coordinator_pid() != before
    run.kill(1)
    run.finish()
    run.same_as(reference)
    first, second = run.view["incidents"]
    assert first["cause"] == {"kill": "coordinator killed", "hang": "coordinator hung"}[kind]
    assert (first["node"], first["rank"]) == ("head", None)
    stages = [stage["stage"] for stage in first["stages"]]
    assert stages == ["detected", "diagnosed", "fenced", "repaired", "resumed"]
    assert second["cause"] == "process killed"
    struck_s = next(e.time_s for e in run.of_kind("fault.injected") if e.data.get("target") == "coordinator")
    assert struck_s - 0.1 <= first["started_s"] <= struck_s + 1.0, "timed from the fault on"
    # its last sign of life may have been half a second before the fault
    assert first["detection_s"] >= {"kill": 0.0, "hang": STOPPED_S - 0.6}[kind]
    commits = [e.time_s for e in run.of_kind("step.committed")]
    lost_s, back_s = first["stages"][0]["time_s"], first["stages"][3]["time_s"]
    assert kind == "kill" or any(lost_s - 3 < t < back_s for t in commits), "members train on without a coordinator"


def test_a_coordinator_that_is_told_to_terminate_leaves_the_job_to_the_next_one(job: Submit, reference: Run) -> None:
    run = job(env={"PAUSE_S": "0.03"})
    run.until_step(3)
    os.kill(run.coordinator_pid(), signal.SIGTERM)
    run.finish()
    run.same_as(reference)
    assert len({e.writer for e in run.events if e.writer.startswith("coordinator.")}) == 2, run.story()
    assert any("told to terminate" in w["text"] for w in run.view["warnings"]) and not run.of_kind("member.lost")


@pytest.mark.parametrize("victim", ["the newcomer", "a member", "the coordinator"])
def test_a_kill_while_a_newcomer_joins(job: Submit, reference: Run, victim: str) -> None:
    run = job(env={"PAUSE_S": "0.03"})
    run.until_step(2)
    other = run.worker_pid(2)
    run.kill(1)
    run.until(lambda: bool(newcomers(run)) or run.ended, 60)
    assert not run.ended, "it came in time"
    if victim == "the coordinator":
        run.kill_coordinator()
    else:
        with suppress(ProcessLookupError):
            os.kill(other if victim == "a member" else newcomers(run)[0], signal.SIGKILL)
    run.finish()
    run.same_as(reference)


def newcomers(run: Run) -> list[int]:
    """Process ids of workers that wait at the session or take the state, and are not members yet."""
    known = {member["member"] for member in run.view["members"]} | {
        e.data["member"] for e in run.of_kind("member.lost")
    }
    ready = (e.data["member"] for e in run.of_kind("member.ready"))
    return [int(name.rpartition(".")[2]) for name in ready if name not in known]


def test_everything_is_killed(job: Submit, reference: Run) -> None:
    """Coordinator, agents and workers: the run begins again from its seed and takes the same trajectory."""
    run = job(nodes=2, env={"PAUSE_S": "0.02"})
    run.until_step(6)
    run.kill_coordinator()
    for rank in (0, 1):
        run.kill_node(rank)
    run.finish()
    run.same_as(reference)
    assert len(run.of_kind("member.lost")) >= 2
