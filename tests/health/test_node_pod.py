"""The agent of a node whose scheduler keeps its health: what it shows, and how it begins again.

The board is a stand-in that keeps records in memory; a real API is behind it in tests/kubernetes/test_health.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jupyter_hyperpod.core.errors import ClusterError
from jupyter_hyperpod.core.health import Finding, HealthRecord, failed, passed
from jupyter_hyperpod.health import node_pod
from jupyter_hyperpod.health.node_pod import NodePod
from jupyter_hyperpod.health.probes import Probe

XID = "NVRM: Xid (PCI:0000:00:1e.0): {}, pid=1, name=python, text\n"
Eventually = Callable[..., Any]


class Board:
    """See `core.health.HealthBoard`."""

    def __init__(self) -> None:
        self.shown: list[HealthRecord] = []
        self.refuses, self.is_returned = "", False

    def read(self) -> HealthRecord | None:
        return self.shown[-1] if self.shown else None

    def show(self, record: HealthRecord) -> None:
        if self.refuses:
            raise ClusterError(self.refuses)
        self.shown.append(HealthRecord.from_json(record.to_json()))

    def returned(self) -> bool:
        return self.is_returned

    def instance_type(self) -> str:
        return ""

    def meaning(self, action: str) -> str:
        return f"asked for {action}"

    def close(self) -> None:
        """Nothing is open."""


class Scene:
    """Agents of one node, one after another; ``findings`` is what its one probe finds."""

    def __init__(self, directory: Path, eventually: Eventually) -> None:
        self.board, self.log, self.findings = Board(), directory / "kern.log", [passed("memory", "fine")]
        self.log.touch()
        self._eventually, self._pods = eventually, list[NodePod]()

    def start(self, boot: str = "1", recovery: str = "Automatic") -> None:
        self.close()
        probe = Probe("memory", 0.01, lambda place: self.findings)
        pod = NodePod("n1", self.board, recovery, str(self.log), boot, [probe])
        pod.begin()
        self._pods.append(pod)

    def close(self) -> None:
        while self._pods:
            self._pods.pop().monitor.stop()

    def until(self, holds: Callable[[HealthRecord], bool]) -> HealthRecord:
        def found() -> HealthRecord | None:
            self._pods[-1].step()
            record = self.board.read()
            return record if record is not None and holds(record) else None

        record: HealthRecord = self._eventually(found)
        return record

    def until_action(self, action: str) -> HealthRecord:
        return self.until(lambda record: record.action == action)

    def write(self, xid: int) -> None:
        with self.log.open("a") as file:
            file.write(XID.format(xid))

    def find(self, *findings: Finding) -> None:
        self.findings = [*findings]


@pytest.fixture
def scene(tmp_path: Path, eventually: Eventually, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(node_pod, "AGAIN_S", 0.05)
    made = Scene(tmp_path, eventually)
    yield made
    made.close()


def test_a_fault_is_shown_with_its_cause_and_goes_when_a_person_returns_the_node(scene: Scene) -> None:
    scene.start()
    scene.until_action("watch")
    scene.write(74)
    record = scene.until_action("replace")
    assert record.fences and record.fault == record.causes[0].fault == "NvidiaXid74"
    assert "no reboot mends that" in record.reason and record.past[-1][:2] == ("replace", "NvidiaXid74")
    assert "kernel-log" in {finding.probe for finding in record.findings}
    scene.board.is_returned = True
    scene._pods[-1].monitor._ask_s = 0.0  # it asks seldom
    assert scene.until_action("watch").reason == "it was returned to service"


def test_a_finding_that_is_gone_brings_the_node_back(scene: Scene) -> None:
    scene.start()
    scene.until_action("watch")
    scene.find(failed("memory", "drain", "MemoryPressure", "no memory is left"))
    assert scene.until_action("drain").causes[0].text == "no memory is left"
    scene.find(passed("memory", "fine"))
    assert scene.until_action("watch").causes == ()


def test_what_could_not_be_shown_is_shown_later(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    scene.start()
    scene.until_action("watch")
    scene.board.refuses = "the API server is away"
    scene.write(74)
    pod = scene._pods[-1]
    scene._eventually(lambda: (pod.step(), "the API server is away" in capsys.readouterr().err)[1])
    assert scene.board.shown[-1].action == "watch"
    scene.board.refuses = ""
    scene.until_action("replace")


def test_an_agent_that_begins_again_goes_on_with_what_the_node_shows(scene: Scene) -> None:
    scene.start()
    scene.until_action("watch")
    scene.write(74)
    before = scene.until_action("replace")
    scene.start()
    record = scene.until(lambda one: {finding.probe for finding in one.findings} == {"memory"})
    assert (record.gist, record.reason, record.causes, record.past) == (
        before.gist,
        before.reason,
        before.causes,
        before.past,
    )


def test_a_reboot_brings_the_node_back_and_is_remembered(scene: Scene) -> None:
    scene.start(boot="1")
    scene.until_action("watch")
    for number in (2, 3):
        scene.write(73)
        assert scene.until_action("reboot").past[-1][:2] == ("reboot", "NvidiaXid73")
        scene.start(boot=str(number))
        scene.until_action("watch")
    scene.write(73)
    assert "2 reboots within 24 h have not mended it" in scene.until_action("replace").reason


def test_a_message_of_the_kernel_keeps_a_node_drained_when_the_agent_begins_again(scene: Scene) -> None:
    scene.start()
    scene.until_action("watch")
    with scene.log.open("a") as file:
        file.write("EXT4-fs error (device nvme0n1p1): ext4_lookup: deleted inode referenced\n")
    scene.until_action("drain")
    scene.start()
    scene.until(lambda one: {finding.probe for finding in one.findings} == {"memory"})
    scene._pods[-1].step()
    assert scene.board.shown[-1].action == "drain"
    scene.start(boot="2")
    scene.until_action("watch")


def test_with_node_recovery_none_a_node_is_labelled_only(scene: Scene) -> None:
    scene.start(recovery="None")
    scene.until_action("watch")
    scene.write(74)
    record = scene.until_action("replace")
    assert not record.fences and record.past == () and "labelled only" in record.reason


def test_a_kernel_log_that_cannot_be_read_is_said(
    tmp_path: Path, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jupyter_hyperpod.health.kernel.os.access", lambda path, mode: False)
    pod = NodePod("n1", Board(), "Automatic", probes=[])
    (finding,) = pod._all()
    assert finding.outcome == "skipped" and "Xid errors and others of the kernel are not seen" in finding.text
