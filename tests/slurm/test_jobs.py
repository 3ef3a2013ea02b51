"""The same training on SLURM: submitted, disturbed for real, and the same bits as on one local node."""

from __future__ import annotations

import hashlib
import os
import secrets
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_hyperpod.backends.slurm.script import REQUEUED_WAITS
from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.control.runs.resources import resources_for_browser
from jupyter_hyperpod.control.runs.verbs import report_for_browser
from jupyter_hyperpod.core.errors import Conflict, NotFound
from jupyter_hyperpod.storage.store import ENVIRONMENT
from tests.runtime.conftest import TRAIN, Run
from tests.secrets_scan import command_lines_with, files_with
from tests.slurm.conftest import Gated, Submit
from tests.support.slurm import CONTROLLER, Testbed

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]
START_S = 120.0


def queue(bed: Testbed, run: Run) -> list[list[str]]:
    """(partition, state) of the job's elements."""
    done = bed.run(CONTROLLER, "squeue", "-h", "-r", "-t", "all", "-n", run.job_id, "-o", "%P %T")
    return [line.split() for line in done.stdout.splitlines()]


def test_whatever_happens_to_nodes_the_trajectory_stays(
    bed: Testbed, job: Submit, reference: Run, tmp_path: Path
) -> None:
    """One run on three of four nodes: each fault costs the job a node, which is replaced from the pool."""
    gate = Gated(tmp_path)
    options = ["--nodes", "3", "--elastic", "1:3", "--spares", "0", "--env", f"GATE={gate.path}"]
    run = job(*options, "--slurm", "elastic-partition=spot", source=gate.source, pause_s=0.15)

    def disturb(act: Callable[[str], object], undo: Callable[[str], object], leaves: bool = False) -> str:
        """In the middle of a step; then wait until three nodes commit a step again, and mend the node."""
        gate.let(run.view["step"] + 1)
        victim, member = run.node_of(1), run.view["members"][1]["member"]
        act(victim)

        def gone() -> bool:
            return member not in [m["member"] for m in run.view["members"]]

        if leaves:
            gate.steps_until(run, gone, START_S)  # it leaves after a step
        run.until(gone, START_S)
        gate.until_whole(run, 3, START_S)
        undo(victim)
        bed.in_service(victim)
        return victim

    gate.let(1)  # a late node begins when a step is committed
    gate.until_whole(run, 3, START_S)
    cut_off = disturb(bed.power_cut, bed.power_on)
    assert cut_off not in [member["node"] for member in run.view["members"]]
    disturb(bed.freeze, bed.thaw)
    disturb(bed.cut, bed.heal)
    drained = disturb(lambda node: bed.drain(node, "bad disk"), bed.resume, leaves=True)
    assert drained not in [member["node"] for member in run.view["members"]]
    bed.stop_controller()
    bed.slow_down(slow := run.node_of(0))
    disturb(lambda _: run.kill(1), lambda _: bed.start_controller())
    bed.full_speed(slow)
    run.full_speed()
    gate.let(24)
    run.finish(timeout_s=START_S)
    run.same_as(reference)
    causes = [incident["cause"] for incident in run.view["incidents"]]
    assert causes.count("network partition") == 2 and "process killed" in causes, run.story()
    bed.until(lambda: all(state != "RUNNING" for _, state in queue(bed, run)), "nothing is left in the queue")


# Read by every interpreter as it starts. Each node has a /run of its own.
SICK = """
import os, time

while os.path.exists("/run/hang"):
    time.sleep(0.1)
if os.path.exists("/run/broken"):
    os._exit(3)
"""
ENDLESS = TRAIN.replace("session.steps(24)", "session.steps(10_000)")
TELL = "import os\nprint(sorted(name for name in os.environ if name.startswith('SLURM_')))\n"


TELL_SECRET = """
import hashlib, os, time
print("arrived", hashlib.sha256(os.environ["HF_TOKEN"].encode()).hexdigest(), flush=True)
while not os.path.exists(os.environ["OPEN"]):
    time.sleep(0.05)
"""
NASTY = "$(touch {mark}); `touch {mark}` '\"\\ %j ${{HOME}} &| <x> *\n#SBATCH --hold\ntouch {mark}\n"
TELL_NASTY = "import os, sys\nprint(repr((os.environ['NASTY'], os.getcwd())))\n"


def test_hostile_words_and_places_stay_words_and_places(
    bed: Testbed, job: Submit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "executed"
    nasty = NASTY.format(mark=mark)
    place = tmp_path / NASTY.format(mark="executed")
    place.mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), os.getcwd()])))
    monkeypatch.chdir(place)
    run = job("--nodes", "1", "--spares", "0", "--env", f"NASTY={nasty}", source=TELL_NASTY)
    assert run.until_ended(START_S)["state"] == "succeeded", run.story()
    assert repr((nasty, str(place))) in "".join(run.text().values())
    assert not mark.exists() and not list(place.iterdir())


def test_a_secret_is_neither_in_the_batch_script_nor_in_what_slurm_shows(
    bed: Testbed, job: Submit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = "hf_" + secrets.token_hex(20)
    monkeypatch.setenv("HF_TOKEN", token)
    gate = tmp_path / "gate"
    run = job("--nodes", "2", "--spares", "0", "--env", "HF_TOKEN", "--env", f"OPEN={gate}", source=TELL_SECRET)
    monkeypatch.delenv("HF_TOKEN")
    digest = hashlib.sha256(token.encode()).hexdigest()
    run.until(lambda: sum(f"arrived {digest}" in text for text in run.text().values()) == 2, START_S)
    private = run.store.job(run.job_id).path / ENVIRONMENT
    elements = {event.data["element"] for event in run.of_kind("allocation.changed")}
    shown = [bed.run(CONTROLLER, "scontrol", "show", "job", "-dd", name).stdout for name in elements]
    shown += [bed.run(CONTROLLER, "scontrol", "write", "batch_script", name, "-").stdout for name in elements]
    shown += [bed.run(CONTROLLER, "squeue", "-o", "%all").stdout]
    assert len(elements) == 2 and any("jupyter_hyperpod.runtime.agent.main" in text for text in shown)
    assert not any(token in text for text in shown)
    assert files_with(run.store.root, token, besides=private) == []
    assert files_with(bed.directory, token) == [], "what the daemons keep"
    assert command_lines_with(token) == []
    gate.touch()
    run.finish(timeout_s=START_S)
    run.until(lambda: not private.exists(), 30)


def test_a_node_that_fails_its_health_check_is_replaced_and_a_running_job_is_scaled(
    bed: Testbed, job: Submit, reference: Run
) -> None:
    run = job("--nodes", "3", "--elastic", "1:3", "--spares", "0", pause_s=0.6)
    run.until_world(3, START_S)
    sick_node = run.node_of(1)
    bed.run(sick_node, "sh", "-c", "echo bad disk > /run/fault")  # SLURM's HealthCheckProgram reads it
    run.until(lambda: sick_node not in {member["node"] for member in run.view["members"]}, START_S)
    run.until_world(3, START_S)
    jobs.scale(run.store, run.job_id, 2)
    run.until_world(2, START_S)
    run.full_speed()
    run.finish(timeout_s=START_S)
    run.same_as(reference)
    assert not run.of_kind("member.lost"), run.story()


def sick(tmp_path: Path) -> list[str]:
    """Options for a job that runs on nodes as they are told to be in their /run."""
    (tmp_path / "sitecustomize.py").write_text(SICK)
    path = os.pathsep.join((str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")]), os.getcwd()))
    return ["--env", f"PYTHONPATH={path}"]


def test_a_node_on_which_nothing_begins_is_avoided(bed: Testbed, job: Submit, tmp_path: Path) -> None:
    bed.run("n1", "touch", "/run/broken")
    run = job("--nodes", "2", "--elastic", "1:2", "--spares", "0", *sick(tmp_path), source=ENDLESS, pause_s=0.1)
    run.until_world(2, START_S)
    assert any(
        "n1 is avoided where enough others serve: 2 elements" in warning["text"] for warning in run.view["warnings"]
    )
    assert "n1" not in {event.data["node"] for event in run.of_kind("member.joined")}
    run.stop()
    assert run.until_ended(60)["state"] == "stopped"
    bed.run("n1", "rm", "/run/broken")


def test_what_slurm_has_requeued_is_not_waited_for_and_a_job_without_nodes_says_why(bed: Testbed, job: Submit) -> None:
    run = job("--nodes", "2", "--elastic", "1:2", "--spares", "0", source=ENDLESS, pause_s=0.1)
    run.until_world(2, START_S)
    lost, began = run.view["members"][1], run.of_kind("allocation.changed")
    name = next(e.data["element"] for e in began if e.data["node"] == lost["node"])
    bed.run(CONTROLLER, "scontrol", "requeue", name)
    run.until(lambda: lost["member"] not in [member["member"] for member in run.view["members"]], START_S)
    run.until_world(2, START_S)
    why = f"{name} is given up: {REQUEUED_WAITS}"
    assert sum(why in e.data["reason"] for e in run.of_kind("decision.made")) == 1, run.story()

    def states() -> list[str]:
        return [e.data["state"] for e in run.of_kind("allocation.changed") if e.data["element"] == name]

    run.until(lambda: states()[-1] == "CANCELLED", START_S)
    assert states().count("RUNNING") == 1, run.story()
    urgent = bed.start(CONTROLLER, ["srun", "-p", "urgent", "-N4", "--exclusive", "sleep", "600"])
    bare = "no node is left, and SLURM has not started any of the 2 asked for: "
    run.until(lambda: any(warning["text"].startswith(bare) for warning in run.view["warnings"]), START_S)
    bed.run(CONTROLLER, "scancel", "--partition=urgent")
    urgent.wait(30)
    run.until_world(2, START_S)
    run.stop()
    assert run.until_ended(60)["state"] == "stopped"


def test_a_node_never_joins_and_one_is_killed_by_hand_beside_a_local_job(
    bed: Testbed, job: Submit, tmp_path: Path
) -> None:
    bed.run("n1", "touch", "/run/hang")
    options = ["--nodes", "2", "--elastic", "1:2", "--spares", "0", *sick(tmp_path)]
    run = job(*options, "--slurm", "startup-deadline=20s", source=TELL + ENDLESS, pause_s=0.1)
    run.until(lambda: bool(run.view["members"]), START_S)
    local = jobs.submit(run.store, "print('here')", {"name": "local", "spares": 0})
    run.until_world(2, START_S)
    given_up = [e.data["reason"] for e in run.of_kind("decision.made") if "without joining" in e.data["reason"]]
    assert " has run on n1 for " in given_up[0] and "; n1 is avoided" in given_up[0], run.story()
    assert any("never joined the job: " in warning["text"] for warning in run.view["warnings"])
    with pytest.raises(Conflict, match="a node of slurm cannot be cut off"):
        jobs.fault(run.store, run.job_id, "partition", node=run.node_of(1))
    with pytest.raises(NotFound, match="has no node"):
        jobs.fault(run.store, run.job_id, "kill", node="n1; scancel -u root")
    killed = run.view["members"][1]["member"]
    jobs.fault(run.store, run.job_id, "kill", node=run.node_of(1))
    run.until(lambda: killed not in [member["member"] for member in run.view["members"]], START_S)
    assert run.of_kind("member.lost"), f"it got no time to leave\n{run.story()}"
    run.until_world(2, START_S)
    assert jobs.wait(run.store, local, timeout_s=START_S)["state"] == "succeeded", "it brought local nodes along"
    run.stop()
    assert run.until_ended(60)["state"] == "stopped"
    bed.until(lambda: {state for _, state in queue(bed, run)} <= {"COMPLETED", "CANCELLED", "FAILED"}, "it is over")
    told = run.text()
    assert all("SLURM_JOB_ID" in text for text in told.values())
    assert len({event.data["node"] for event in run.of_kind("output.written")}) > 1, "all ranks are heard"
    assert not any("NODELIST" in text or "NTASKS" in text for text in told.values()), "what is stale is not passed on"
    ran_on = [e.data["node"] for e in run.of_kind("allocation.changed") if e.data["state"] == "RUNNING"]
    assert len(ran_on) == 3 + len(given_up), "two, those for whom never came, and one for the killed one"
    assert ran_on.count("n1") == 1, "it would have got the same node again"
    bed.run("n1", "rm", "/run/hang")


def samples_arrived(run: Run) -> None:
    """The page and the report of the job have what each of its nodes used: CPU time, memory, and the node's network."""
    nodes = {event.data["node"] for event in run.of_kind("member.joined")}
    used = resources_for_browser(run.store, run.job_id)
    assert set(used["lines"]) == nodes and set(used["phases"]) == nodes, used
    assert {"cpu", "memory", "received", "sent"} <= set(used["curves"]), used
    for quantity, least in (("cpu", 0.5), ("memory", 50e6), ("received", 1000), ("sent", 1000)):
        for node, row in zip(used["lines"], used["curves"][quantity], strict=True):
            assert max(value for value in row if value is not None) > least, f"{quantity} of {node}: {row}"
    page = report_for_browser(run.store, run.job_id, environments=False)
    for title in ("CPU, percent of", "Memory of", "Network, MB received per second", "Network, MB sent per second"):
        assert title in page
    assert all(node in page for node in nodes)


def test_an_urgent_job_takes_elastic_nodes_and_gives_them_back(bed: Testbed, job: Submit, reference: Run) -> None:
    run = job("--nodes", "4", "--elastic", "2:4", "--spares", "0", "--slurm", "elastic-partition=spot", pause_s=0.4)

    def members() -> set[str]:
        return {member["member"] for member in run.view["members"]}

    run.until_world(4, START_S)
    before = members()
    urgent = bed.start(CONTROLLER, ["srun", "-p", "urgent", "-N2", "--exclusive", "sleep", "3"])
    run.until_world(2, START_S)
    stayed = members()
    assert urgent.wait(START_S) == 0
    run.until_world(4, START_S)
    assert stayed <= before and stayed <= members(), f"nobody else begins again\n{run.story()}"
    run.finish(timeout_s=START_S)
    run.same_as(reference)
    assert {incident["cause"] for incident in run.view["incidents"]} <= {"preempted"}, run.story()
    samples_arrived(run)


def test_a_job_that_runs_on_fewer_nodes_says_what_slurm_says_of_the_others(bed: Testbed, job: Submit) -> None:
    options = ["--nodes", "4", "--elastic", "2:4", "--spares", "0", "--slurm", "elastic-partition=spot"]
    run = job(*options, source=ENDLESS, pause_s=0.1)
    run.until_world(4, START_S)
    urgent = bed.start(CONTROLLER, ["srun", "-p", "urgent", "-N2", "--exclusive", "sleep", "600"])
    run.until_world(2, START_S)
    waits = "runs on 2 nodes and waits for 2 more: SLURM has not started 2 nodes yet: "
    run.until(lambda: run.view["reason"].startswith(waits), START_S)
    bed.run(CONTROLLER, "scancel", "--partition=urgent")
    urgent.wait(30)
    run.until_world(4, START_S)
    run.until(lambda: not run.view["waits"] and "waits for" not in run.view["reason"], START_S)
    run.stop()
    assert run.until_ended(60)["state"] == "stopped"


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
