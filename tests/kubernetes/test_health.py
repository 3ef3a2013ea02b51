"""Health agents in pods of a real kubelet: a planted fault leads to label and taint, and a job leaves and says why."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jupyter_hyperpod.backends.kubernetes.client import Api
from jupyter_hyperpod.backends.kubernetes.health.health_board import CONDITION, TAINT, KubernetesHealthBoard, unmark
from jupyter_hyperpod.backends.kubernetes.health.node_check import NAME, NAMESPACE
from jupyter_hyperpod.backends.kubernetes.kubeconfig import read_access
from jupyter_hyperpod.backends.kubernetes.remedies import KubernetesRemedies
from jupyter_hyperpod.cli import main
from jupyter_hyperpod.control import cluster
from jupyter_hyperpod.core.health import DEEP, DETAILS, REASONS, STATUS, failed, passed
from jupyter_hyperpod.health.node_pod import NodePod
from jupyter_hyperpod.health.probes import Probe
from tests.backends.rigs import SEES_NODES
from tests.kubernetes.conftest import TREE, Desk, Submit
from tests.kubernetes.test_jobs import START_S
from tests.runtime.conftest import Run
from tests.slurm.conftest import Gated
from tests.support.kubernetes import ADMIN, IMAGE, TEAM, USER, Testbed

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]
SETUP = "setup-health"
LOG = "/var/log/kern.log"
XID = "NVRM: Xid (PCI:0000:00:1e.0): 74, pid=1, name=python3, text"


@pytest.fixture
def setup(kubernetes: Testbed, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    """`jupyter hyperpod setup …` as the administrator."""

    def run(action: str, *options: str) -> int:
        with kubernetes.network(), monkeypatch.context() as person:
            person.setenv("KUBECONFIG", str(kubernetes.kubeconfig(ADMIN)))
            return main(["setup", action, "--namespace", SETUP, *options])

    yield run
    run("remove")
    for node in kubernetes.nodes:
        kubernetes.hosts.run(node, "rm", "-f", LOG)
    with kubernetes.network(), monkeypatch.context() as person:
        person.setenv("KUBECONFIG", str(kubernetes.kubeconfig(ADMIN)))
        with Api(read_access()) as api:
            for node in kubernetes.nodes:
                KubernetesRemedies().put_back(node)
                unmark(api, node)
    for name in (SETUP, NAMESPACE):
        kubernetes.until(
            lambda name=name: not kubernetes.find("namespace", name),  # type: ignore[misc]
            f"{name} is gone",
        )


@pytest.fixture
def agents(kubernetes: Testbed, setup: Callable[..., int], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The options of agents that run the package of this tree, with the Python of the testbed's image."""
    place = tmp_path_factory.mktemp("agents")
    python = place / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={TREE} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    for node in kubernetes.nodes:
        kubernetes.hosts.run(node, "touch", LOG)
    paths = [word for path in (sys.prefix, str(TREE), str(place)) for word in ("--health-path", path)]
    return ["--health", IMAGE, "--health-python", str(python), *paths]


def label(bed: Testbed, node: str) -> str:
    return str(bed.get("node", node)["metadata"]["labels"].get(STATUS, ""))


def taints(bed: Testbed, node: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = bed.get("node", node)["spec"].get("taints") or []
    return [one for one in found if one["key"] == STATUS]


def running(bed: Testbed, run: Run, node: str) -> list[str]:
    """The names of a job's pods that run on a node."""
    found = bed.get("pods", "-n", TEAM, "-l", f"jupyter-hyperpod/job={run.job_id}")["items"]
    there = [one for one in found if one["spec"].get("nodeName") == node]
    return [one["metadata"]["name"] for one in there if one["status"]["phase"] == "Running"]


def told(bed: Testbed, node: str) -> dict[str, Any]:
    found: dict[str, Any] = next(
        one for one in bed.get("node", node)["status"]["conditions"] if one["type"] == CONDITION
    )
    return found


def test_a_job_leaves_a_faulty_node_with_the_reason_and_comes_back(
    desk: Desk, kubernetes: Testbed, job: Submit, reference: Run, setup: Callable[..., int], agents: list[str]
) -> None:
    bed = kubernetes
    bed.kubectl("apply", "-f", "-", text=SEES_NODES.format(user=USER))
    assert setup("apply", *agents) == 0
    assert setup("apply", *agents, "--dry-run", "--json") == 0
    gate = Gated(desk.store.root)
    gate.let(1)
    options = ["--nodes", "2", "--elastic", "1:2", "--spares", "0", "--env", f"GATE={gate.path}"]
    run = job(*options, source=gate.source, pause_s=0.05)
    bed.until(lambda: [label(bed, node) for node in bed.nodes] == ["Schedulable"] * 2, "agents watch both nodes")
    gate.until_whole(run, 2, START_S)

    victim = run.node_of(1)
    bed.hosts.run(victim, "sh", "-c", f"echo '{XID}' >> {LOG}")
    bed.until(lambda: label(bed, victim) == "UnschedulablePendingReplacement", "the node is labelled")
    node = bed.get("node", victim)
    assert taints(bed, victim) == [TAINT] and node["spec"]["unschedulable"]
    assert node["metadata"]["labels"][REASONS] == "NvidiaXid74"
    assert json.loads(node["metadata"]["annotations"][DETAILS])[0]["device"] == "0000:00:1e.0"
    bed.until(lambda: told(bed, victim)["status"] == "False", "the condition tells it")
    assert told(bed, victim)["reason"] == "NvidiaXid74" and "no reboot mends that" in told(bed, victim)["message"]

    run.until(lambda: any(one.data["policy"] == "healing" for one in run.of_kind("decision.made")), START_S)
    while run.view["world_size"] == 2:
        gate.let(step := run.view["step"] + 1)
        run.until_step(step, START_S)
    bed.until(lambda: running(bed, run, victim) == [], "the job's pod has left the node")
    incident = run.view["incidents"][0]
    assert (incident["node"], incident["cause"]) == (victim, "NvidiaXid74"), run.story()
    assert not run.of_kind("member.lost"), run.story()
    described = desk("nodes", "describe", victim).stdout
    assert "UnschedulablePendingReplacement: NvidiaXid74" in described and "no reboot mends that" in described
    assert "UnschedulablePendingReplacement" in desk("nodes").stdout
    assert setup("check", "--json") in (0, 1)

    bed.kubectl("uncordon", victim)
    bed.until(lambda: taints(bed, victim) == [], "the taint goes with the cordon")
    bed.until(lambda: label(bed, victim) == "Schedulable" and told(bed, victim)["status"] == "True", "it is sound")
    gate.until_whole(run, 2, START_S)
    run.full_speed()
    gate.let(24)
    run.finish(timeout_s=START_S)
    run.same_as(reference)
    view = cluster.status(desk.store)
    assert view["health"][victim]["action"] == "watch"
    stages = next(one for one in view["incidents"] if one["node"] == victim)["stages"]
    assert [stage["stage"] for stage in stages] == ["detected", "diagnosed", "repaired", "resumed"]


def test_agents_come_and_go_with_setup_and_may_mark_nodes_and_nothing_else(
    kubernetes: Testbed, setup: Callable[..., int], agents: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    bed = kubernetes

    def counts(*arguments: str) -> dict[str, int]:
        capsys.readouterr()
        assert setup(*arguments, "--json") == 0
        actions = [one["action"] for one in json.loads(capsys.readouterr().out)["objects"]]
        return {name: actions.count(name) for name in actions}

    recovery = ["--health-recovery", "None"]
    assert counts("apply", *agents, *recovery) == {"create": 12}
    assert counts("apply", *agents, *recovery) == {"same": 12}
    bed.until(lambda: bed.get("daemonset", NAME, "-n", NAMESPACE)["status"].get("numberReady") == 2, "agents run")
    bed.until(lambda: [label(bed, node) for node in bed.nodes] == ["Schedulable"] * 2, "agents watch both nodes")
    account = f"--as=system:serviceaccount:{NAMESPACE}:{NAME}"
    kinds = {"nodes": ["nodes"], "status": ["nodes", "--subresource=status"], "pods": ["pods"], "secrets": ["secrets"]}
    yes = {
        f"{verb} {name}"
        for verb in ("get", "list", "patch", "delete", "create")
        for name, kind in kinds.items()
        if bed.kubectl("auth", "can-i", verb, *kind, account, check=False).stdout.strip() == "yes"
    }
    assert yes == {"get nodes", "patch nodes", "patch status"}
    bed.hosts.run("n1", "sh", "-c", f"echo '{XID}' >> {LOG}")
    bed.until(lambda: label(bed, "n1") == "UnschedulablePendingReplacement", "the node is labelled")
    assert taints(bed, "n1") == [] and not bed.get("node", "n1")["spec"].get("unschedulable"), "NodeRecovery is None"
    assert counts("remove") == {"delete": 12, "release": 2}
    bed.until(lambda: [label(bed, node) for node in bed.nodes] == ["", ""], "nothing is left at the nodes")
    assert "jupyter-hyperpod" not in json.dumps(bed.get("nodes")["items"][0]["metadata"].get("annotations", {}))


def test_a_node_is_checked_on_request_also_out_of_service(
    desk: Desk, kubernetes: Testbed, setup: Callable[..., int], agents: list[str]
) -> None:
    bed = kubernetes
    bed.kubectl("apply", "-f", "-", text=SEES_NODES.format(user=USER))
    refused = desk("health", "check", "n1", check=False)
    assert refused.returncode and 'cannot get resource "daemonsets"' in refused.stderr, refused.stderr
    assert setup("apply", *agents, "--remedies", "--user", USER) == 0
    bed.kubectl("cordon", "n1")
    found = json.loads(desk("health", "check", "n1", "--deep", "--json").stdout)
    outcomes = {one["probe"]: one["outcome"] for one in found["findings"]}
    assert {outcomes[probe] for probe in ("cpu-stress", "memory-stress", "disk-stress", "loopback")} == {"pass"}
    assert bed.get("node", "n1")["metadata"]["labels"][DEEP] == "Passed"
    assert bed.get("jobs", "-n", NAMESPACE)["items"] == [], "nothing is left"
    left = [one["metadata"]["name"] for one in bed.get("pods", "-n", NAMESPACE)["items"]]
    assert not [name for name in left if name.startswith("health-check")], left
    assert bed.get("node", "n1")["spec"]["unschedulable"], "the check has changed nothing"


def test_the_taint_goes_when_what_was_found_is_gone(kubernetes: Testbed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent's own program in this process, so that a probe may find what is wanted, and a real API server."""
    findings = [passed("memory", "fine")]
    probe = Probe("memory", 0.05, lambda place: findings)
    with kubernetes.network():
        monkeypatch.setenv("KUBECONFIG", str(kubernetes.kubeconfig(ADMIN)))
        board = KubernetesHealthBoard("n1")
        pod = NodePod("n1", board, "Automatic", "", "1", [probe])
        pod.begin()
        try:

            def shows(status: str) -> bool:
                pod.step()
                return label(kubernetes, "n1") == status

            kubernetes.until(lambda: shows("Schedulable"), "the node is sound")
            findings[:] = [failed("memory", "drain", "MemoryPressure", "no memory is left")]
            kubernetes.until(lambda: shows("Unschedulable"), "the node is drained")
            assert taints(kubernetes, "n1") == [TAINT]
            findings[:] = [passed("memory", "fine")]
            kubernetes.until(lambda: shows("Schedulable"), "the node is sound again")
            node = kubernetes.get("node", "n1")
            assert taints(kubernetes, "n1") == [] and not node["spec"].get("unschedulable")
            assert REASONS not in node["metadata"]["labels"] and DETAILS not in node["metadata"]["annotations"]
        finally:
            pod.monitor.stop()
            board.close()
            with Api(read_access()) as api:
                unmark(api, "n1")
