"""A changed dependency is named before a job starts; the same code on another environment is no surprise."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jupyter_hyperpod.cli import main
from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.control.parity import before_launch
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.storage.fingerprint import record
from jupyter_hyperpod.storage.store import JobStore, Store
from tests import wheels
from tests.test_foreign_environments import TREE, make_environment

CELL = "import tiny_dependency; print('version', tiny_dependency.__version__)"


def written(store: Store, earlier: JobStore | None = None, **fields: Any) -> JobStore:
    complete = jobs.complete({"name": "job", **fields})
    return jobs._create(store, jobs.make_spec(complete, store.put_cell("pass")), None, earlier)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages that this process imports from, with tiny-dependency 1.0 in it."""
    site = tmp_path / "site"
    wheels.unpack(site, "tiny-dependency", "1.0")
    monkeypatch.syspath_prepend(site)
    return site


def upgrade(site: Path, version: str = "2.0") -> None:
    for path in site.glob("tiny_dependency-*.dist-info/*"):
        path.unlink()
    for path in site.glob("tiny_dependency-*.dist-info"):
        path.rmdir()
    wheels.unpack(site, "tiny-dependency", version)


def imported(patch: pytest.MonkeyPatch) -> ModuleType:
    """The present tiny-dependency, for this test alone."""
    patch.setitem(sys.modules, "tiny_dependency", ModuleType("none"))
    del sys.modules["tiny_dependency"]
    importlib.invalidate_caches()
    return importlib.import_module("tiny_dependency")


def other_environment(tmp_path: Path, version: str) -> str:
    found = [folder for folder in sys.path if folder.endswith("site-packages")]
    python = make_environment(tmp_path / "other", [str(TREE), *found])
    (packages,) = Path(python).parents[1].glob("lib/python*/site-packages")
    wheels.unpack(packages, "tiny-dependency", version)
    return python


def test_a_job_keeps_a_private_fingerprint_and_nothing_is_said_without_a_reason(store: Store, site: Path) -> None:
    job = written(store, env={"MY_TOKEN": "hf_secret"})
    kept = job.path / record.FILE
    assert kept.stat().st_mode & 0o777 == 0o600 and b"hf_secret" not in kept.read_bytes()
    found = record.of_job(job.path)
    assert found["packages"]["tiny-dependency"][0] == "1.0" and "MY_TOKEN" in found["variables"]
    assert jobs.submission_warnings(store, job.id) == []


def test_members_with_another_interpreter(store: Store, site: Path, tmp_path: Path) -> None:
    same = other_environment(tmp_path / "same", "1.0")
    assert jobs.submission_warnings(store, written(store, python=same).id) == []
    python = other_environment(tmp_path, "2.0")
    job = written(store, python=python)
    assert record.of_job(job.path)["packages"]["tiny-dependency"][0] == "2.0", "what members have"
    (said,) = jobs.submission_warnings(store, job.id)
    assert f"members run {python}, where other packages are: tiny-dependency 1.0 here, 2.0 there." in said


def test_an_interpreter_of_other_machines_is_compared_with_nothing(store: Store) -> None:
    job = written(store, python="/nowhere/python")
    assert jobs.submission_warnings(store, job.id) == []
    assert record.of_job(job.path)["packages"] == {}


def test_a_package_that_was_upgraded_after_its_import(
    store: Store, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported(monkeypatch)
    assert jobs.submission_warnings(store, written(store).id) == []
    upgrade(site)
    (said,) = jobs.submission_warnings(store, written(store).id)
    assert said.startswith("this process has imported tiny-dependency 1.0, while 2.0 is installed now: members will")


def test_a_package_that_calls_itself_otherwise_is_none(
    store: Store, site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = imported(monkeypatch)
    monkeypatch.setattr(module, "__version__", "one")
    (info,) = site.glob("*.dist-info")
    os.utime(info / "RECORD", (1e9, 1e9))  # it was installed long before this process began
    assert jobs.submission_warnings(store, written(store).id) == []


def test_a_rerun_names_what_has_changed_since(store: Store, site: Path) -> None:
    first = written(store)
    assert jobs.submission_warnings(store, written(store, first).id) == []
    upgrade(site)
    (said,) = jobs.submission_warnings(store, written(store, first).id)
    assert f"since {first.id} was submitted, its environment has changed: tiny-dependency 1.0 then, 2.0 now" in said
    (first.path / record.FILE).unlink()
    assert jobs.submission_warnings(store, written(store, first).id) == []


def test_the_command_line_shows_it_before_the_job_starts(
    cluster: Store, site: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = tmp_path / "cell.py"
    cell.write_text(CELL)
    python = other_environment(tmp_path, "2.0")
    assert main(["submit", str(cell), "--python", python, "--follow"]) == 0
    said = capsys.readouterr()
    assert "version 2.0" in said.out and "warning: members run" in said.err and "tiny-dependency 1.0 here" in said.err
    (job,) = cluster.job_ids()
    kinds = [event.kind for event in jobs.follow(cluster, job).poll()]
    assert kinds.index("warning.raised") < kinds.index("job.state"), "before anything of it was started"
    view = jobs.job_view(cluster, job)
    assert [one for one in view["warnings"] if "tiny-dependency 1.0 here, 2.0 there" in one["text"]]


def test_variables_that_only_this_process_has(cluster: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_ALGO", "Ring of secrets")
    monkeypatch.setenv("MY_OWN_FLAG", "1")
    spec = JobSpec(name="a", cell_digest="0" * 64)
    _, (said,) = before_launch.fingerprint_of(cluster, spec)
    assert said.startswith("this process has set NCCL_ALGO, and members do not have that: how gradients are exchanged")
    assert "`--env NCCL_ALGO` passes it on" in said and "secrets" not in said
    passed = JobSpec(name="a", cell_digest="0" * 64, env={"NCCL_ALGO": "Ring of secrets"})
    assert before_launch.fingerprint_of(cluster, passed)[1] == []
