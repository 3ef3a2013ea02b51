"""Validation on a real local cluster: every row by what the nodes found, and nothing is left when it is interrupted."""

from __future__ import annotations

import ast
import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.control import jobs, validate
from jupyter_hyperpod.core.errors import ClusterError, SpecError
from jupyter_hyperpod.core.events import TERMINAL_STATES
from jupyter_hyperpod.storage.store import Store

COMMAND = (sys.executable, "-m", "jupyter_hyperpod")


def test_a_local_cluster_is_fit(shared_cluster: Store) -> None:
    done = subprocess.run(
        [*COMMAND, "--store", str(shared_cluster.root), "validate", "--json"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    found = json.loads(done.stdout)
    verdicts = {row["name"]: row["verdict"] for row in found["rows"]}
    assert done.returncode == 0 and found["fit"], (found, done.stderr)
    for name in ("nodes", "storage shared", "all-reduce", "training"):
        assert verdicts[name] == "pass", found
    assert all(row["sentence"] for row in found["rows"])
    assert not list(shared_cluster.shared.glob("preflight-*")), "what was written is removed"


def test_more_nodes_than_there_are_is_no_go(shared_cluster: Store) -> None:
    with validate.Validation(shared_cluster, nodes=50, say=lambda _: None) as validation:
        first, *others = validation.rows()
    assert first.verdict == "fail" and "50 are needed" in first.sentence and first.remedy
    assert {row.verdict for row in others} == {"skipped"}
    assert not validate.fit([first, *others], strict=False)
    assert "→" in validate.table([first]).render()


def test_an_interrupted_validation_leaves_nothing(shared_cluster: Store, eventually: Callable[..., object]) -> None:
    command = [*COMMAND, "--store", str(shared_cluster.root), "validate"]
    before = set(shared_cluster.job_ids())
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        eventually(lambda: list(shared_cluster.shared.glob("preflight-*")) and set(shared_cluster.job_ids()) - before)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode != 0
    for job_id in set(shared_cluster.job_ids()) - before:
        eventually(lambda job_id=job_id: jobs.job_view(shared_cluster, job_id)["state"] in TERMINAL_STATES)
    assert not list(shared_cluster.shared.glob("preflight-*"))


def test_what_cannot_be_validated_is_refused(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SpecError, match="expected one of local, slurm"):
        validate.Validation(store, backend="nomad")
    with pytest.raises(SpecError, match="expected a whole number from 1"):
        validate.Validation(store, nodes=0)
    with pytest.raises(SpecError, match="is unknown; expected one of account"):
        validate.Validation(store, backend="slurm", options={"slurm": {"wrap": "rm -rf /"}})
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ClusterError, match="not found in PATH"):
        next(validate.Validation(store, backend="slurm", say=lambda _: None).rows())
    assert not store.job_ids()


@given(st.dictionaries(st.text(), st.text()))
def test_whatever_mounts_are_called_the_cell_sees_the_same(directories: dict[str, str]) -> None:
    call = ast.parse(validate.EXAMINE.format(directories=directories)).body[-1]
    assert isinstance(call, ast.Expr) and isinstance(call.value, ast.Call)
    assert ast.literal_eval(call.value.args[0]) == directories
