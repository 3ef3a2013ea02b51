"""Scripts without hp.Session: started again from their own checkpoint, and told when their job changes in size."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import jupyter_hyperpod as hp
from jupyter_hyperpod.core.elastic import ElasticRange
from jupyter_hyperpod.policy.scripts import GROW_PATIENCE_S, HOLD_S, Trouble, call_number, judge, resize
from jupyter_hyperpod.runtime.progress import WorkerProgress
from tests.runtime.conftest import Run, Submit

DDP = Path(__file__).with_name("ddp_script.py")
ALLOWED = ElasticRange(1, 4)


def printed(run: Run) -> str:
    return "".join(event.data["text"] for event in run.of_kind("output.written"))


def until_printed(run: Run, text: str, count: int = 1) -> None:
    run.until(lambda: printed(run).count(text) >= count or run.ended, 60)
    assert printed(run).count(text) >= count, run.story()


def sums(text: str) -> set[str]:
    # torchrun's ranks share one pipe, so one rank's line may start before another's has ended.
    return set(re.findall(r"ends with (-?0x[\da-f.]+p[+-]\d+)", text))


@pytest.fixture(scope="module")
def torchrun(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the same file prints under torchrun, undisturbed."""
    checkpoint = tmp_path_factory.mktemp("torchrun") / "checkpoint.pt"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(DDP)]
    environment = os.environ | {"CHECKPOINT": str(checkpoint), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def ddp(job: Submit, tmp_path: Path, **fields: Any) -> Run:
    env = {"CHECKPOINT": str(tmp_path / "checkpoint.pt"), "PAUSE_S": "0.1"}
    return job(DDP.read_text(), nodes=2, filename=str(DDP), env=env, **fields)


@pytest.mark.parametrize("aim", ["rank", "node"])
def test_an_unchanged_torchrun_script_goes_on_from_its_own_checkpoint(
    job: Submit, torchrun: str, tmp_path: Path, aim: str
) -> None:
    run = ddp(job, tmp_path)
    until_printed(run, "begins after step 0", 2)
    run.until(lambda: (tmp_path / "checkpoint.pt").exists(), 60)
    run.kill(1) if aim == "rank" else run.kill_node(1)
    view = run.finish()
    assert sums(printed(run)) == sums(torchrun) and len(sums(torchrun)) == 1
    begun = [int(step) for step in re.findall(r"begins after step (\d+)", printed(run))]
    assert sorted(begun)[:2] == [0, 0] and min(sorted(begun)[2:]) >= 1
    assert view["error"] is None and view["generation"] == 2
    (incident,) = view["incidents"]
    stages = [stage["stage"] for stage in incident["stages"]]
    assert stages[:3] == ["detected", "diagnosed", "fenced"] and {"rejoined", "resumed"} <= set(stages), run.story()
    assert incident["rung"] in (2, 3)
    assert "all ranks start again from their own checkpoint (1 of 3)" in run.story()


def test_the_restarts_are_bounded(job: Submit, tmp_path: Path) -> None:
    run = ddp(job, tmp_path, script_restarts=1)
    for times in (1, 2):
        until_printed(run, "begins after step", 2 * times)
        os.kill(run.worker_pid(1), signal.SIGKILL)
    view = run.finish("failed")
    assert "its 1 restart is used up: nothing more can be recovered outside hp.Session" in view["reason"]


def test_an_exception_of_the_script_is_not_retried(job: Submit) -> None:
    source = """
import os, torch.distributed as dist, torch
dist.init_process_group("gloo")
if dist.get_rank() == 1:
    raise ValueError("a mistake of the program")
dist.all_reduce(torch.ones(1))
"""
    run = job(source, nodes=2)
    view = run.finish("failed")
    assert view["reason"] == "ValueError on rank 1 at line 5: a mistake of the program"
    assert view["generation"] == 1 and view["error"]["type"] in ("ValueError", "RuntimeError")


def test_the_environment_is_that_of_torchrun(job: Submit) -> None:
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "GROUP_RANK"]
    names += ["ROLE_RANK", "ROLE_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_NAME", "TORCHELASTIC_RUN_ID"]
    names += ["TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"]
    run = job(f"import os\nprint([name for name in {names} if name not in os.environ], os.environ['MASTER_PORT'])")
    run.finish()
    assert printed(run).count("[] ") == 3


# Ranks are apart, and nobody waits for anybody: only the job can make them agree on a call.
LOOP = """
import os, time, jupyter_hyperpod as hp
rank, world = int(os.environ["RANK"]), os.environ["WORLD_SIZE"]
print(f"rank {rank} of {world} runs, restart {os.environ['TORCHELASTIC_RESTART_COUNT']}")
for call in range(1, 100_000):
    if hp.elastic_event_detected():
        print(f"rank {rank} of {world} is told in call {call}")
        break
    time.sleep(0.001 * (1 + 4 * rank))
"""


def told_in_the_same_call(run: Run, world: int) -> None:
    calls = re.findall(rf"rank (\d) of {world} is told in call (\d+)", printed(run))
    assert sorted(int(rank) for rank, _ in calls) == list(range(world)), run.story()
    assert len({call for _, call in calls}) == 1, calls


def test_every_rank_is_told_in_the_same_call_and_begins_again_in_another_size(job: Submit) -> None:
    run = job(LOOP, nodes=2, elastic="1:4", spares=0)
    until_printed(run, "of 2 runs", 2)
    run.scale(3)
    until_printed(run, "of 3 runs", 3)
    told_in_the_same_call(run, 2)
    run.scale(1)
    until_printed(run, "of 1 runs", 1)
    told_in_the_same_call(run, 3)
    assert not run.of_kind("member.lost") and not run.view["incidents"], run.story()
    assert "restart 1" not in printed(run), "a planned change is not counted"


def test_a_preempted_script_saves_and_goes_on_elsewhere(job: Submit) -> None:
    run = job(LOOP, nodes=2, elastic="1:2", spares=0, scale_up_delay_s=60)
    until_printed(run, "of 2 runs", 2)
    run.preempt(0)
    until_printed(run, "of 1 runs", 1)
    told_in_the_same_call(run, 2)
    assert not run.view["incidents"], run.story()


def test_a_script_that_never_asks_is_left_alone_until_the_grace_time_is_over(job: Submit) -> None:
    run = job("import os, time\nprint('runs')\ntime.sleep(1000)", nodes=2, spares=0, grace_s=0.3)
    until_printed(run, "runs", 2)
    run.preempt(1)
    until_printed(run, "runs", 3)
    assert [incident["cause"] for incident in run.view["incidents"]] == ["preempted"]


def test_a_new_coordinator_keeps_its_word(job: Submit) -> None:
    run = job(LOOP.replace("        break", "        time.sleep(1.0)\n        break"), nodes=2, elastic="1:4", spares=0)
    until_printed(run, "of 2 runs", 2)
    run.scale(1)
    until_printed(run, "is told", 1)
    run.kill_coordinator()
    until_printed(run, "of 1 runs", 1)
    told_in_the_same_call(run, 2)


def test_an_event_that_ends_a_session_begins_the_cell_and_its_session_anew(job: Submit) -> None:
    source = """
import os, time, torch, jupyter_hyperpod as hp
print("runs of", os.environ["WORLD_SIZE"])
for _ in range(20):
    hp.elastic_event_detected()
    time.sleep(0.1)
model = torch.nn.Linear(4, 1)
data = [(torch.ones(4), torch.ones(1)) for _ in range(16)]
with hp.Session(model, torch.optim.SGD(model.parameters(), lr=0.1), data, global_batch=8, micro_batch=2) as session:
    for step in session.steps(5):
        step.run(lambda batch: torch.nn.functional.mse_loss(model(batch[0]), batch[1]))
        if hp.elastic_event_detected():
            break
"""
    run = job(source, nodes=2, elastic="1:2", spares=0)
    until_printed(run, "runs of 2", 2)
    run.scale(1)
    run.finish()
    assert printed(run).count("runs of 1") == 1
    assert len(run.of_kind("session.opened")) == len(run.of_kind("session.closed")) == 2
    assert run.view["step"] == 5 and not run.view["incidents"], run.story()


def test_outside_a_job_there_is_no_event() -> None:
    assert hp.elastic_event_detected() is False


# ---- the call that all agree on --------------------------------------------------------------------------------


def ask(progress: WorkerProgress, until: int, answers: Any) -> None:
    for call in range(1, until):
        if progress.call():
            answers.put(call)
            return
    answers.put(0)


def test_a_call_is_never_missed_however_fast_the_worker_is() -> None:
    """The worker calls without a pause; the agent proposes until it is in time: then exactly that call says True."""
    context = multiprocessing.get_context("fork")
    for _ in range(20):
        progress, answers, tries = WorkerProgress(), context.SimpleQueue(), 0
        worker = context.Process(target=ask, args=(progress, 50_000_000, answers))
        worker.start()
        while not progress.propose(at := call_number([progress.calls], tries)):
            tries = min(tries + 1, 8)
        progress.decide(at)
        assert answers.get() == at
        worker.join()


def test_an_event_that_is_called_off_lets_a_waiting_call_go() -> None:
    progress = WorkerProgress()
    assert progress.propose(1)
    progress.decide(0)
    assert not progress.call() and not progress.detected
    assert not progress.propose(1), "it has come already"
    assert progress.propose(2)
    progress.decide(2)
    assert progress.call() and progress.call() and progress.detected


# ---- decisions -------------------------------------------------------------------------------------------------

kinds = st.sampled_from(["lost", "communication", "error"])
troubles = st.builds(Trouble, st.integers(0, 8), kinds, st.text(min_size=1), st.floats(0, 5))


@given(st.lists(troubles, min_size=1), st.integers(0, 4), st.integers(0, 4))
def test_what_becomes_of_troubles(found: list[Trouble], restarts: int, limit: int) -> None:
    decision = judge(found, restarts, limit)
    lost = any(trouble.kind == "lost" for trouble in found)
    wrong = any(trouble.kind == "error" for trouble in found)
    young = all(trouble.age_s < HOLD_S for trouble in found)
    assert decision.reason
    assert (decision.value == "wait") == (young and not lost)
    if decision.value != "wait":
        assert (decision.value == "restart") == (restarts < limit and (lost or not wrong))


@given(st.integers(1, 6), st.integers(0, 6), st.integers(0, 4), st.integers(1, 4), st.floats(0, 9))
def test_how_many_ranks_go_on(here: int, preempted: int, newcomers: int, target: int, waited_s: float) -> None:
    preempted = min(preempted, here)
    decision = resize(here, preempted, newcomers, target, ALLOWED, waited_s)
    able = min(target, here - preempted + newcomers)
    assert decision.reason and 0 <= decision.value <= max(able, here - preempted)
    if decision.value and not preempted:
        assert decision.value != here and ALLOWED.allows(decision.value)
        assert decision.value < here or decision.value == target or waited_s >= GROW_PATIENCE_S
