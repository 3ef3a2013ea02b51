"""Validation on a real SLURM: nodes that reach each other over a network, in the words of `sinfo`."""

from __future__ import annotations

import json
import sys

import pytest

from jupyter_hyperpod.storage.store import Store
from tests.slurm.conftest import COMMAND
from tests.support.slurm import CONTROLLER, Testbed

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(240)]


def test_a_cluster_on_slurm_row_by_row(bed: Testbed, slurm_store: Store) -> None:
    """One node is drained, and the devices that SLURM is told of are files of the testbed's own: no node has any."""
    bed.drain("n1", "bad disk")
    options = ["--backend", "slurm", "--nodes", "2", "--slurm", "partition=train", "--slurm", "gres=gpu:8", "--json"]
    command = [*COMMAND, "--store", str(slurm_store.root), "validate", *options]
    done = bed.run(CONTROLLER, *command, check=False, timeout_s=200)
    found = json.loads(done.stdout)
    rows = {row["name"]: row for row in found["rows"]}
    assert "n1 is drained (bad disk)" in rows["nodes"]["sentence"], found
    for name in ("nodes", "storage shared", "all-reduce", "training"):
        assert rows[name]["verdict"] == "pass", rows[name]
    assert rows["devices"]["verdict"] == "fail" and rows["devices"]["remedy"] and done.returncode == 1
    assert rows["driver"]["verdict"] == "skipped"
    assert not list(slurm_store.shared.glob("preflight-*"))


def test_a_number_of_nodes_that_slurm_does_not_have_is_no_go(bed: Testbed, slurm_store: Store) -> None:
    command = [sys.executable, "-m", "jupyter_hyperpod", "--store", str(slurm_store.root), "validate", "--nodes", "9"]
    done = bed.run(CONTROLLER, *command, "--backend", "slurm", check=False)
    assert done.returncode == 1 and "4 of 4 nodes are in service, 9 are needed" in done.stdout
    assert "no-go" in done.stdout.splitlines()[-1] and "state=resume" in done.stdout
