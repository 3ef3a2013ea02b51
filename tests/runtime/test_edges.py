"""What happens at the very end of a job, when some members are done and others are not; and to all at once."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from jupyter_hyperpod.storage.journal import command_writer
from tests.conftest import MARK, SHARED_MARK
from tests.leaks import marked_processes

from .conftest import TRAIN, Run, Submit, alive
from .test_leaving import agent_of


def test_a_coordinator_that_is_replaced_waits_for_those_who_still_work(
    job: Submit, reference: Run, tmp_path: Path
) -> None:
    """All but rank 0 have ended their cells, and rank 0, which saves the model, is the last to register again."""
    sign = tmp_path / "go on"
    after = f"""
if os.environ["RANK"] == "0":
    deadline = time.monotonic() + 60
    while not os.path.exists({str(sign)!r}) and time.monotonic() < deadline:
        time.sleep(0.005)
    print("saved")
"""
    run = job(TRAIN + after, nodes=3, spares=0)
    run.until_event("session.closed")
    others, agent = [run.worker_pid(rank) for rank in (1, 2)], agent_of(run, 0)
    run.until(lambda: not any(map(alive, others)), 60)
    os.kill(agent, signal.SIGSTOP)
    try:
        run.kill_coordinator()
        run.until_event("member.joined", count=3 + 2)
    finally:
        os.kill(agent, signal.SIGCONT)
    run.until_event("decision.made", reason="a new coordinator took over: all members registered again")
    sign.touch()
    assert run.finish()["reason"] == "all 3 members finished", run.story()
    run.same_as(reference)
    assert "saved" in run.text()[0], run.story()


def test_a_machine_that_stands_still_loses_nobody(job: Submit, reference: Run) -> None:
    run = job(env={"PAUSE_S": "0.05"})
    run.until_step(3)
    everybody = marked_processes("", SHARED_MARK).keys() & marked_processes(os.environ[MARK], MARK).keys()
    for pid in everybody:
        os.kill(pid, signal.SIGSTOP)
    stopped_s = time.monotonic()
    while time.monotonic() - stopped_s < 4.0:  # longer than any limit of silence
        time.sleep(0.05)
    for pid in everybody:
        os.kill(pid, signal.SIGCONT)
    view = run.finish()
    assert view["incidents"] == [], run.story()
    run.same_as(reference)


def test_a_number_of_steps_that_is_a_float(job: Submit, reference: Run) -> None:
    run = job(TRAIN.replace("steps(24)", "steps(47 / 2)"))
    run.finish()
    run.same_as(reference)


def test_a_worker_that_says_what_nobody_can_read_fails_its_cell(job: Submit) -> None:
    say = "from jupyter_hyperpod.runtime.session import loop\nloop.math.ceil = lambda count: 'many'\n"
    reason = job(say + TRAIN, nodes=1).finish("failed")["reason"]
    assert reason == "ProtocolError on rank 0: message 'session': field 'total_steps': expected int, found 'many'"


def test_a_log_rule_that_comes_with_the_stop_changes_nothing(job: Submit) -> None:
    run = job("import time\ntime.sleep(60)\n", nodes=2, script_restarts=3)
    run.until_event("phase.changed", phase="running script")
    coordinator = run.coordinator_pid()
    os.kill(coordinator, signal.SIGSTOP)
    try:
        with command_writer(run.store.job(run.job_id).commands, "test") as journal:
            journal.append("stop", {"reason": "enough"})
            journal.append("blame", {"rank": 0, "cause": "log rule", "reason": "it hangs"})
    finally:
        os.kill(coordinator, signal.SIGCONT)
    assert run.finish("stopped")["reason"] == "enough"
    assert not run.of_kind("member.lost")
