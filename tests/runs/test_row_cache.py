"""Rows of ended jobs are kept for the next server; what is torn, old or of another version is read from the journal."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.control.runs import labels, row_cache, run_table
from jupyter_hyperpod.control.runs.row_cache import FILE, CachedRow, RowCache
from jupyter_hyperpod.control.runs.run_table import COLUMNS, Row, RunTable
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.storage.journal import event_writer
from jupyter_hyperpod.storage.store import JobStore, Store

NAMES = ("a", "b")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The jobs whose journals are read. Every journal counts as settled at once."""
    found: list[str] = []
    real = run_table.FoldedJournal
    monkeypatch.setattr(run_table, "FoldedJournal", lambda job: found.append(job.id) or real(job))  # type: ignore[func-returns-value]
    monkeypatch.setattr(run_table, "SETTLED_S", -1.0)
    return found


def ended(store: Store, name: str) -> JobStore:
    job = store.create_job(JobSpec(name, store.put_cell(f"lr = {name!r}\n"), 1))
    with event_writer(job.events, "control") as journal:
        journal.append("job.submitted", {"id": job.id, "spec": job.spec().to_json()})
        member = {"member": "node-1.1", "node": "node-1", "rank": 0, "pid": 1}
        formed = {"generation": 1, "members": [member], "spares": [], "target": 1, "reason": "ready"}
        journal.append("generation.formed", formed)
        committed = {"step": 1, "generation": 1, "loss": 1.0, "loss_hex": (1.0).hex(), "step_time_s": 1.0}
        journal.append("step.committed", committed | {"samples": 8, "world_size": 1, "redone": 0})
        journal.append("job.state", {"state": "succeeded", "reason": "every rank finished"})
    return job


def rows(store: Store) -> tuple[RunTable, dict[str, Row]]:
    """A new server's table, when nothing is left to read."""
    table = RunTable(store)
    found = table.changes()
    shown = {row["id"]: row for row in found["rows"]}
    while found["unread"] or found["unfinished"]:
        found = table.changes(found["version"], found["instance"])
        shown |= {row["id"]: row for row in found["rows"]}
    return table, shown


def test_the_next_server_reads_no_journal_of_jobs_that_have_ended(store: Store, read: list[str]) -> None:
    jobs = [ended(store, name) for name in NAMES]
    _, first = rows(store)
    assert set(read) == {job.id for job in jobs} and all(set(row) == set(COLUMNS) for row in first.values())
    assert os.stat(store.root / FILE).st_mode & 0o777 == 0o600
    read.clear()
    table, second = rows(store)
    assert second == first and read == []
    assert table.sources_with(["lr = 'b'"]) == {"lr = 'b'": [second[jobs[1].id]["code"]]}, "code is found, too"

    labels.label(store, jobs[0].id, add=["best"])
    _, third = rows(store)
    assert read == [jobs[0].id] and third[jobs[0].id]["tags"] == ["best"] and third[jobs[1].id] == first[jobs[1].id]


def test_a_job_that_runs_is_not_kept(store: Store, read: list[str]) -> None:
    job = store.create_job(JobSpec("runs", store.put_cell("pass\n"), 1))
    with event_writer(job.events, "control") as journal:
        journal.append("job.submitted", {"id": job.id, "spec": job.spec().to_json()})
    rows(store), rows(store)
    assert read == [job.id, job.id]


@pytest.mark.parametrize("harm", ["torn", "version", "columns", "changed", "unreadable"])
def test_what_cannot_be_trusted_is_read_again(
    store: Store, read: list[str], harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = ended(store, "a")
    _, first = rows(store)
    path = store.root / FILE
    content = path.read_bytes()
    if harm == "torn":
        path.write_bytes(content[:-20])
    elif harm == "version":
        monkeypatch.setattr(row_cache, "FOLD", "another")
    elif harm == "columns":
        monkeypatch.setattr(run_table, "COLUMNS", (*COLUMNS, "new"))
    elif harm == "changed":
        path.write_bytes(content.replace(b'"loss":1.0', b'"loss":2.0'))
    else:
        path.unlink()
        path.mkdir()
    read.clear()
    _, again = rows(store)
    assert again == first and job.id in read


def test_the_file_does_not_grow_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_cache, "SPARE_LINES", 3)
    cache = RowCache(tmp_path, ["x"])
    for number in range(20):
        cache.put("a", CachedRow(number + 1, "", {"x": number}))
        cache.put(f"gone-{number}", CachedRow(1, "", {"x": number}))
        cache.flush({"a"})
    assert len((tmp_path / FILE).read_bytes().split()) < 20
    assert RowCache(tmp_path, ["x"]).get("a", 20) == CachedRow(20, "", {"x": 19})


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=8), st.integers(0, 400))
def test_a_damaged_file_gives_the_row_or_none(
    tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[int, int]], length: int
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    cache, kept = RowCache(folder, ["x"]), {}
    for name in NAMES:
        kept[name] = CachedRow(7, "d" * 8, {"x": name})
        cache.put(name, kept[name])
        cache.flush(NAMES)
    content = bytearray((folder / FILE).read_bytes())
    for place, byte in damage:
        content[place % len(content)] = byte
    (folder / FILE).write_bytes(content[: max(length, 1)])
    for name in NAMES:
        assert RowCache(folder, ["x"]).get(name, 7) in (kept[name], None)
