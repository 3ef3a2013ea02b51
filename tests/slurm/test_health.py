"""Nodes of a real SLURM heal: a line in a node's kernel log, what SLURM is asked for, and the same bits in the job."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jupyter_hyperpod.backends.slurm import remedies
from jupyter_hyperpod.backends.types import NodeInfo
from jupyter_hyperpod.control import cluster
from jupyter_hyperpod.core.errors import ClusterError
from jupyter_hyperpod.core.views import View
from jupyter_hyperpod.storage.store import Store
from tests.runtime.conftest import Run
from tests.slurm.conftest import COMMAND, Gated, Submit
from tests.support.slurm import CONTROLLER, Testbed

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(600)]
START_S = 120.0
LOG = "/run/kmsg"
XID = "NVRM: Xid (PCI:0000:00:1e.0): {}, pid=1, name=python3, text"
STATUS = "sagemaker.amazonaws.com/node-health-status"


OPTIONS = ("--nodes", "3", "--elastic", "1:3", "--spares", "0", "--env", f"HYPERPOD_KERNEL_LOG={LOG}")


def training(job: Submit, pause_s: float = 0.15) -> Run:
    run = job(*OPTIONS, pause_s=pause_s)
    run.until_world(3, START_S)
    return run


def log(bed: Testbed, node: str, xid: int) -> None:
    bed.run(node, "sh", "-c", f"echo '{XID.format(xid)}' >> {LOG}")


def health(run: Run, node: str) -> View:
    found: View = cluster.status(run.store)["health"].get(node, {"action": "", "labels": {}, "findings": []})
    return found


def info(bed: Testbed, node: str) -> NodeInfo:
    text = bed.run(CONTROLLER, "scontrol", "show", "node", "--oneliner", node).stdout
    return next(remedies.nodes(text))


def test_an_xid_that_replaces(bed: Testbed, job: Submit, reference: Run, tmp_path: Path) -> None:
    gate = Gated(tmp_path)
    gate.let(1)  # a late node begins when a step is committed
    run = job(*OPTIONS, "--env", f"GATE={gate.path}", source=gate.source)
    gate.until_whole(run, 3, START_S)
    victim = run.node_of(1)
    bed.until(lambda: health(run, victim)["action"] == "watch", "the node is watched", START_S)
    log(bed, victim, 74)
    bed.until(lambda: info(bed, victim).reason == "Action:Replace", "replacement is asked for", START_S)
    assert info(bed, victim).out
    assert health(run, victim)["labels"][STATUS] == "UnschedulablePendingReplacement"
    gate.let(run.view["step"] + 2)  # it leaves after a step
    run.until(lambda: victim not in {member["node"] for member in run.view["members"]}, START_S)
    gate.until_whole(run, 3, START_S)
    run.full_speed()
    gate.let(24)
    run.finish(timeout_s=START_S)
    run.same_as(reference)
    incident = run.view["incidents"][0]
    assert (incident["node"], incident["cause"]) == (victim, "NvidiaXid74"), run.story()
    stages = [stage["stage"] for stage in incident["stages"]]
    assert stages[:3] == ["detected", "diagnosed", "fenced"] and {"replaced", "rejoined", "resumed"} <= {*stages}, (
        run.story()
    )
    assert not run.of_kind("member.lost"), run.story()
    node_incident = next(i for i in cluster.status(run.store)["incidents"] if i["node"] == victim)
    assert "scontrol update" in node_incident["stages"][2]["text"]


def test_an_xid_that_reboots_after_one_that_is_nothing(bed: Testbed, job: Submit, reference: Run) -> None:
    run = training(job)
    victim = run.node_of(1)
    before = bed.pid(victim)
    bed.until(lambda: health(run, victim)["action"] == "watch", "the node is watched")
    log(bed, victim, 31)
    bed.until(lambda: "NvidiaXid31" in {f["fault"] for f in health(run, victim)["findings"]}, "Xid 31 is told")
    assert not info(bed, victim).out and health(run, victim)["action"] == "watch"
    log(bed, victim, 73)
    bed.until(lambda: health(run, victim)["action"] == "reboot", "a reboot is decided")
    run.until(lambda: victim not in {member["node"] for member in run.view["members"]}, START_S)
    run.full_speed()
    run.finish(timeout_s=START_S)
    run.same_as(reference)
    assert [incident["cause"] for incident in run.view["incidents"]] == ["NvidiaXid73"], run.story()
    bed.until(lambda: bed.states().get(victim) == "idle" and bed.pid(victim) != before, "it is back in service")


def test_by_hand_and_nearly_by_hand(bed: Testbed, slurm_store: Store) -> None:
    def call(*words: str, status: int = 0) -> str:
        command = [*COMMAND, "--store", str(slurm_store.root), *words]
        done = bed.run(CONTROLLER, *command, check=False, timeout_s=120)
        assert done.returncode == status, done.stderr
        return done.stderr if status else done.stdout

    near = call("nodes", "update", "n2", "--reason", "action:replace", status=2)
    assert "has to be exactly Action:Replace" in near
    call("nodes", "update", "n2", "--reason", "Action:Replace")
    assert info(bed, "n2").out and info(bed, "n2").reason == "Action:Replace"
    described = json.loads(call("nodes", "describe", "n2", "--json"))
    assert described["slurm"]["reason"] == "Action:Replace" and described["health"]["fault"] == "ByHand"
    assert "UnschedulablePendingReplacement" in call("nodes")
    call("nodes", "resume", "n2")
    assert not info(bed, "n2").out
    checked = json.loads(call("health", "check", "n2", "--json"))
    assert {finding["outcome"] for finding in checked["findings"]} >= {"pass", "skipped"}
    refused = call("nodes", "drain", "n11", status=2)
    assert "there is no node 'n11' here (did you mean n1" in refused and "scontrol" not in refused


def test_what_is_written_at_a_node_is_read(bed: Testbed, job: Submit) -> None:
    run = training(job, pause_s=1.0)
    nearly, exactly = run.node_of(1), run.node_of(2)
    bed.run(CONTROLLER, "scontrol", "update", f"nodename={nearly}", "state=drain", "reason=action:reboot")
    bed.run(CONTROLLER, "scontrol", "update", f"nodename={exactly}", "state=fail", "reason=Action:Replace")
    bed.until(lambda: health(run, exactly)["action"] == "replace", "what is written is taken up")
    warnings = [warning["text"] for warning in cluster.status(run.store)["warnings"]]
    bed.until(lambda: any(nearly in w["text"] for w in cluster.status(run.store)["warnings"]), f"a warning: {warnings}")
    warnings = [warning["text"] for warning in cluster.status(run.store)["warnings"]]
    assert any(nearly in text and "has to be exactly Action:Reboot" in text for text in warnings), warnings
    run.until(lambda: not {nearly, exactly} & {m["node"] for m in run.view["members"]}, START_S)
    run.stop()
    run.until_ended(60)


def test_commands_and_what_scontrol_shows() -> None:
    line = (
        "NodeName=n1 Arch=x86_64 CoresPerSocket=1 CPUAlloc=4 CPUTot=8 CPULoad=0.52 Gres=gpu:h100:8 State=MIXED+DRAIN "
        "AllocTRES=cpu=4,gres/gpu=2 Reason=Action:Replace [root@2026-01-01T00:00:00]"
    )
    (found,) = remedies.nodes(f"{line}\nnonsense\n")
    assert found.out and found.reason == "Action:Replace" and (found.cpus_allocated, found.cpus) == (4, 8)
    assert (found.gres, found.gres_allocated, found.load) == ("gpu:h100:8", "gres/gpu=2", 0.52)
    assert remedies.commands("n1", "replace", "NvidiaXid74", True)[-2:] == ["state=fail", "reason=Action:Replace"]
    assert remedies.commands("n1", "reboot", "x", False)[-1] == "reason=Action:Reboot"
    assert remedies.commands("n1", "reboot", "x", True)[:4] == ["scontrol", "reboot", "ASAP", "nextstate=RESUME"]
    hostile = remedies.commands("n1", "drain", "a b'\"; rm -rf /\n", False)
    assert len(hostile) == 5 and hostile[-1].startswith("reason=hyperpod: a b")
    assert remedies.reboots("RebootProgram           = /sbin/reboot\n")
    assert not remedies.reboots("RebootProgram = (null)\n")
    with pytest.raises(ClusterError, match="was not found"):
        remedies.run(["scontrol-that-is-not-there"])
