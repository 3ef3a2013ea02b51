"""The local cluster heals: a line in a node's kernel log, and what becomes of the node and of the job on it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from jupyter_hyperpod.cli import main
from jupyter_hyperpod.control import cluster
from jupyter_hyperpod.core.views import View
from jupyter_hyperpod.health.agent import stand_in
from jupyter_hyperpod.storage.store import Store
from tests.runtime.conftest import Run, Submit, reference, submitting

__all__ = ["reference"]
Eventually = Callable[..., Any]


@pytest.fixture
def watched(cluster_of_health: Store) -> Store:
    return cluster_of_health


@pytest.fixture
def job(watched: Store) -> Iterator[Submit]:
    yield from submitting(watched)


def call(store: Store, *arguments: str) -> int:
    return main(["--store", str(store.root), *arguments])


def inject(store: Store, node: str, xid: int) -> None:
    assert call(store, "health", "inject", node, str(xid)) == 0


def last(store: Store, node: str) -> View:
    """The newest cluster-level incident of a node."""
    found: list[View] = [i for i in cluster.status(store)["incidents"] if i["node"] == node]
    return found[-1]


def resumed(store: Store, node: str, cause: str) -> bool:
    found = [i for i in cluster.status(store)["incidents"] if i["node"] == node and i["cause"] == cause]
    return bool(found) and found[-1]["resumed_s"] is not None


@pytest.mark.parametrize(("xid", "stage"), [(74, "replaced"), (73, "repaired")])
def test_an_idle_node_is_replaced_or_rebooted(watched: Store, eventually: Eventually, xid: int, stage: str) -> None:
    before = {node["node"]: node["pid"] for node in cluster.status(watched)["nodes"]}
    known = len(cluster.status(watched)["incidents"])
    inject(watched, "node-4", xid)
    eventually(lambda: resumed(watched, "node-4", f"NvidiaXid{xid}"))
    incident = last(watched, "node-4")
    stages = dict.fromkeys(
        one["stage"] for one in incident["stages"]
    )  # drained first, where another is repaired just then
    assert [*stages] == ["detected", "diagnosed", "fenced", stage, "rejoined", "resumed"]
    after = {node["node"]: node["pid"] for node in cluster.status(watched)["nodes"]}
    assert after["node-4"] != before["node-4"]
    view = cluster.status(watched)
    assert {incident["node"] for incident in view["incidents"][known:]} == {"node-4"}, "nobody else is touched"
    assert view["health"]["node-4"]["labels"] == {"sagemaker.amazonaws.com/node-health-status": "Schedulable"}
    assert not stand_in(watched, "node-4").exists(), "the log went with the node"


def test_a_job_goes_on_bit_identical_without_the_node(
    watched: Store, job: Submit, reference: Run, eventually: Eventually
) -> None:
    run = job(nodes=3, env={"PAUSE_S": "0.02"})
    run.until_event("member.ready")
    run.until_step(4)
    victim = run.node_of(1)
    inject(watched, victim, 74)
    run.finish()
    run.same_as(reference)
    (incident,) = run.view["incidents"]
    assert (incident["node"], incident["cause"]) == (victim, "NvidiaXid74"), run.story()
    stages = {stage["stage"] for stage in incident["stages"]}
    assert stages == {"detected", "diagnosed", "fenced", "replaced", "rejoined", "resumed"}, run.story()
    assert "no reboot mends that" in incident["stages"][1]["text"]
    assert not run.of_kind("member.lost") and run.view["redone"] == 0, run.story()
    assert {event.data["world_size"] for event in run.of_kind("step.committed")} == {3}, "full strength all the time"
    eventually(lambda: resumed(watched, victim, "NvidiaXid74"))


def test_an_application_error_leaves_job_and_node_alone(watched: Store, job: Submit, reference: Run) -> None:
    run = job(nodes=2, env={"PAUSE_S": "0.02"})
    run.until_step(4)
    victim = run.node_of(1)
    inject(watched, victim, 31)
    run.finish()
    run.same_as(reference)
    assert not run.view["incidents"]
    faults = [finding["fault"] for finding in cluster.status(watched)["health"][victim]["findings"]]
    assert "NvidiaXid31" in faults and cluster.status(watched)["health"][victim]["action"] == "watch"


def test_recovery_can_be_switched_off(watched: Store, eventually: Eventually, capsys: Any) -> None:
    assert call(watched, "health", "recovery", "None") == 0
    before = cluster.status(watched)["nodes"]
    inject(watched, "node-3", 74)
    label = "sagemaker.amazonaws.com/node-health-status"
    pending = "UnschedulablePendingReplacement"
    eventually(lambda: cluster.status(watched)["health"]["node-3"]["labels"].get(label) == pending)
    assert [node["pid"] for node in cluster.status(watched)["nodes"]] == [node["pid"] for node in before]
    assert call(watched, "health", "recovery", "Automatic") == 0
    assert call(watched, "nodes", "resume", "node-3") == 0
    eventually(lambda: cluster.status(watched)["health"]["node-3"]["labels"].get(label) == "Schedulable")
    assert "labelled only" in capsys.readouterr().out


def test_by_hand(watched: Store, eventually: Eventually, capsys: Any) -> None:
    assert call(watched, "nodes", "drain", "node-1", "--reason", "a fan is loud") == 0
    state = lambda: {node["node"]: node["state"] for node in cluster.status(watched)["nodes"]}["node-1"]  # noqa: E731
    eventually(lambda: state() == "drained")
    assert call(watched, "nodes", "resume", "node-1") == 0
    eventually(lambda: state() == "idle")
    assert call(watched, "nodes", "update", "node-1", "--reason", "Action:Reboot") == 0
    eventually(lambda: resumed(watched, "node-1", "ByHand"))
    assert call(watched, "nodes", "update", "node-1", "--reason", "Action:reboot") == 2
    assert "has to be exactly Action:Reboot" in capsys.readouterr().err
    assert call(watched, "nodes", "drain", "n0") != 0 and call(watched, "nodes", "drain") == 2


def test_a_node_is_described(watched: Store, capsys: Any) -> None:
    assert call(watched, "nodes", "describe", "node-1", "--json") == 0
    record = json.loads(capsys.readouterr().out)
    assert record["state"]["node"] == "node-1" and record["health"]["devices"]["cpus"] > 0
    assert call(watched, "nodes", "describe", "node-1") == 0
    text = capsys.readouterr().out
    for words in ("allocated", "instance", "devices", "0 of 1 slot", "nvidia-smi is not installed", "skipped"):
        assert words in text
    assert call(watched, "nodes", "describe", "n0") == 2


def test_a_check_on_request(watched: Store, capsys: Any) -> None:
    assert call(watched, "health", "check", "node-1", "--json") == 0
    record = json.loads(capsys.readouterr().out)
    outcomes = {finding["probe"]: finding["outcome"] for finding in record["findings"]}
    assert outcomes["memory"] == "pass" and "skipped" in outcomes.values()
    assert call(watched, "health", "check") == 0
