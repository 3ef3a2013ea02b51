"""A job goes to another backend as it was, or a person is told what would differ and nothing is submitted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jupyter_hyperpod.cli import main
from jupyter_hyperpod.control.runs import promote
from jupyter_hyperpod.core.elastic import ElasticRange
from jupyter_hyperpod.core.errors import Conflict, SpecError
from jupyter_hyperpod.core.mount_spec import MountSpec
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.mounts import table
from jupyter_hyperpod.storage.fingerprint import record
from jupyter_hyperpod.storage.source_record import SourceRecord
from jupyter_hyperpod.storage.store import JobStore, Store


def make(store: Store, folder: Path, **fields: Any) -> JobStore:
    """A job as it was submitted here a moment ago."""
    spec = JobSpec("study", store.put_cell("print('hello')\n"), working_directory=str(folder), **fields)
    job = store.create_job(spec)
    record.leave(job.path, record.take(str(folder), sorted(spec.env), cache=record.cache_of(store)))
    return job


def test_what_is_chosen_differs_and_nothing_else(store: Store, tmp_path: Path) -> None:
    before = make(store, tmp_path, nodes=2, elastic=ElasticRange(1, 2), seed=5, kubernetes={}, spares=3)
    found = promote.plan(store, before.id, {"backend": "slurm", "nodes": 4, "slurm": {"partition": "gpu"}})
    assert (found.spec.backend, found.spec.nodes, found.spec.seed, found.spec.spares) == ("slurm", 4, 5, 3)
    assert str(found.spec.elastic) == "1:4", "widened to the chosen number"
    assert found.spec.cell_digest == before.spec().cell_digest
    assert found.spec.origin["promoted_from"] == before.id
    asked = {change.name for change in found.changes if change.part == promote.CHOSEN}
    assert asked == {"backend", "nodes", "elastic", "slurm"}
    assert found.asks == [], [change for change in found.changes if change.asks]
    assert "the same code" in found.sentence and found.sentence.endswith("nothing unasked")


def test_the_same_backend_is_no_promotion(store: Store, tmp_path: Path) -> None:
    job = make(store, tmp_path)
    for chosen in ({"backend": "local"}, {}):
        with pytest.raises(SpecError, match="choose another backend, or `rerun` it there"):
            promote.plan(store, job.id, chosen)


def test_another_environment_is_shown_and_asked_about(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make(store, tmp_path)
    then = record.of_job(job.path)
    name = next(iter(then["packages"]))
    then["packages"][name][0] = "0.0.1"
    monkeypatch.setattr(promote.record, "of_job", lambda path: then)
    found = promote.plan(store, job.id, {"backend": "slurm"})
    assert [(change.name, change.then) for change in found.asks if change.part == "environment"] == [(name, "0.0.1")]
    with pytest.raises(Conflict, match=f"{name} 0.0.1 then.*--accept-differences"):
        promote.submit(store, found, accept=False)


def test_without_a_fingerprint_a_person_is_asked(store: Store, tmp_path: Path) -> None:
    spec = JobSpec("study", store.put_cell("1\n"), working_directory=str(tmp_path))
    found = promote.plan(store, store.create_job(spec).id, {"backend": "slurm"})
    assert [change.name for change in found.asks] == ["the environment"]


def test_an_imported_module_that_was_changed_is_asked_about(store: Store, tmp_path: Path) -> None:
    job = make(store, tmp_path)
    module = tmp_path / "helper.py"
    module.write_text("x = 1\n")
    SourceRecord(job.path).of(str(module), module.read_bytes())
    assert promote.plan(store, job.id, {"backend": "slurm"}).asks == []
    module.write_text("x = 2\n")
    (change,) = promote.plan(store, job.id, {"backend": "slurm"}).asks
    assert change.name == "imported helper.py" and change.then != change.now


def test_a_folder_of_too_many_files_is_said_to_be_compared_in_part(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = make(store, tmp_path)
    module = tmp_path / "helper.py"
    module.write_text("x = 1\n")
    SourceRecord(job.path).of(str(module), module.read_bytes())
    monkeypatch.setattr(promote, "FILES_SEEN", 0)
    (change,) = promote.plan(store, job.id, {"backend": "slurm"}).asks
    assert change.part == promote.UNKNOWN and "beyond 0 files" in change.name


def test_mounts_are_those_of_the_same_names(store: Store, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    spec = MountSpec("data", str(tmp_path / "one"), str(tmp_path / "one"))
    table.add(store, spec)
    job = make(store, tmp_path, mounts=(spec,))
    assert promote.plan(store, job.id, {"backend": "slurm"}).asks == []
    table.remove(store, "data")
    table.add(store, replace(spec, node_path=str(tmp_path / "two")))
    found = promote.plan(store, job.id, {"backend": "slurm"})
    assert [(change.name, change.now) for change in found.asks] == [("data: node_path", str(tmp_path / "two"))]
    table.remove(store, "data")
    with pytest.raises(Conflict, match="used the mount data, which this store does not have any more"):
        promote.plan(store, job.id, {"backend": "slurm"})


def test_changed_code_is_refused(store: Store, tmp_path: Path) -> None:
    job = make(store, tmp_path)
    (store.cells / job.spec().cell_digest).write_text("print('other')\n")
    with pytest.raises(Conflict, match="is not what its digest says"):
        promote.plan(store, job.id, {"backend": "slurm"})


def test_a_dry_run_submits_nothing(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = make(store, tmp_path, env={"TOKEN": "s3cret"})
    words = ["promote", "study", "--backend", "slurm", "--dry-run", "--store", str(store.root)]
    assert main([*words, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["dry_run"] and told["backend"] == "slurm" and told["job"] == job.id
    assert main(words) == 0
    said = capsys.readouterr()
    assert "would promote" in said.out and "s3cret" not in said.out + said.err + json.dumps(told)
    assert store.job_ids() == [job.id]
