"""The promise: whatever fails, hangs, joins or leaves, every loss and the final state are the same bits."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.core.events import Event
from jupyter_hyperpod.runtime.audit import assignments
from jupyter_hyperpod.system.users import own_name
from tests.runtime.conftest import MICRO_BATCHES, STEPS, TRAIN, Run, Submit, alive, spin_once, spinning

SCHEDULES = 20
QUICK = {"PAUSE_S": "0.001"}
CALM = {"PAUSE_S": "0.03"}  # the job goes on for longer than a busy machine needs to disturb it


@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
def test_the_number_of_members_changes_no_bit(job: Submit, reference: Run, nodes: int) -> None:
    run = job(nodes=nodes, env=QUICK)
    run.finish()
    assert run.view["world_size"] == nodes
    run.same_as(reference)


@pytest.mark.parametrize(("nodes", "rank"), [(2, 0), (2, 1), (3, 0), (3, 1), (4, 0), (4, 3)])
def test_a_killed_rank_costs_no_step(job: Submit, reference: Run, nodes: int, rank: int) -> None:
    run = job(nodes=nodes, env=CALM)
    run.until_step(6)
    run.kill(rank)
    view = run.finish()
    run.same_as(reference)
    assert [i["cause"] for i in view["incidents"]] == ["process killed"]
    assert view["incidents"][0]["rung"] is not None
    assert view["redone"] <= MICRO_BATCHES, "only the victim's share is computed again"


def test_a_killed_rank_is_replaced(job: Submit, reference: Run) -> None:
    run = job(env={"PAUSE_S": "0.02"})
    run.until_step(3)
    run.kill(1)
    run.until_event("incident.stage", stage="rejoined")
    run.until_world(3)
    run.finish()
    stages = [e.data["stage"] for e in run.of_kind("incident.stage")]
    assert stages[:3] == ["detected", "diagnosed", "fenced"]
    assert {"resumed", "rejoined"} <= set(stages)
    run.same_as(reference)


@pytest.mark.quick
def test_a_killed_node_is_replaced(job: Submit, reference: Run) -> None:
    run = job(env={"PAUSE_S": "0.02"})
    run.until_step(3)
    node = run.node_of(1)
    run.kill_node(1)
    run.until_event("incident.stage", stage="rejoined")
    run.finish()
    assert run.view["incidents"][0]["node"] == node
    assert run.view["incidents"][0]["cause"] == "node lost"
    run.same_as(reference)


def test_a_rank_that_hangs_is_fenced(job: Submit, reference: Run) -> None:
    run = job(env=CALM)
    run.until_step(6)
    run.hang(1)
    view = run.finish()
    assert view["incidents"][0]["cause"] == "process stopped"
    run.same_as(reference)


def test_a_rank_that_spins_is_fenced(job: Submit, reference: Run, tmp_path: object) -> None:
    run = job(spinning(f"{tmp_path}/spin"), hang_timeout_s=0.5)
    view = run.finish()
    assert view["incidents"][0]["cause"] == "process hung"
    run.same_as(reference)


def slow_start(what: str) -> str:
    """`TRAIN` that does something in the first micro-batch of every process, as torch.compile does."""
    first = f"    global warm\n    if not warm:\n        warm = True\n        {what}\n"
    return TRAIN.replace("def loss_fn(batch):\n", f"warm = False\n\ndef loss_fn(batch):\n{first}")


def test_a_newcomer_that_starts_slowly_is_not_fenced(job: Submit, reference: Run) -> None:
    """Its first micro-batch takes many times the time after which a rank counts as hung; the others wait for it."""
    run = job(slow_start("time.sleep(5)"), hang_timeout_s=1.0, env={"PAUSE_S": "0.04"})
    run.until_step(3)
    run.kill(1)
    run.finish()
    assert [i["cause"] for i in run.view["incidents"]] == ["process killed"], run.story()
    joined = {e.data["member"] for e in run.of_kind("member.ready")}
    computed = {owner for _, found in assignments(run.of_kind("step.committed")) for owner, leaves in found if leaves}
    assert joined & computed, run.story()
    run.same_as(reference)


def test_a_newcomer_that_hangs_in_its_first_micro_batch_is_fenced(
    job: Submit, reference: Run, tmp_path: object
) -> None:
    spin = spin_once(f"{tmp_path}/hung")
    run = job(spin + slow_start("if session.step >= 3: spin()"), hang_timeout_s=0.1, env={"PAUSE_S": "0.1"})
    run.until_step(3)
    run.kill(1)
    run.finish()
    assert [i["cause"] for i in run.view["incidents"]] == ["process killed", "process hung"], run.story()
    limit = re.search(r"in the first micro-batch of its process, limit (\d+\.\d) s", run.story())
    assert limit and float(limit[1]) >= 2.0, run.story()  # more where the others' first ones took long
    run.same_as(reference)


def test_a_stopped_node_is_fenced(job: Submit, reference: Run) -> None:
    run = job(env=CALM)
    run.until_step(6)
    run.stop_node(2)
    view = run.finish()
    assert view["incidents"][0]["cause"] in ("heartbeat lost", "node lost", "process stopped")
    run.same_as(reference)


def test_a_killed_coordinator_stalls_nobody(job: Submit, reference: Run) -> None:
    run = job(env={"PAUSE_S": "0.02"})
    run.until_step(4)
    generation = run.view["generation"]
    run.kill_coordinator()
    run.until_event("decision.made", policy="membership", value=generation)
    run.until_step(8)
    run.kill(1)
    run.finish()
    assert "a new coordinator took over" in run.story()
    run.same_as(reference)


def test_the_coordinator_and_a_rank_die_together(job: Submit, reference: Run) -> None:
    run = job(env=CALM)
    run.until_step(4)
    victim = run.worker_pid(1)
    run.kill_coordinator()
    os.kill(victim, signal.SIGKILL)
    run.finish()
    run.same_as(reference)


def test_the_coordinator_and_a_node_die_together(job: Submit, reference: Run) -> None:
    run = job(env=CALM)
    run.until_step(4)
    run.kill_coordinator()
    run.kill_node(1)
    run.finish()
    assert [e.data["cause"] for e in run.of_kind("member.lost")].count("node lost") >= 1
    run.same_as(reference)


def test_the_coordinator_dies_while_a_generation_forms(job: Submit, reference: Run) -> None:
    run = job(env=CALM)
    run.until_step(4)
    run.kill(2)
    run.until_event("member.lost")
    run.kill_coordinator()
    run.finish()
    run.same_as(reference)


def test_the_coordinator_dies_before_the_session_opens(job: Submit, reference: Run) -> None:
    waits = "import time, os; time.sleep(0.3 * (1 + int(os.environ['RANK'])))\n"
    run = job(waits + TRAIN)
    run.until_event("generation.formed")
    run.kill_coordinator()
    run.finish()
    run.same_as(reference)


def test_the_coordinator_dies_when_all_cells_are_over(job: Submit, reference: Run) -> None:
    run = job(TRAIN + "\nprint('trained')\ntime.sleep(0.4)\n")
    run.until_event("output.written", count=3)
    run.kill_coordinator()
    run.finish()
    run.same_as(reference)


def test_scaling_changes_no_bit(job: Submit, reference: Run) -> None:
    run = job(env=CALM)
    run.until_step(4)
    run.scale(2)
    run.until_world(2)
    run.scale(3)
    run.until_world(3)
    run.finish()
    assert [len(g["nodes"]) for g in run.view["generations"]].count(2) >= 1
    assert not run.of_kind("member.lost"), "who is released is not lost"
    run.same_as(reference)


def test_two_ranks_killed_at_once(job: Submit, reference: Run) -> None:
    run = job(nodes=4, env=CALM)
    run.until_step(6)
    for pid in (run.worker_pid(1), run.worker_pid(2)):
        os.kill(pid, signal.SIGKILL)
    run.finish()
    assert len(run.of_kind("member.lost")) >= 2
    run.same_as(reference)


def test_two_nodes_killed_at_once(job: Submit, reference: Run) -> None:
    run = job(nodes=4, env=CALM)
    run.until_step(6)
    run.kill_node(1)
    run.kill_node(2)
    run.finish()
    run.same_as(reference)


def test_a_kill_during_a_recovery(job: Submit, reference: Run) -> None:
    run = job(nodes=4, env=CALM)
    run.until_step(6)
    second = run.worker_pid(2)
    run.kill(0)
    run.until_event("member.lost")
    os.kill(second, signal.SIGKILL)
    run.finish()
    run.same_as(reference)


def test_a_kill_in_the_first_step(job: Submit, reference: Run) -> None:
    run = job(env={"PAUSE_S": "0.05"})
    run.until_event("decision.made", policy="recovery")
    run.kill(1)
    run.finish()
    run.same_as(reference)


def test_a_kill_in_the_last_step(job: Submit, reference: Run) -> None:
    run = job(env={"PAUSE_S": "0.03"})
    run.until_step(STEPS - 1)
    run.kill(1)
    run.finish()
    run.same_as(reference)
    assert run.losses()[STEPS] == reference.losses()[STEPS]


def test_all_ranks_killed_begin_again(job: Submit, reference: Run) -> None:
    run = job(nodes=2, env=CALM)
    run.until_step(6)
    for pid in (run.worker_pid(0), run.worker_pid(1)):
        os.kill(pid, signal.SIGKILL)
    run.finish()
    run.same_as(reference)


def test_too_few_members_wait_for_a_replacement(job: Submit, reference: Run) -> None:
    run = job(nodes=2, elastic="2:2", env=CALM)
    run.until_step(6)
    run.kill(1)
    run.finish()
    assert {e.data["world_size"] for e in run.of_kind("step.committed")} == {2}
    run.same_as(reference)


def test_an_optimizer_that_overwrites_gradients_is_not_replayed(job: Submit) -> None:
    nesterov = "torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, nesterov=True, foreach=True)"
    source = TRAIN.replace("torch.optim.AdamW(model.parameters(), lr=1e-2)", nesterov)
    calm = job(source, nodes=2, env=QUICK)
    calm.finish()
    run = job(source, nodes=2, env=CALM)
    for step in (4, 10, 16):
        run.until_step(step)
        run.kill(0)
        run.until_world(2)
    run.finish()
    run.same_as(calm)


def test_strangers_at_the_doors_change_nothing(job: Submit, reference: Run) -> None:
    run = job(env=CALM)
    run.until_step(2)
    endpoint = json.loads((run.store.job(run.job_id).path / "coordinator.json").read_text())
    with ExitStack() as strangers:
        for noise in (b"", b"GET / HTTP/1.1\r\n\r\n", b"HPOD1" + b"x" * 200) * 10:
            stranger = strangers.enter_context(socket.create_connection((endpoint["host"], endpoint["port"])))
            stranger.sendall(noise)
        run.until_step(6)
        run.kill(1)
        run.finish()
    run.same_as(reference)
    assert any("a connection was refused" in warning["text"] for warning in run.view["warnings"])


def test_an_agent_that_comes_too_late_ends_by_itself(job: Submit, eventually: Callable[..., object]) -> None:
    late = _late_agent(job("print('short')", nodes=1), eventually)
    assert late.returncode == 0


def test_an_agent_takes_variables_of_its_job_before_it_imports_torch(
    job: Submit, eventually: Callable[..., object]
) -> None:
    late = _late_agent(job("import torch", nodes=1), eventually, "-X", "importtime")
    begun = [line.rpartition("|")[2].strip() for line in late.stderr.splitlines() if "import time:" in line]
    assert (begun.count("site"), begun.count("torch.nn")) == (2, 1)


def _late_agent(run: Run, eventually: Callable[..., object], *options: str) -> subprocess.CompletedProcess[str]:
    """An agent that is started when its job is over, as a new interpreter."""
    run.finish()
    path = run.store.job(run.job_id).path
    word = path / "coordinator.json"
    eventually(lambda: json.loads(word.read_text()) == {"ended": "succeeded"})
    environment = os.environ | {
        "HYPERPOD_JOB_DIR": str(path),
        "HYPERPOD_NODE": "node-9",
        "PYTHONHASHSEED": "1",  # another one than the job has
        "HYPERPOD_CELL": str(run.store.cells / run.store.job(run.job_id).spec().cell_digest),
    }
    command = [sys.executable, *options, "-m", "jupyter_hyperpod.runtime.agent.main"]
    return subprocess.run(command, env=environment, timeout=60, capture_output=True, text=True, check=False)


def test_stop_while_recovering(job: Submit) -> None:
    run = job(env={"PAUSE_S": "0.05"})
    run.until_step(2)
    run.kill(1)
    run.stop()
    assert run.finish("stopped")["reason"] == f"stopped by {own_name()}"


def test_a_worker_dies_with_its_agent(job: Submit, eventually: Callable[..., object]) -> None:
    run = job(env={"PAUSE_S": "0.05"})
    run.until_step(2)
    worker = run.worker_pid(1)
    agent = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(agent, signal.SIGKILL)
    eventually(lambda: not alive(worker))
    run.until_event("incident.stage", stage="resumed")
    run.stop()
    run.finish("stopped")


@pytest.mark.parametrize("seed", range(SCHEDULES))
def test_a_random_schedule_of_faults_changes_no_bit(job: Submit, reference: Run, seed: int) -> None:
    rng = random.Random(seed)
    nodes = rng.randint(2, 4)
    steps = sorted(rng.sample(range(1, STEPS - 3), rng.randint(2, 4)))
    plan = [(step, rng.choice(["kill", "kill", "hang", "scale", "node"]), rng.randrange(nodes)) for step in steps]
    print(f"seed {seed}: {nodes} nodes, {plan}")
    run = job(nodes=nodes)
    for step, what, where in plan:
        run.until_step(step)
        if run.ended:
            break
        _strike(run, what, where, nodes)
    run.finish()
    run.same_as(reference)


def _strike(run: Run, what: str, where: int, nodes: int) -> None:
    ranks = [member["rank"] for member in run.view["members"]]
    rank = ranks[where % len(ranks)]
    if what == "scale":
        run.scale(1 + where % nodes)
        return
    aim = {"rank": rank} if what != "node" else {"node": run.node_of(rank)}
    kind = "hang" if what == "hang" else "kill"
    try:
        jobs.fault(run.store, run.job_id, kind, **aim)  # type: ignore[arg-type]
    except jobs.NotFound:
        pass  # the membership changed between our look and this


def test_the_last_event_is_the_terminal_state(job: Submit) -> None:
    run = job("print('a' * 1000)\nprint('last words')\n", nodes=2)
    run.finish()
    events: list[Event] = sorted(run.events, key=lambda e: e.time_s)
    assert events[-1].kind == "job.state"
    assert all("last words" in text for text in run.text().values())
