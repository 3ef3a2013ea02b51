"""Who hears of a load: a job's journal at a bounded rate, a terminal, whoever asked; and nobody of short ones."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest

import jupyter_hyperpod as hp
from jupyter_hyperpod.control import report
from jupyter_hyperpod.core.errors import LoaderError
from jupyter_hyperpod.core.events import Event
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.core.views import fold_all, new_job_view
from jupyter_hyperpod.loader import reporting
from jupyter_hyperpod.loader.read.progress import LoadProgress
from jupyter_hyperpod.notebook import bars
from jupyter_hyperpod.storage.journal import follow_events
from jupyter_hyperpod.storage.store import JobStore, Store
from tests.loader.models import decoder, encoded
from tests.loader.ranges import serving

GB = 10**9


def at(elapsed_s: float, done: int = 0, total: int = 2 * GB) -> LoadProgress:
    return LoadProgress(done, total, int(done == total), 1, elapsed_s, 0.2 if done else None)


@pytest.fixture
def job(store: Store, monkeypatch: pytest.MonkeyPatch) -> JobStore:
    made = store.create_job(JobSpec("load", store.put_cell("pass")))
    monkeypatch.setenv("HYPERPOD_JOB_DIR", str(made.path))
    monkeypatch.setenv("HYPERPOD_NODE", "node-1")
    return made


def told(job: JobStore) -> list[Event]:
    return follow_events(job.events).poll()


def test_a_job_hears_of_a_load_once_a_second_and_of_its_end(job: JobStore) -> None:
    with reporting.telling("https://user:secret@host/model?token=secret", None) as tell:
        assert tell is not None
        for tenth in range(35):
            tell(at(tenth / 10, tenth * GB // 50))
        during = fold_all(new_job_view(job.id), told(job))
        assert report.loading_text(during) == "loading model 30 %, 200 MB/s, 7.0 s left"
        assert "loading model 30 %" in report.progress_line(during)
        tell(at(3.5, 2 * GB))
        tell(at(3.5, 2 * GB))
    events = told(job)
    assert [event.data["state"] for event in events] == ["loading"] * 3 + ["loaded"]
    assert not any("secret" in str(event.data) for event in events)
    view = fold_all(new_job_view(job.id), events)
    assert report.loading_text(view) == ""
    assert "2 GB loaded by node-1 in 3.5 s, first layer after 200 ms" in report.describe_lines(view)


def test_a_job_hears_of_a_load_that_failed(job: JobStore) -> None:
    with pytest.raises(LoaderError), reporting.telling("model", None) as tell:
        assert tell is not None
        tell(at(1.5, GB))
        raise LoaderError("model", "nothing", "something")
    assert [event.data["state"] for event in told(job)] == ["loading", "failed"]
    assert report.loading_text(fold_all(new_job_view(job.id), told(job))) == ""


def test_real_loads_tell_their_job_and_false_nobody(job: JobStore, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(encoded(decoder()))
    hp.load_model(str(path), progress=False)
    assert told(job) == []
    for _ in range(2):
        hp.load_model(str(path))
    first, second = told(job)
    assert first.writer == second.writer, "a process has one writer, however many models it loads"
    assert first.data["bytes_done"] == first.data["bytes_total"] == sum(t.nbytes for t in decoder().values())


def test_a_journal_that_cannot_be_written_ends_no_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job: JobStore
) -> None:
    monkeypatch.setenv("HYPERPOD_JOB_DIR", str(tmp_path / "gone"))
    with serving({"/model.safetensors": encoded(decoder())}) as server:
        assert hp.load_model(f"{server.url}/model.safetensors")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_shows_a_line_of_loads_that_take_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HYPERPOD_JOB_DIR", "HYPERPOD_NODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with reporting.telling("s3://models/llama", None, {}) as tell:
        assert tell is not None
        tell(at(0.1, GB))
        tell(at(0.4, 2 * GB))
    assert terminal.getvalue() == "", "nobody needs to know of a load that is over"
    with reporting.telling("s3://models/llama", None, {}) as tell:
        assert tell is not None
        tell(at(1.0, GB // 2))
        tell(at(4.0, 2 * GB))
    lines = [line.rstrip() for line in terminal.getvalue().split("\r")]
    assert lines == [
        "",
        "llama: 25 % of 2 GB, 500 MB/s, 3.0 s left, first layer after 200 ms",
        "llama: 2 GB in 4.0 s (500 MB/s), first layer after 200 ms",
    ]
    monkeypatch.setattr("sys.stderr", io.StringIO())
    with reporting.telling("s3://models/llama", None, {}) as silent:
        assert silent is None


def test_a_callers_own_function_is_all_that_is_called(job: JobStore) -> None:
    mine: Callable[[LoadProgress], None] = lambda now: None  # noqa: E731
    with reporting.telling("model", mine) as tell:
        assert tell is mine
    assert told(job) == []


def test_a_notebook_shows_a_bar_of_loads_that_take_a_while(capsys: pytest.CaptureFixture[str]) -> None:
    with bars.loading("s3://models/llama") as tell:
        tell(at(0.1, GB))
        assert capsys.readouterr().out == ""
        tell(at(1.0, GB // 2))
        shown = capsys.readouterr().out
        assert "IntProgress(value=250, max=1000)" in shown
        assert "loading: llama: 25 % of 2 GB, 500 MB/s, 3.0 s left" in shown
