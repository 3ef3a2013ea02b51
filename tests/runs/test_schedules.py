"""Schedules on a real cluster: runs at their times, also after a death at any line, and without a supervisor."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jupyter_hyperpod.cli import main
from jupyter_hyperpod.control import cluster as control
from jupyter_hyperpod.control import jobs, watch
from jupyter_hyperpod.control.runs import labels
from jupyter_hyperpod.control.schedules import firing, schedule_file, verbs, waking
from jupyter_hyperpod.control.schedules.schedule_file import Schedule
from jupyter_hyperpod.core.errors import SpecError
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.server.extension import HyperpodExtension
from jupyter_hyperpod.storage.journal import event_writer
from jupyter_hyperpod.storage.output.output_choice import OutputChoice
from jupyter_hyperpod.storage.store import ENVIRONMENT_VARIABLE, Store
from tests.test_magics import make_shell, refused, run

BOUND_S = 60.0
GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "schedules.md").read_text()
Eventually = Callable[..., Any]


def back(store: Store, name: str, hours: float = 1.5, **more: Any) -> None:
    """Let a schedule be one whose last time was settled some hours ago, as if the machine had been off since."""
    with schedule_file.changing(store):
        schedule = schedule_file.read(store, name)
        more |= {"created_s": schedule.created_s - 1}  # else it would be the same run as before
        schedule_file.write(store, replace(schedule, settled_s=schedule.settled_s - hours * 3600, **more))


def runs(store: Store, name: str) -> list[str]:
    return [one.job for one in schedule_file.read(store, name).runs]


def ended(store: Store, job: str) -> str:
    """How a job ended, and what it printed."""
    state = jobs.wait(store, job, timeout_s=BOUND_S)["state"]
    printed = watch.printed_pieces(store, job, OutputChoice())
    return f"{state}: " + "".join(event.data["text"] for event in printed)


def said(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    capsys.readouterr()
    assert main(words) == status, capsys.readouterr()
    shown = capsys.readouterr()
    return shown.out if status == 0 else shown.err


@pytest.mark.timeout(300)
def test_a_file_runs_at_its_times(
    cluster: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str], eventually: Eventually
) -> None:
    """What runs is what was scheduled; a missed time is made up for once, also by a supervisor started again."""
    file = tmp_path / "train.py"
    file.write_text("import os, helper\nprint('first', os.environ['TOKEN'])\n")
    (tmp_path / "helper.py").write_text("VALUE = 1\n")
    half_an_hour_ago = f"{(int(time.time() / 60) + 30) % 60} * * * *"  # so no time comes during the test
    words = ("submit", str(file), "--schedule", half_an_hour_ago, "--time-zone", "Europe/Berlin")
    words = (*words, "--env", "TOKEN=xyzzy")
    made = json.loads(said(capsys, *words, "--json"))
    assert made["name"] == "train" and 1000 < made["next_s"] - time.time() < 1860
    assert "there is a schedule train already" in said(capsys, *words, status=2)
    file.write_text("print('second')\n")
    (tmp_path / "helper.py").write_text("VALUE = 2\n")
    assert jobs.list_jobs(cluster) == [], "nothing runs before its time"

    back(cluster, "train")
    (job,) = eventually(lambda: runs(cluster, "train"), timeout_s=BOUND_S)
    assert "succeeded: first xyzzy" in ended(cluster, job)
    view = jobs.job_view(cluster, job)
    assert view["labels"]["tags"] == ["train"]
    said_of_module = "since train began, helper.py has changed: the new job runs it as it is now"
    assert [warning["text"] for warning in view["warnings"] if "helper" in warning["text"]] == [said_of_module]
    found = json.loads(said(capsys, "schedule", "show", "train", "--json"))
    assert found["runs"][0]["state"] == "succeeded" and "missed" in found["runs"][0]["said"]
    assert found["next_s"] == made["next_s"]
    assert "xyzzy" not in said(capsys, "schedule", "show", "train") + json.dumps(found)

    said(capsys, "schedule", "pause", "train")
    back(cluster, "train")
    assert firing.fire(cluster, "train") is None
    assert "paused" in said(capsys, "schedule", "list")
    by_hand = json.loads(said(capsys, "schedule", "run", "train", "--json"))["job"]
    assert "succeeded: first" in ended(cluster, by_hand)
    said(capsys, "schedule", "resume", "train")
    assert firing.fire(cluster, "train") is None, "what came while it was paused was not missed"

    os.kill(control.status(cluster)["pid"], signal.SIGKILL)
    eventually(lambda: not control.connectable(cluster))
    back(cluster, "train", keep_runs=1)
    assert "keeps 1 run that has ended" in said(capsys, "schedule", "show", "train")
    assert "train" in said(capsys, "schedule", "list"), "which starts the supervisor again"
    eventually(lambda: len(runs(cluster, "train")) == 3, timeout_s=BOUND_S)
    assert control.connectable(cluster)
    assert "succeeded: first" in ended(cluster, runs(cluster, "train")[-1])
    eventually(lambda: len(jobs.list_jobs(cluster)) == 1)  # of the runs that have ended, one is kept

    os.kill(control.status(cluster)["pid"], signal.SIGKILL)
    eventually(lambda: not control.connectable(cluster))
    server: Any = SimpleNamespace(job_store=cluster, log=logging.getLogger())
    HyperpodExtension._wake_schedules(server)
    assert control.connectable(cluster), "JupyterLab's server starts it again, too"

    control.stop(cluster)
    HyperpodExtension._wake_schedules(server)
    assert "no cluster is running" in said(capsys, "schedule", "list")
    assert not control.connectable(cluster), "a cluster that somebody stopped is not started by a question"
    said(capsys, "schedule", "delete", "train")
    assert "no schedules yet" in said(capsys, "schedule", "list")
    assert "no schedule 'train'" in said(capsys, "schedule", "show", "train", status=2)
    assert len(jobs.list_jobs(cluster)) == 1, "its jobs stay"


@pytest.mark.timeout(300)
def test_whoever_dies_between_two_lines_leaves_one_run(shared_cluster: Store) -> None:
    """Before and after the job is made, before its first event, its tag, and the end of the record."""
    store = shared_cluster

    def dies(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    def dies_after(act: Callable[..., Any], times: int) -> Callable[..., Any]:
        left = [times]

        def one(*args: Any, **options: Any) -> Any:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            return act(*args, **options)

        return one

    deaths: list[tuple[Any, str, Callable[..., Any]]] = [
        (jobs, "submit", dies),
        (jobs, "_announce", dies),
        (labels, "label", dies),
        (schedule_file, "write", dies_after(schedule_file.write, 1)),
    ]
    for number, (module, name, deadly) in enumerate(deaths):
        schedule = Schedule(f"death-{number}", "0 * * * *", "UTC", 1000.0 + number, 4e9)
        schedule_file.create(store, "x = 1\n", {"name": schedule.name}, schedule)
        with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(module, name, deadly)
            firing.run_now(store, schedule.name)
    for number in range(len(deaths)):
        name = f"death-{number}"
        firing.fire(store, name)  # where the supervisor has not done so already
        (job,) = runs(store, name)
        assert ended(store, job).startswith("succeeded")
        assert [one for one in store.job_ids() if one.startswith(f"{name}-")] == [job]
        kinds = [event.kind for event in jobs.follow(store, job).poll()]
        assert kinds.count("job.submitted") == 1
        assert jobs.job_view(store, job)["labels"]["tags"] == [name]
        schedule_file.delete(store, name)


@pytest.mark.timeout(300)
def test_the_guide(
    shared_cluster: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """What the guide shows works as it is printed."""
    store = shared_cluster
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(store.root))
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("x = 1\n")
    shell = make_shell()
    (cell,) = re.findall(r"```python\n(%%hyperpod.*?)```", GUIDE, re.DOTALL)
    run(shell, cell)
    assert "nightly runs at 30 6 * * mon-fri Europe/Berlin, next " in capfd.readouterr().out
    (commands,) = re.findall(r"```bash\n(.*?)```", GUIDE, re.DOTALL)
    for line in re.findall(r"jupyter hyperpod (.*)", commands):
        words = re.findall(r"\"[^\"]*\"|\S+", line)
        assert main([word.strip('"') for word in words]) == 0, line
    (job,) = (name for name in store.job_ids() if name.startswith("nightly-"))
    assert "succeeded: trained" in ended(store, job)
    listed = run(shell, "%hyperpod schedule list")
    assert [one["name"] for one in listed] == ["weekdays", "weekly"] and listed[1]["keep_runs"] == 10
    for one in listed:
        run(shell, f"%hyperpod schedule delete {one['name']}")


def test_what_is_refused(store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "train.py"
    file.write_text("lr = 1\nprint(lr)\n")
    at = ("--schedule", "30 6 * * *")
    for words, sentence in (
        ((*at, "--sweep", "lr=1,2"), "a sweep cannot be scheduled"),
        ((*at, "--follow"), "a schedule has none yet"),
        ((*at, "--keep-runs", "0"), "expected 1 to 100"),
        ((*at, "--time-zone", "Europe/Nowhere"), "is unknown"),
        (("--catch-up", "none"), "--catch-up belongs to a schedule"),
    ):
        assert sentence in said(capsys, "submit", str(file), *words, status=2)
    assert "at 30 6 * * * UTC" in said(capsys, "submit", str(file), *at, "--time-zone", "UTC", "--dry-run")
    shell = make_shell()
    for option in ("--push", "--pull"):
        error = refused(shell, f"%%hyperpod --schedule @daily {option} lr\nlr = 1\n", SpecError)
        assert "exchanges values with this notebook" in str(error)
    assert not (store.root / schedule_file.FOLDER).exists()
    assert "needs the name of a schedule" in said(capsys, "schedule", "show", status=2)
    for line, sentence in (
        ("%%hyperpod --schedule 30 6 * * *", "'30' is one field; write all five fields in quotation marks, such as"),
        ("%%hyperpod --schedule daily", "'daily' is one field; did you mean @daily?"),
        ("%hyperpod schedule nightly", "; `schedule show nightly` shows that one"),
        ("%hyperpod schedule remove nightly", "`schedule delete NAME` removes one"),
        ("%hyperpod schedule lsit", "; did you mean list?"),
        ("%hyperpod sweep remove lr", "`sweep delete NAME` deletes the trials of one that has ended"),
        ("%hyperpod sweep lr", "; `sweep show lr` shows that one"),
        ("%hyperpod stop a b", "2 of 2 jobs could not be asked to stop"),
    ):
        error = shell.run_cell(f"{line}\nx = 1\n" if line.startswith("%%") else line).error_in_exec
        assert sentence in str(error), line
    assert run(shell, "%hyperpod schedule") == run(shell, "%hyperpod sweep") == []
    assert waking.wake_again(store) is False
    assert not control.connectable(store)


def test_a_dry_run_says_that_the_name_is_taken(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "train.py"
    file.write_text("x = 1\n")
    words = ("submit", str(file), "--dry-run", "--schedule", "@daily")
    assert "already" not in said(capsys, *words)
    schedule_file.create(store, "x = 1\n", {"name": "train"}, Schedule("train", "@daily", "UTC", 1.0, 1.0))
    assert main(words) == 1
    assert "it would be refused: there is a schedule train already" in capsys.readouterr().out


def test_a_run_of_an_earlier_schedule_of_that_name_counts(store: Store) -> None:
    """To change a schedule is to delete it and to make it again, also while a run of it goes on."""
    made = Schedule("one", "* * * * *", "UTC", 1.0, time.time() - 90)
    spec = JobSpec("one", store.put_cell(""))
    job, other = store.create_job(spec), store.create_job(spec)
    for each in (job, other):
        with event_writer(each.events, "control") as journal:
            journal.append("job.submitted", {"id": each.id, "spec": spec.to_json()})
    labels.label(store, job.id, add=["one"])
    schedule_file.create(store, "x = 1\n", {"name": "one"}, made)
    left_out = firing.fire(store, "one")
    assert left_out is not None and left_out.job == "" and left_out.said.startswith(f"{job.id} had not ended at")
    assert firing.unfinished(store, replace(made, name="on")) == ""
    deleted = verbs.act(store, "delete", "one", "%hyperpod").lines
    assert deleted == [f"one is deleted; its jobs stay, and {job.id} goes on; %hyperpod stop {job.id} ends it"]


def test_a_schedule_is_private_and_one_that_cannot_be_read_hides_no_other(store: Store) -> None:
    made = Schedule("one", "@daily", "UTC", 1.0, 1.0)
    schedule_file.create(store, "x = 1\n", {"name": "one", "env": {"TOKEN": "xyzzy"}}, made)
    schedule_file.create(store, "x = 2\n", {"name": "two"}, replace(made, name="two"))
    paths = [path for path in (store.root / schedule_file.FOLDER).rglob("*") if path.is_file()]
    assert len(paths) > 6 and {path.stat().st_mode & 0o077 for path in paths} == {0}
    holders = {path.name for path in paths if b"xyzzy" in path.read_bytes()}
    assert holders == {"environment"}
    (store.root / schedule_file.FOLDER / "two" / schedule_file.FILE).write_text("{")
    found, problems = schedule_file.all_of(store)
    assert [one.name for one in found] == ["one"] and "`schedule delete two`" in problems[0]
    schedule_file.delete(store, "two")
    assert schedule_file.all_of(store) == ([schedule_file.read(store, "one")], [])
