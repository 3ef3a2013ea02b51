"""The self-check of devices: on the CPU by gloo, and its words and exit status where there is no accelerator."""

from __future__ import annotations

import glob
import json
import subprocess
import sys
from typing import Any

import pytest

from jupyter_hyperpod.control.device_check import judged
from jupyter_hyperpod.storage.store import Store


def validated(store: Store, *options: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "jupyter_hyperpod", "--store", str(store.root), "validate", "--json", "--devices"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=150)
    return done.returncode, {row["name"]: row for row in json.loads(done.stdout)["rows"]}


def test_gloo_passes_on_the_cpu(shared_cluster: Store) -> None:
    status, rows = validated(shared_cluster, "--collectives", "gloo")
    assert status == 0, rows
    assert {name: row["verdict"] for name, row in rows.items()} == dict.fromkeys(
        (
            "nodes", "1 member", "all members", "a killed rank", "a rank that hangs",
            "faults while slices are exchanged", "faults while slices are gathered",
            "forming and giving up", "step against DDP", "state from device to device", "verified on",
        ),
        "pass",
    )  # fmt: skip
    for name in ("exchanged", "gathered"):
        assert "kill, stop, hang, abort" in rows[f"faults while slices are {name}"]["sentence"], rows


@pytest.mark.skipif(bool(glob.glob("/dev/nvidia[0-9]*")), reason="this machine has a GPU")
def test_without_an_accelerator_it_says_so(shared_cluster: Store) -> None:
    status, rows = validated(shared_cluster)
    assert status == 3
    assert rows["devices"]["verdict"] == "skipped" and "nothing was verified" in rows["devices"]["sentence"]


def test_other_bits_and_a_fault_that_came_too_late_do_not_pass() -> None:
    assert judged("a killed rank", "gloo", same=False, struck=True).verdict == "fail"
    assert judged("a killed rank", "gloo", same=True, struck=False).verdict == "skipped"
