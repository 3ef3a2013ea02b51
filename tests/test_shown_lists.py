"""What `list`, `describe`, `events` and `logs` show of long lists, and `%hyperpod stop` of a job that has ended."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from jupyter_hyperpod.cli import main
from jupyter_hyperpod.control import lookup, report, sentences
from jupyter_hyperpod.control import nodes as control_nodes
from jupyter_hyperpod.control.clusters.node_table import nodes_table
from jupyter_hyperpod.control.watch import JobWatch
from jupyter_hyperpod.core.errors import NotFound, StoreError
from jupyter_hyperpod.core.events import Event
from jupyter_hyperpod.core.spec import JobSpec, TrialSpec
from jupyter_hyperpod.core.views import new_cluster_view
from jupyter_hyperpod.storage.journal import event_writer
from jupyter_hyperpod.storage.store import JobStore, Store
from jupyter_hyperpod.system import place

Said = pytest.CaptureFixture[str]


def made(store: Store, state: str = "succeeded", lines: int = 0, **more: Any) -> JobStore:
    fields: dict[str, Any] = {"name": "job", "nodes": 1, "elastic": None, **more}
    job = store.create_job(JobSpec(cell_digest=store.put_cell("1"), **fields))
    with event_writer(job.events, "control") as journal:
        journal.append("job.submitted", {"id": job.id, "spec": job.spec().to_json()})
        for number in range(lines):
            output = {"rank": 0, "member": "m", "node": "n", "stream": "stdout", "text": f"line {number}\n"}
            journal.append("output.written", output)
        journal.append("job.state", {"state": state, "reason": ""})
    return job


def test_the_list_shows_the_newest_jobs_and_those_that_run(
    store: Store, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "JOBS_SHOWN", 2)
    running, *ended = [made(store, state) for state in ("running", *["succeeded"] * 4)]
    assert main(["list"]) == 0
    said = capsys.readouterr().out
    assert running.id in said and sum(job.id in said for job in ended) == 2
    assert "2 older jobs not shown; `jupyter hyperpod list --all` shows them" in said
    assert main(["list", "--all"]) == 0
    said = capsys.readouterr().out
    assert all(job.id in said for job in (running, *ended)) and "older" not in said
    rows = shell().run_cell("%hyperpod list").result
    assert "2 older jobs not shown in the table" in capsys.readouterr().out
    assert len(rows) == 5 and sum(job.id in repr(rows) for job in ended) == 2


def test_a_trial_is_shown_with_its_values_and_its_metric(store: Store, capsys: Said, tmp_path: Path) -> None:
    trial = TrialSpec("first-abcdefgh", 3, {"lr": 0.001, "kind": "adam"}, {"metric": "score"})
    job = made(store, name="first-3", trial=trial)
    with event_writer(job.events, "worker") as journal:
        journal.append("metric.logged", {"step": 1, "values": {"score": 0.25}})
    other = made(store)
    assert main(["describe", "first-3"]) == 0
    assert "trial       3 of first-abcdefgh, lr=0.001, kind=adam: score 0.25\n" in capsys.readouterr().out
    assert "3 of first-abcdefgh" in repr(shell().run_cell("%hyperpod describe first-3").result)
    assert main(["list"]) == 0
    said = capsys.readouterr().out
    assert "TRIAL" in said and "  lr=0.001, kind=adam: score 0.25\n" in said
    assert main(["compare", "first-3", other.id]) == 0
    assert "score, by which the sweep judges" in capsys.readouterr().out
    assert main(["describe", "first"]) == 2
    assert (
        f"'first' is no job, but a sweep, whose trials are jobs: name one, such as {job.id}" in capsys.readouterr().err
    )


def test_a_trial_that_runs_again_has_a_name_that_says_so() -> None:
    long = JobSpec(name=f"{'a' * 34}-1000", cell_digest="0" * 64, trial=TrialSpec("first-abcdefgh", 1000))
    assert lookup.no_trial(long) == {"trial": None, "name": f"{'a' * 29}-1000-again"}
    assert lookup.no_trial(JobSpec(name="first-3-again", cell_digest="0" * 64)) == {}


def test_a_loss_that_is_no_number_is_told(store: Store, capsys: Said) -> None:
    job = made(store, "running")
    session = {"total_steps": 4, "global_batch": 2, "micro_batch": 1, "micro_batches": 2, "number": 1}
    step = {"step": 1, "loss": None, "loss_hex": "nan", "step_time_s": 0.1, "samples": 2, "redone": 0, "world_size": 1}
    step |= {"generation": 1}
    with event_writer(job.events, "worker") as journal:
        journal.append("session.opened", session | {"parameters": 1, "state_bytes": 4})
        journal.append("step.committed", step)
    assert main(["list"]) == 0 and main(["describe", job.id]) == 0
    listed, described = capsys.readouterr().out.split(f"{job.id}  running", 2)[1:]
    assert " 1/4   nan " in listed and "loss        nan\n" in described


@pytest.mark.parametrize("words", [["report", "job"], ["report", "job", "-o", "page.html"], ["submit", "train.py"]])
def test_a_folder_that_was_deleted_is_told_in_a_sentence(
    store: Store, words: list[str], capsys: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(store)
    here = shell()
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert place.here() == str(tmp_path / "gone")
    assert main(words) != 0
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1 and "Traceback" not in said
    if words[0] == "report":
        assert place.GONE in said
        assert place.GONE in str(here.run_cell(f"%hyperpod {' '.join(words)}").error_in_exec)
        assert main(["report", "job", "-o", str(tmp_path / "page.html")]) == 0


def test_describe_shows_references_and_no_value(store: Store, capsys: Said) -> None:
    references = {"TOKEN": "@file:/run/token", "OTHER": "@env:MINE"}
    job = made(store, env={"PLAIN": "xyzzy"}, env_from=references)
    assert main(["describe", job.id]) == 0
    said = capsys.readouterr().out
    assert "TOKEN=@file:/run/token" in said and "OTHER=@env:MINE" in said and "xyzzy" not in said
    assert "@env:MINE" in repr(shell().run_cell(f"%hyperpod describe {job.id}").result)


def test_the_last_events(store: Store, capsys: Said) -> None:
    job = made(store, lines=5)
    assert main(["events", job.id, "--tail", "2"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert len(said) == 2 and "job.state" in said[1]
    assert main(["events", job.id, "--tail", "0"]) == 2
    assert "expected a number of events, 1 or more" in capsys.readouterr().err


def test_the_last_lines_of_all_that_is_there_and_then_the_rest(
    store: Store, capsys: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where what is there takes several reads."""
    left: list[Event] = []
    take = JobWatch._take

    def five(watch: JobWatch, timeout_s: float) -> list[Event]:
        left.extend(take(watch, 0.0))
        read, left[:] = left[:5], left[5:]
        return read

    monkeypatch.setattr(JobWatch, "_take", five)
    lines = 23
    job = made(store, lines=lines)
    assert main(["logs", job.id, "--tail", "3", "--follow"]) == 0
    assert capsys.readouterr().out.splitlines() == [f"line {number}" for number in range(lines - 3, lines)]


def test_a_job_that_has_ended_is_not_stopped(store: Store, capsys: Said) -> None:
    job = made(store)
    shell().run_cell(f"%hyperpod stop {job.id}").raise_error()
    assert capsys.readouterr().out.strip() == f"{job.id} has already ended"


def shell() -> InteractiveShell:
    made = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}), colors="nocolor")
    made.run_line_magic("load_ext", "jupyter_hyperpod")
    return made


def test_a_name_whose_newest_job_has_ended_stops_nothing_silently(store: Store, capsys: Said) -> None:
    older, newest = made(store, "running"), made(store, "stopped")
    for number, job in enumerate((older, newest)):
        os.utime(job.path / "spec.json", (number + 1.0, number + 1.0))
    for words in (["stop", "job"], ["scale", "job", "1"]):
        assert main(words) == 2
        said = capsys.readouterr().err
        assert f"{newest.id} has already ended; an older job of that name is running: {older.id}" in said
    assert main(["logs", "job"]) == 0
    assert f"note: an older job of that name is running: {older.id}" in capsys.readouterr().err
    result = shell().run_cell("%hyperpod stop job")
    assert older.id in str(result.error_in_exec or "") + capsys.readouterr().err
    assert os.listdir(older.commands) == []
    assert main(["stop", older.id]) == 0 and os.listdir(older.commands) != []


def test_words_that_name_nothing_are_answered_with_the_nearest(
    store: Store, capsys: Said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = made(store)
    assert main(["list", "--tag", "basline"]) == 0
    assert "no job has the tag 'basline'; `jupyter hyperpod tag JOB --add TAG`" in capsys.readouterr().out
    assert main(["tag", job.id, "--add", "baseline"]) == 0
    assert main(["list", "--tag", "basline"]) == 0
    assert "no job has the tag 'basline' (did you mean baseline?)" in capsys.readouterr().out
    assert main(["list", "--tag", "basline", "--json"]) == 0
    assert capsys.readouterr().out.strip() == "[]"
    assert main(["tag", job.id, "--remove", "basline"]) == 2
    assert f"{job.id} has no tag 'basline' (did you mean baseline?); it has baseline" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("pass")
    assert main(["submit", "trian.py"]) == 2
    assert "No such file or directory (did you mean train.py?)" in capsys.readouterr().err
    assert len(store.job_ids()) == 1


def test_a_store_that_is_deleted_is_said_at_once(store: Store) -> None:
    watch = JobWatch(store, made(store, "running").id)
    watch.there()
    shutil.rmtree(store.jobs / watch.job_id)
    with pytest.raises(NotFound, match=f"no job {watch.job_id}"):
        list(watch.batches())
    shutil.rmtree(store.root)
    with pytest.raises(StoreError, match=f"the store {store.root} is gone"):
        list(watch.batches())


def test_a_node_in_the_place_of_an_action(store: Store, capsys: Said) -> None:
    with pytest.raises(SystemExit):
        main(["nodes", "node-77"])
    assert "'node-77' is no action; `nodes describe node-77` describes a node" in capsys.readouterr().err


def test_nodes_have_the_words_of_the_panel() -> None:
    """The panel's are in src/sidebar/__tests__/panel.spec.tsx: free, spare, cut off, restarted."""
    node = {"slots": 1, "used": 0, "jobs": [], "pid": 7, "since_s": 0.0, "reason": "", "spare": False}
    nodes = [
        node | {"node": "node-1", "state": "idle", "incarnation": 1},
        node | {"node": "node-2", "state": "idle", "incarnation": 3, "spare": True},
        node | {"node": "node-3", "state": "partitioned", "incarnation": 1},
    ]
    told = nodes_table({"nodes": nodes, "health": {}}).render()
    heads, *rows = told.splitlines()
    assert "RESTARTED" in heads and "REPLACED" not in heads
    assert [row.split()[1] for row in rows[-3:]] == ["free", "free", "cut"] and "spare" in rows[-2]
    cut_off = Event("w", 1, 0.0, "node.state", node | {"node": "node-3", "state": "partitioned", "incarnation": 1})
    assert sentences.event_sentence(cut_off) == "node-3 cut off"
    assert "free" in control_nodes.describe(new_cluster_view() | {"nodes": nodes}, "node-1").lines[0]
