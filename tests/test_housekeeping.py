"""Deleting jobs: those that have ended, all or none, and nothing half."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from pathlib import Path

import pytest

from jupyter_hyperpod.cli import main
from jupyter_hyperpod.control import housekeeping
from jupyter_hyperpod.core.errors import StoreError
from jupyter_hyperpod.core.events import Event, encode
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.storage import folded
from jupyter_hyperpod.storage.journal import event_writer, follow_commands
from jupyter_hyperpod.storage.store import DELETED, Store

DAY_S = 86_400.0


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("JUPYTER_HYPERPOD_STORE", str(tmp_path))
    return Store(tmp_path).prepare()


def job(store: Store, name: str, state: str, ended_days_ago: float = 0.0) -> str:
    made = store.create_job(JobSpec(name=name, cell_digest="0" * 64, nodes=1))
    at_s = time.time() - ended_days_ago * DAY_S
    event = Event("coordinator.1", 1, at_s, "job.state", {"state": state, "reason": ""})
    (made.events / "coordinator.1.jsonl").write_bytes(encode(event))
    return made.id


def test_a_job_that_has_ended_is_deleted(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = job(store, "one", "succeeded"), job(store, "two", "failed")
    assert main(["delete", "one"]) == 0
    assert capsys.readouterr().out.startswith(f"deleted: {one}, ")
    assert store.job_ids() == [two]
    assert main(["delete", two, two, "--json"]) == 0
    assert [record["id"] for record in json.loads(capsys.readouterr().out)] == [two]
    assert os.listdir(store.jobs) == []


def test_several_are_asked_to_stop_whatever_becomes_of_one(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    one, two, ended = (job(store, name, state) for name, state in (("a", "running"), ("b", "pending"), ("c", "failed")))
    assert main(["stop", "a", "nobody", two, ended, one, "a"]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"asked {one} to stop" and "no job 'nobody'" in said[1] and said[1].startswith("nobody was not")
    assert said[2:] == [f"asked {two} to stop", f"{ended} has already ended"]
    for each in (one, two):
        assert {command.kind for command in follow_commands(store.job(each).commands).poll()} == {"stop"}
    assert main(["stop", one, two, "--json"]) == 0
    assert [record["id"] for record in json.loads(capsys.readouterr().out)] == [one, two]
    assert main(["stop", one, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"id": one, "command": "stop"}
    assert main(["stop", "nobody"]) == 2 and "no job 'nobody'" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["running", "pending", "missing"])
def test_all_or_none(store: Store, capsys: pytest.CaptureFixture[str], wrong: str) -> None:
    ended = job(store, "ended", "stopped")
    if wrong != "missing":
        job(store, wrong, wrong)
    assert main(["delete", ended, wrong]) != 0
    assert ended in store.job_ids()
    expected = "no job 'missing'" if wrong == "missing" else f"is {wrong}; `jupyter hyperpod stop {wrong}-"
    assert expected in capsys.readouterr().err


def test_prune_deletes_what_ended_long_ago(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    old = [job(store, f"old{days}", "succeeded", days) for days in (40, 50, 60)]
    failed = job(store, "failed", "failed", 45)
    young, running = job(store, "young", "succeeded", 3), job(store, "running", "running", 90)
    assert main(["prune", "--dry-run", "--json"]) == 0
    assert {record["id"] for record in json.loads(capsys.readouterr().out)} == {*old, failed}
    assert len(store.job_ids()) == 6
    assert main(["prune", "--state", "succeeded", "--keep", "2"]) == 0
    said = capsys.readouterr().out
    assert "deleted: 2 jobs" in said and old[0] not in said, "young and the first of the old ones are the newest two"
    assert set(store.job_ids()) == {old[0], failed, young, running}
    assert main(["prune", "--older-than", "1d"]) == 0
    assert store.job_ids() == [running]
    assert main(["prune"]) == 0
    assert "no job ended more than 30d ago" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--older-than", "soon"], ["--state", "running"], ["--keep", "x"]])
def test_bad_use_deletes_nothing(store: Store, words: list[str]) -> None:
    old = job(store, "old", "succeeded", 100)
    try:
        assert main(["prune", *words]) == 2
    except SystemExit as error:
        assert error.code == 2
    assert store.job_ids() == [old]


def test_a_deletion_that_was_interrupted_is_finished_by_the_next(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = job(store, "one", "succeeded"), job(store, "two", "succeeded")
    with monkeypatch.context() as broken:
        broken.setattr(shutil, "rmtree", lambda path: (_ for _ in ()).throw(OSError(5, "Input/output error")))
        with pytest.raises(StoreError, match=f"{one} cannot be deleted: Input/output error"):
            housekeeping.delete(store, one)
    assert store.job_ids() == [two]
    assert [name.startswith(DELETED) for name in sorted(os.listdir(store.jobs))] == [True, False]
    housekeeping.delete(store, two)
    assert os.listdir(store.jobs) == []


def cell_of(store: Store, source: str, hours_ago: float = 2.0) -> str:
    digest = store.put_cell(source)
    at_s = time.time() - hours_ago * 3600.0
    os.utime(store.cells / digest, (at_s, at_s))
    return digest


def test_the_source_of_deleted_jobs_goes_and_that_of_others_stays(store: Store) -> None:
    gone, kept, fresh = (cell_of(store, text, hours) for text, hours in (("a", 2.0), ("b", 2.0), ("c", 0.5)))
    again = cell_of(store, "d")
    store.create_job(JobSpec(name="kept", cell_digest=kept, nodes=1))
    assert store.put_cell("d") == again, "it is submitted once more: a job will need it"
    ended = job(store, "ended", "succeeded")
    assert main(["delete", ended]) == 0
    assert sorted(os.listdir(store.cells)) == sorted([kept, fresh, again])
    assert gone not in os.listdir(store.cells)


def test_no_source_goes_while_a_job_cannot_be_read(store: Store) -> None:
    digest = cell_of(store, "a")
    broken = store.create_job(JobSpec(name="broken", cell_digest=digest, nodes=1))
    (broken.path / "spec.json").write_text("{")
    ended = job(store, "ended", "succeeded")
    assert main(["delete", ended]) == 0
    assert os.listdir(store.cells) == [digest]


@pytest.mark.parametrize("left", ["spec.json", "nothing"])
def test_a_job_whose_journal_is_lost_is_shown_and_deleted(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    monkeypatch.setattr(folded, "SUBMITTED_S", 0.0)
    lost = job(store, "one", "running")
    shutil.rmtree(store.jobs / lost / "events")
    if left == "nothing":
        (store.jobs / lost / "spec.json").unlink()
    assert main(["list"]) == 0
    assert re.search(rf"{lost} +lost", capsys.readouterr().out)
    assert main(["describe", lost]) == 0
    assert f"its journal is lost: {store.jobs / lost}/events is empty or gone" in capsys.readouterr().out
    assert main(["delete", lost]) == 0
    assert capsys.readouterr().out.startswith(f"deleted: {lost}, ") and not store.job_ids()


def test_a_job_without_a_journal_that_runs_is_not_deleted(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folded, "SUBMITTED_S", 0.0)
    lost = job(store, "one", "running")
    shutil.rmtree(store.jobs / lost / "events")
    with event_writer(store.cluster_events, "supervisor") as journal:
        journal.append("cluster.state", {"state": "running", "reason": "", "nodes": ["node-1"], "pid": 1})
        node = {"node": "node-1", "state": "busy", "reason": "", "jobs": [lost], "slots": 1, "used": 1, "pid": 1}
        journal.append("node.state", {**node, "incarnation": 1, "spare": False})
    assert main(["delete", lost]) == 2
    assert f"its processes run on node-1; `jupyter hyperpod stop {lost}`" in capsys.readouterr().err
