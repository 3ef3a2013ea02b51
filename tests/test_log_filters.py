"""`logs` and `events` with filters, on both faces: also of the error, and where nothing matches."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from jupyter_hyperpod.cli import main
from jupyter_hyperpod.core.events import Event
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.storage.journal import RecordWriter
from jupyter_hyperpod.storage.store import JobStore, Store

Said = pytest.CaptureFixture[str]
Show = Callable[..., tuple[list[str], list[str]]]
AGE_S = 3600.0
ERROR = ["Traceback (most recent call last):", '  File "Cell In[1]", line 2', "ValueError: odd"]


def failed(store: Store, *, state: str = "failed", lines: int = 3) -> JobStore:
    """A job of two ranks that printed some lines each, a minute apart; half an hour later both raised an error."""
    job = store.create_job(JobSpec(name="train", cell_digest=store.put_cell("1"), nodes=2, elastic=None))
    at_s = begin_s = time.time() - AGE_S

    def clock() -> float:
        return at_s

    members = [{"member": f"m{rank}", "node": f"node-{rank}", "rank": rank} for rank in (0, 1)]
    with ExitStack() as opened:
        journal = opened.enter_context(RecordWriter(job.events, "control", Event, clock=clock))
        writers = [
            opened.enter_context(RecordWriter(job.events, f"agent-{one['node']}", Event, clock)) for one in members
        ]
        journal.append("job.submitted", {"id": job.id, "spec": job.spec().to_json()})
        formed = {"generation": 1, "members": members, "spares": [], "target": 2, "reason": ""}
        journal.append("generation.formed", formed)
        for number in range(lines):
            for member, writer in zip(members, writers, strict=True):
                writer.append("output.written", {**member, "stream": "stdout", "text": f"line {number}\n"})
            at_s += 60
        at_s = begin_s + AGE_S / 2
        for member, writer in zip(members, writers, strict=True) if state == "failed" else ():
            error = {
                "type": "ValueError",
                "message": "odd",
                "traceback": [*ERROR[:-1], f"{ERROR[-1]} {member['rank']}"],
            }
            writer.append("user.error", {**member, **error})
            at_s += 1
        journal.append("job.state", {"state": state, "reason": ""})
    return job


@pytest.fixture(params=["command line", "notebook"])
def show(request: pytest.FixtureRequest, store: Store, capsys: Said) -> Show:
    """Runs a verb; returns the lines of its output and of its errors."""

    def on_command_line(*words: str) -> None:
        assert main(list(words)) == 0

    def in_notebook(*words: str) -> None:
        config = Config({"HistoryManager": {"enabled": False}})
        shell = InteractiveShell(config=config, colors="nocolor")
        shell.run_line_magic("load_ext", "jupyter_hyperpod")
        result = shell.run_line_magic("hyperpod", " ".join(words))
        if result is not None:
            print(result)

    def run(*words: str) -> tuple[list[str], list[str]]:
        capsys.readouterr()
        (on_command_line if request.param == "command line" else in_notebook)(*words)
        out, err = capsys.readouterr()
        return out.splitlines(), err.splitlines()

    return run


def test_the_error_is_shown_where_it_is_chosen(store: Store, show: Show) -> None:
    job = failed(store)

    def errors(*options: str) -> list[str]:
        *error, end = show("logs", job.id, *options)[1]
        assert "failed" in end, "how far it came is always said"
        return error

    whole = [*ERROR[:-1], "ValueError: odd 0"]
    assert errors() == whole
    assert errors("--rank", "1") == [*ERROR[:-1], "ValueError: odd 1"]
    assert errors("--node", "node-1")[-1] == "ValueError: odd 1"
    assert errors("--grep", "Error|line.1") == ["ValueError: odd 0"]
    assert errors("--level", "error,info") == whole and errors("--level", "warning,other") == []
    assert errors("--since", "40min") == whole and errors("--until", "40min") == []
    assert errors("--tail", "1") == whole[-1:] and show("logs", job.id, "--tail", "1")[0] == []
    assert len(show("logs", job.id, "--tail", "5")[0]) == 2 and errors("--tail", "5") == whole


def test_what_matches_nothing_is_said(store: Store, show: Show) -> None:
    job = failed(store, state="succeeded")
    for options in (["--grep", "loss"], ["--rank", "1", "--since", "1min"]):
        said = f"no line of the output matches {' '.join(options)}; {job.id} has printed 6 lines"
        assert show("logs", job.id, *options) == ([], [said])
    silent = failed(store, state="running", lines=0)
    assert show("logs", silent.id) == ([], [f"{silent.id} has printed nothing yet"])


def test_events_that_match_nothing_are_said(store: Store, show: Show) -> None:
    job = failed(store)
    out, err = show("events", job.id, "--kind", "step.committed", "--kind", "fault.injected")
    said = f"no event of {job.id} matches --kind step.committed --kind fault.injected; it has 11 events"
    assert [*out, *err] == [said]


def test_json_stays_json_where_nothing_matches(store: Store, capsys: Said) -> None:
    job = failed(store)
    for words in (["logs", job.id, "--grep", "loss"], ["events", job.id, "--kind", "step.committed"]):
        for more in ([], ["--follow"]):
            assert main([*words, "--json", *more]) == 0
            said = capsys.readouterr()
            assert said.out == "" and f"{' '.join(words[2:])}; " in said.err


def test_following_an_ended_job_shows_the_same(store: Store, capsys: Said) -> None:
    job = failed(store)
    for options in ([], ["--rank", "1"], ["--tail", "2"], ["--tail", "5"], ["--level", "error"], ["--node", "node-0"]):
        shown: list[Any] = []
        for more in ([], ["--follow"]):
            assert main(["logs", job.id, *options, *more]) == 0
            shown.append(capsys.readouterr())
        assert shown[0] == shown[1], options


def test_a_wrong_kind_is_refused_with_the_nearest_ones(store: Store, capsys: Said) -> None:
    job = failed(store)
    with pytest.raises(SystemExit):
        main(["events", job.id, "--kind", "incident.stages"])
    assert "no event is of the kind 'incident.stages' (did you mean incident.stage" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["events", job.id, "--kind", "job"])
    assert "(did you mean job.labelled, job.state or job.submitted?)" in capsys.readouterr().err


@pytest.mark.parametrize(("since", "said"), [("10", "'10' has no unit: 10s, 10min or 10h?"), ("soon", "is no time")])
def test_a_time_that_may_be_meant_in_many_ways_is_refused(store: Store, capsys: Said, since: str, said: str) -> None:
    job = failed(store)
    assert main(["logs", job.id, "--since", since]) == 2
    assert said in capsys.readouterr().err


def test_json_lines_of_a_failed_job_hold_no_error(store: Store, capsys: Said) -> None:
    job = failed(store)
    assert main(["logs", job.id, "--json"]) == 0
    said = capsys.readouterr()
    assert {json.loads(line)["kind"] for line in said.out.splitlines()} == {"output.written"} and said.err == ""
