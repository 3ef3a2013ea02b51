"""What an incident says it took is what a person would time: from the fault to the next commit, detection included.

The stopwatch is this process's own clock, which the processes of the cluster share.
"""

from __future__ import annotations

import os
import signal
import time

import pytest

from jupyter_hyperpod.core.views import View
from jupyter_hyperpod.policy.membership import STOPPED_S
from tests.runtime.conftest import TRAIN, Run, Submit, spinning

CALM = {"PAUSE_S": "0.03"}
BEAT_S = 0.1  # how often a member gives a sign of life
LATE_S = 1.0  # what a busy machine may add to it


def recovered(run: Run, began_s: float, early_s: float = BEAT_S + LATE_S) -> View:
    """The only incident of a run, whose fault a person saw at ``began_s``: its figure is that of the stopwatch."""
    run.until_event("incident.stage", stage="resumed")
    (incident,) = run.view["incidents"]
    watched_s = incident["resumed_s"] - began_s
    assert watched_s / 2 <= incident["recovery_s"] <= watched_s + early_s, run.story()
    first = incident["stages"][0]
    assert first["stage"] == "detected" and first["took_s"] == incident["detection_s"]
    assert sum(stage["took_s"] for stage in incident["stages"][: _resumed(incident) + 1]) == pytest.approx(
        incident["recovery_s"], abs=1e-3
    )
    return incident


def _resumed(incident: View) -> int:
    return next(at for at, stage in enumerate(incident["stages"]) if stage["stage"] == "resumed")


def injected_s(run: Run) -> float:
    run.until_event("fault.injected")
    return run.of_kind("fault.injected")[0].time_s


def test_a_process_that_is_killed_from_outside(job: Submit) -> None:
    run = job(env=CALM)
    run.until_step(4)
    began_s = time.time()
    os.kill(run.worker_pid(1), signal.SIGKILL)
    incident = recovered(run, began_s)
    assert incident["cause"] == "process killed" and incident["started_s"] >= began_s


def test_a_process_that_is_stopped_from_outside_counts_its_silence(job: Submit) -> None:
    run = job(env=CALM)
    run.until_step(4)
    began_s = time.time()
    os.kill(run.worker_pid(1), signal.SIGSTOP)
    incident = recovered(run, began_s)
    assert incident["cause"] == "process stopped"
    assert incident["detection_s"] >= STOPPED_S and incident["recovery_s"] > incident["detection_s"]


def test_a_rank_that_spins_counts_the_whole_timeout(job: Submit, tmp_path: object) -> None:
    flag = f"{tmp_path}/spin"
    run = job(spinning(flag), hang_timeout_s=1.0, env=CALM)
    run.until(lambda: os.path.exists(flag), 60)
    incident = recovered(run, os.stat(flag).st_mtime)
    assert incident["cause"] == "process hung" and incident["detection_s"] >= 1.0


def test_a_fault_that_was_injected_into_a_rank_is_timed_from_there(job: Submit) -> None:
    run = job(env=CALM)
    run.until_step(4)
    run.hang(1)
    incident = recovered(run, injected_s(run), early_s=0.05)
    assert incident["detection_s"] >= STOPPED_S


def test_a_fault_that_the_cell_asks_for_is_timed_from_there(job: Submit) -> None:
    run = job(f'import jupyter_hyperpod as hp\nhp.faults.inject("hang", step=6, rank=1)\n{TRAIN}', env=CALM)
    incident = recovered(run, injected_s(run), early_s=0.05)
    assert incident["detection_s"] >= STOPPED_S


def test_a_node_that_is_killed(job: Submit) -> None:
    run = job(env=CALM)
    run.until_step(4)
    run.kill_node(1)
    assert recovered(run, injected_s(run))["cause"] == "node lost"


def test_a_wrong_bit_is_timed_from_the_flip_or_the_last_step_that_all_agreed_on(job: Submit) -> None:
    run = job(f'import jupyter_hyperpod as hp\nhp.faults.inject("flip-parameter", step=6, rank=1)\n{TRAIN}', env=CALM)
    incident = recovered(run, injected_s(run), early_s=0.05)
    assert incident["cause"] == "silent data corruption"


def test_a_step_that_is_left_out_counts_from_the_commit_before_it(job: Submit) -> None:
    guard = "scheduler=scheduler, guard=hp.Guard(non_finite='skip'))"
    source = TRAIN.replace("scheduler=scheduler)", guard)
    run = job(f'import jupyter_hyperpod as hp\nhp.faults.inject("nan", step=6, rank=1)\n{source}', env=CALM)
    run.finish()
    (incident,) = run.view["incidents"]
    fifth, sixth = (e.time_s for e in run.of_kind("step.committed") if e.data["step"] in (5, 6))
    assert fifth - LATE_S <= incident["started_s"] <= injected_s(run) + LATE_S
    assert incident["detection_s"] is not None and 0 < incident["detection_s"] <= incident["recovery_s"]
    assert incident["recovery_s"] <= sixth - fifth + LATE_S
