"""The agent's mind without a machine: what is journaled, decided and carried out for each kind of finding."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from jupyter_hyperpod.core.errors import ClusterError
from jupyter_hyperpod.core.events import EVENT_FIELDS, Event
from jupyter_hyperpod.core.health import REASONS, STATUS, failed, passed
from jupyter_hyperpod.health.monitor import Monitor
from jupyter_hyperpod.health.probes import Probe, ProbeRoot

XID = "NVRM: Xid (PCI:0000:00:1e.0): {}, pid=1, name=python, text\n"


class Scene:
    """A monitor of some nodes, each with a kernel log of its own, and everything it says and does."""

    def __init__(self, directory: Path, *names: str, recovery: str = "Automatic", refuses: str = "") -> None:
        self.said: list[tuple[str, Mapping[str, Any]]] = []
        self.done: list[tuple[str, str, str]] = []
        self.refuses = refuses
        self.in_service = False
        self.logs = {name: directory / name for name in names}
        self.findings = [passed("memory", "fine")]
        probe = Probe("memory", 0.01, lambda place: self.findings)
        logs = {name: str(path) for name, path in self.logs.items()}
        self.monitor = Monitor(logs, ProbeRoot(), self.say, lambda: recovery, self, [probe])

    def say(self, kind: str, data: Mapping[str, Any]) -> None:
        assert data.keys() >= EVENT_FIELDS[kind]
        self.said.append((kind, data))

    def carry_out(self, node: str, action: str, fault: str) -> str:
        if self.refuses:
            raise ClusterError(self.refuses)
        self.done.append((node, action, fault))
        return f"asked for {action}"

    def resume(self, node: str) -> None:
        self.done.append((node, "resume", ""))

    def serves(self, node: str) -> bool:
        return self.in_service

    def log(self, node: str, text: str) -> None:
        with self.logs[node].open("a") as file:
            file.write(text)
        self.monitor.tick()

    def of(self, kind: str) -> list[Mapping[str, Any]]:
        return [data for told, data in self.said if told == kind]

    def stages(self) -> list[str]:
        return [data["stage"] for data in self.of("incident.stage")]


def test_an_xid_that_replaces(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "n1", "n2", "n3", "n4")
    scene.log("n1", XID.format(74))
    assert scene.done == [("n1", "replace", "NvidiaXid74")]
    assert scene.stages() == ["detected", "diagnosed", "fenced"]
    (health,) = scene.of("node.health")
    assert health["labels"][STATUS] == "UnschedulablePendingReplacement" and health["labels"][REASONS] == "NvidiaXid74"
    (decision,) = scene.of("decision.made")
    assert decision["reason"].endswith("no reboot mends that: another node takes its place")
    scene.log("n1", XID.format(74) + XID.format(79))
    assert len(scene.done) == 1, "it is asked for once"


def test_an_application_error_is_told_and_nothing_is_done(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "n1")
    scene.log("n1", XID.format(31))
    assert not scene.done and not scene.of("node.health") and not scene.stages()
    assert scene.of("node.findings")[0]["findings"][0]["fault"] == "NvidiaXid31"
    assert "no remedy" in scene.of("decision.made")[0]["reason"]


def test_a_reboot_and_back(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "n1")
    scene.log("n1", XID.format(73))
    assert scene.done == [("n1", "reboot", "NvidiaXid73")]
    told = [
        Event("health-n1.1", at + 1, 1.0 + at, kind, dict(data) | ({"boot": "other"} if kind == "node.health" else {}))
        for at, (kind, data) in enumerate(scene.said)
    ]
    after = Scene(tmp_path, "n1")
    after.monitor.recall(told)
    after.monitor.start()
    after.monitor.stop()
    assert after.stages() == ["repaired", "resumed"] and after.of("node.health")[0]["action"] == "watch"
    assert after.of("incident.stage")[0]["incident"] == scene.of("incident.stage")[0]["incident"]
    after.log("n1", XID.format(73))
    assert after.of("incident.stage")[-1]["incident"] != scene.of("incident.stage")[0]["incident"]


def test_without_recovery_a_node_is_labelled_only(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "n1", recovery="None")
    scene.log("n1", XID.format(74))
    assert not scene.done and scene.of("node.health")[0]["recovery"] == "None"
    assert scene.of("node.health")[0]["labels"][STATUS] == "UnschedulablePendingReplacement"


def test_what_slurm_refuses_is_a_warning(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "n1", refuses="Invalid user id")
    scene.log("n1", XID.format(74))
    assert scene.of("warning.raised")[0]["text"] == "n1 should be replaced, but: Invalid user id"
    assert scene.stages() == ["detected", "diagnosed"]


def test_nodes_that_share_a_kernel_log_are_not_taken_away(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "n1", "n2")
    shared = Monitor(
        dict.fromkeys(["n1", "n2"], str(tmp_path / "one")), ProbeRoot(), scene.say, lambda: "Automatic", scene
    )
    (tmp_path / "one").write_text(XID.format(74))
    shared.tick()
    assert not scene.done and len(scene.of("node.findings")) == 2


def test_not_all_nodes_at_once(tmp_path: Path) -> None:
    scene = Scene(tmp_path, "n1", "n2", "n3", "n4")
    scene.log("n1", XID.format(74))
    scene.log("n2", XID.format(74))
    assert scene.done == [("n1", "replace", "NvidiaXid74"), ("n2", "drain", "NvidiaXid74")]


def test_a_probe_that_recovers_brings_its_node_back(tmp_path: Path, eventually: Any) -> None:
    scene = Scene(tmp_path, "n1")
    scene.findings = [failed("memory", "drain", "MemoryPressure", "1 of 100 GB")]
    scene.monitor.start()

    def until(action: str) -> None:
        def seen() -> bool:
            scene.monitor.tick()
            return scene.of("node.health")[-1:] != [] and scene.of("node.health")[-1]["action"] == action

        eventually(seen)

    until("drain")
    scene.findings = [passed("memory", "50 of 100 GB")]
    until("watch")
    scene.monitor.stop()
    assert scene.done == [("n1", "drain", "MemoryPressure"), ("n1", "resume", "")]
    assert scene.stages() == ["detected", "diagnosed", "fenced", "repaired", "resumed"]
    outcomes = [finding["outcome"] for data in scene.of("node.findings") for finding in data["findings"]]
    assert outcomes == ["fail", "pass"], "told when it changes, not at every look"


@pytest.mark.parametrize("times", [3])
def test_a_reboot_that_does_not_help_becomes_a_replacement(tmp_path: Path, times: int) -> None:
    scene = Scene(tmp_path, "n1")
    for _ in range(times):
        scene.log("n1", XID.format(73))
        scene.monitor.restored("n1")
    assert [action for _, action, _ in scene.done] == ["reboot", "reboot", "replace"]


def test_what_a_person_has_drained_stays_drained_until_it_is_returned(tmp_path: Path, eventually: Any) -> None:
    scene = Scene(tmp_path, "n1")
    health = {"node": "n1", "action": "drain", "fault": "ByHand", "reason": "", "labels": {}, "recovery": "Automatic"}
    event = Event("check-n1.1", 1, 1.0, "node.health", health | {"devices": {}, "boot": ""})
    scene.monitor.recall([event])
    scene.monitor.start()

    def told() -> bool:
        scene.monitor.tick()
        return bool(scene.of("node.health"))

    eventually(told)
    assert scene.of("node.health")[0]["action"] == "drain" and not scene.done
    scene.monitor.stop()
    again = Scene(tmp_path, "n1")
    again.in_service = True
    again.monitor.recall([event])
    again.monitor.start()
    again.monitor.stop()
    assert again.of("node.health")[0]["action"] == "watch", "SLURM gives it work: it was returned by hand"
