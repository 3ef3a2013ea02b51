"""Probes read for real: this machine, a made-up root, stand-in tools on PATH, a kernel log that grows and rotates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_hyperpod.core.errors import SpecError
from jupyter_hyperpod.core.health import DETAILS, REASONS, STATUS, TYPES, failed, from_json, labels, reason_action
from jupyter_hyperpod.health import deep, kernel, probes
from jupyter_hyperpod.health.probes import ProbeRoot
from jupyter_hyperpod.storage.store import Store


def tool(directory: Path, name: str, text: str, ends: str = "") -> None:
    path = directory / name
    path.write_text(f"#!/bin/sh\n{ends}\ncat <<'END'\n{text}\nEND\n")
    path.chmod(0o755)


def test_every_probe_answers_on_this_machine(store: Store) -> None:
    found = [finding for probe in probes.HOST for finding in probe.run(ProbeRoot(store))]
    assert all(finding.text for finding in found)
    outcomes = {finding.probe: finding.outcome for finding in found}
    assert outcomes["memory"] == outcomes["free-space"] == outcomes["mount-shared"] == "pass"
    assert outcomes["clock"] == "skipped", "the store is on this machine"


def test_what_is_not_there_is_skipped_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    found = [finding for probe in probes.HOST for finding in probe.run(ProbeRoot(root=tmp_path))]
    assert {finding.outcome for finding in found if not finding.probe.startswith("free")} == {"skipped"}
    assert "nvidia-smi is not installed" in [finding.text for finding in found]


def test_counting_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    tool(tmp_path, "nvidia-smi", (Path(__file__).with_name("recorded") / "nvidia-smi-query.csv").read_text())
    for name in ("rdmap16s27", "rdmap32s27"):
        (tmp_path / "sys/class/infiniband" / name / "device").mkdir(parents=True)
        (tmp_path / "drivers" / "efa").mkdir(parents=True, exist_ok=True)
        (tmp_path / "sys/class/infiniband" / name / "device" / "driver").symlink_to(tmp_path / "drivers" / "efa")
    (tmp_path / "sys/class/dmi/id").mkdir(parents=True)
    (tmp_path / "sys/class/dmi/id/product_name").write_text("p4d.24xlarge\n")
    place = ProbeRoot(root=tmp_path)
    found = probes.take(place)
    assert (found.type, found.expected, found.found, found.busy) == ("p4d.24xlarge", 8, 3, 2)
    assert (found.efa_expected, found.efa_found) == (4, 2)
    faults = {finding.fault for probe in probes.HOST if probe.name == "devices" for finding in probe.run(place)}
    assert faults == {"DevicesMissing", "EfaMissing"}


def test_a_tool_that_hangs_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    tool(tmp_path, "nvidia-smi", "", "exec sleep 60")
    (finding,) = probes.told("nvidia-gpu", ["nvidia-smi"], lambda text: [], timeout_s=0.1)
    assert (finding.fault, finding.severity) == ("DriverHangs", "reboot")


def test_neuron_counters_are_read_from_sysfs(tmp_path: Path) -> None:
    counter = tmp_path / "sys/devices/virtual/neuron_device/neuron3/stats/hardware/mem_ecc_uncorrected"
    counter.mkdir(parents=True)
    (counter / "total").write_text("2\n")
    (probe,) = (probe for probe in probes.HOST if probe.name == "neuron-counters")
    assert [finding.text for finding in probe.run(ProbeRoot(root=tmp_path))] == [
        "neuron3 has counted 2 of mem_ecc_uncorrected"
    ]


def test_a_kernel_log_is_followed_from_its_end_and_through_rotation(tmp_path: Path) -> None:
    path = tmp_path / "kmsg"
    path.write_text("old line\n")
    tail = kernel.Tail(str(path))
    assert list(tail.lines()) == []
    with path.open("a") as file:
        file.write("one\nhalf")
    assert list(tail.lines()) == ["one"]
    with path.open("a") as file:
        file.write(" and the rest\n")
    assert list(tail.lines()) == ["half and the rest"]
    path.rename(tmp_path / "kmsg.1")
    assert list(tail.lines()) == []
    path.write_text("after rotation\n" + "x" * 5000)
    assert list(tail.lines()) == ["after rotation", "x" * 5000]
    path.unlink()
    path.write_text("after rotation\n" + "y" * 5000)  # as long as before, and maybe of the same number
    assert list(tail.lines()) == ["after rotation", "y" * 5000]
    tail.close()


def test_a_log_that_comes_later_is_read_from_its_beginning(tmp_path: Path) -> None:
    tail = kernel.Tail(str(tmp_path / "kmsg"))
    assert list(tail.lines()) == []
    (tmp_path / "kmsg").write_text("first\n")
    assert list(tail.lines()) == ["first"]


@pytest.mark.skipif(not os.access(kernel.DEVICE, os.R_OK), reason="the kernel's log may not be read here")
def test_the_real_kernel_log_does_not_wait() -> None:
    tail = kernel.Tail(kernel.DEVICE)
    list(tail.lines())
    assert tail._file >= 0
    tail.close()


def test_deep_checks_pass_here(tmp_path: Path) -> None:
    found = [*deep.cpu(0.05, 2), *deep.memory(4 << 20), *deep.disk(tmp_path, 2 << 20), *deep.loopback(4 << 20)]
    assert [finding.outcome for finding in found if finding.probe != "loopback"] == ["pass"] * 3, found
    assert deep.dcgm()[0].outcome == "skipped"


def test_a_core_whose_process_was_killed_is_not_called_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(seconds: float) -> subprocess.Popen[str]:
        kills_itself = "import os; os.kill(os.getpid(), 9)"
        return subprocess.Popen([sys.executable, "-c", kills_itself], stdout=subprocess.PIPE, text=True)

    monkeypatch.setattr(deep, "worker", killed)
    (found,) = deep.cpu(0.05, 2)
    assert found.outcome == "skipped" and "killed, by signal 9" in found.text


def test_labels_are_hyperpods() -> None:
    finding = failed("kernel-log", "isolate", "NvidiaXid74", "NVLink error")
    found = labels("replace", [finding])
    assert found[STATUS] == "UnschedulablePendingReplacement"
    assert (found[TYPES], found[REASONS]) == ("kernel-log", "NvidiaXid74")
    assert [from_json(record) for record in json.loads(found[DETAILS])] == [finding]
    assert labels("watch", []) == {STATUS: "Schedulable"}
    assert labels("reboot", [])[STATUS] == "UnschedulablePendingReboot"


@pytest.mark.parametrize(
    "reason", ["action:reboot", "Action: Reboot", "Action:reboot", "Action:Replcae", "ACTION:REPLACE"]
)
def test_near_misses_of_slurm_reasons_are_errors(reason: str) -> None:
    with pytest.raises(SpecError, match="has to be exactly Action:Re"):
        reason_action(reason)


def test_slurm_reasons() -> None:
    assert (reason_action("Action:Reboot"), reason_action("Action:Replace")) == ("reboot", "replace")
    assert reason_action("Kill task failed") is None and reason_action("") is None
