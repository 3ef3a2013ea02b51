"""Validation on a real SLURM: nodes that reach each other over a network, in the words of `sinfo`."""

from __future__ import annotations

import json
import sys

import pytest

from jupyter_hyperpod.bench.testbed import CONTROLLER, Testbed
from jupyter_hyperpod.storage.store import Store
from tests.slurm.conftest import COMMAND

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(240)]


def test_a_cluster_on_slurm_is_fit_without_the_node_that_is_drained(bed: Testbed, slurm_store: Store) -> None:
    bed.drain("n1", "bad disk")
    options = ["--backend", "slurm", "--nodes", "2", "--slurm", "partition=train", "--json"]
    done = bed.run(CONTROLLER, *COMMAND, "--store", str(slurm_store.root), "validate", *options, timeout_s=200)
    found = json.loads(done.stdout)
    rows = {row["name"]: row for row in found["rows"]}
    assert found["fit"] and "n1 is drained (bad disk)" in rows["nodes"]["sentence"], found
    for name in ("storage shared", "all-reduce", "training"):
        assert rows[name]["verdict"] == "pass", rows[name]
    assert rows["devices"]["verdict"] == "skipped" and "gres" in rows["devices"]["sentence"]
    assert not list(slurm_store.shared.glob("preflight-*"))


def test_devices_that_slurm_promises_and_a_node_lacks_are_no_go(bed: Testbed, slurm_store: Store) -> None:
    """SLURM is told of eight devices a node, which are files of the testbed's own: no node has any."""
    options = ["--backend", "slurm", "--nodes", "1", "--slurm", "gres=gpu:8", "--json"]
    done = bed.run(
        CONTROLLER, *COMMAND, "--store", str(slurm_store.root), "validate", *options, check=False, timeout_s=200
    )
    rows = {row["name"]: row for row in json.loads(done.stdout)["rows"]}
    assert done.returncode == 1 and rows["devices"]["verdict"] == "fail", rows
    assert rows["devices"]["remedy"] and rows["all-reduce"]["verdict"] == "skipped"


def test_a_number_of_nodes_that_slurm_does_not_have_is_no_go(bed: Testbed, slurm_store: Store) -> None:
    command = [sys.executable, "-m", "jupyter_hyperpod", "--store", str(slurm_store.root), "validate", "--nodes", "9"]
    done = bed.run(CONTROLLER, *command, "--backend", "slurm", check=False)
    assert done.returncode == 1 and "4 of 4 nodes are in service, 9 are needed" in done.stdout
    assert "no-go" in done.stdout.splitlines()[-1] and "state=resume" in done.stdout
