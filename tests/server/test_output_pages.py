"""Pages of a job's output: all of it, piece by piece, or what is asked for, with bounds on memory and time."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from jupyter_hyperpod.core.errors import SpecError
from jupyter_hyperpod.server import output_pages
from jupyter_hyperpod.server.output_pages import OutputQuery, page
from jupyter_hyperpod.storage.journal import event_writer
from jupyter_hyperpod.storage.journal_writer import JournalWriter
from jupyter_hyperpod.storage.output import output_range, output_relay, step_index
from jupyter_hyperpod.storage.output.output_relay import OutputRelay, StepLabel, output_directory
from jupyter_hyperpod.storage.store import JobStore, Store
from tests.server.conftest import Api, MakeJob
from tests.server.test_api import UNKNOWN, check

COMMIT = {"generation": 1, "loss": 0.5, "loss_hex": "0x1p-1", "step_time_s": 1.0, "samples": 4, "world_size": 2}


@pytest.fixture
def job(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> JobStore:
    """Two ranks have printed ten lines in each of 30 steps; the journals hold a part of it."""
    monkeypatch.setenv(output_relay.SHARE_VARIABLE, "0.01")
    made = make_job()
    journals = [JournalWriter(made.events, f"agent-node-{rank}") for rank in range(2)]
    relays = [OutputRelay(made, f"node-{rank}", journal) for rank, journal in enumerate(journals)]
    with event_writer(made.events, "worker-node-0.a") as commits:
        for step in range(1, 31):
            for rank, relay in enumerate(relays):
                lines = "".join(f"step {step} line {line} of {rank}: été {'x' * 100}\n" for line in range(10))
                relay.write(f"node-{rank}.a.7", rank, "stdout", lines, StepLabel(1, step))
            commits.append("step.committed", COMMIT | {"redone": 0, "session": 1, "step": step})
    for relay, journal in zip(relays, journals, strict=True):
        relay.close()
        journal.close()
    return made


async def test_pages_together_are_the_output(job: JobStore, api: Api, openapi: dict[str, Any]) -> None:
    path, after, pieces, pages = f"/jobs/{job.id}/output", "", [], 0
    while True:
        status, found = await api("GET", path, params={"limit": "7", "after": after})
        assert status == 200
        check(openapi, "OutputPage", found)
        pages += 1
        pieces, after = pieces + found["pieces"], found["after"]
        if not found["more"]:
            break
    assert pages == 9 and [piece["step"] for piece in pieces if piece["rank"] == 1] == list(range(1, 31))
    assert await api("GET", path, params={"after": after}) == (
        200,
        {"pieces": [], "after": after, "before": "", "more": False},
    )


async def test_what_is_asked_for_is_found(job: JobStore, api: Api) -> None:
    async def found(**params: str) -> list[tuple[int, int]]:
        status, answer = await api("GET", f"/jobs/{job.id}/output", params=params)
        assert status == 200, answer
        return [(piece["step"], piece["rank"]) for piece in answer["pieces"]]

    assert await found(steps="4:5") == [(4, 0), (4, 1), (5, 0), (5, 1)]
    assert await found(rank="1", tail="2") == [(29, 1), (30, 1)]
    assert await found(node="node-0", steps="30") == [(30, 0)]
    assert len(await found(since="1h")) == 60 and await found(until="1h") == []
    assert await found(text="step 12 line 3 of 1: été") == [(12, 1)]
    assert await found(text=".*") == [], "it is no pattern"
    _, answer = await api("GET", f"/jobs/{job.id}/output", params={"text": "step 12 line 3 of 1:"})
    assert answer["pieces"][0]["text"].count("\n") == 1, "only the line"


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"rank": "-1"}, "rank is '-1'"),
        ({"limit": f"{7:020}7"}, "limit is '000000000000000000077'; expected a number from 1 to 1000"),
        ({"tail": "100000"}, "tail is '100000'; expected a number from 1 to 1000"),
        ({"tail": "3", "after": "1.0 a 1"}, "cannot be combined"),
        ({"before": "1.0 a 1"}, "before needs tail"),
        ({"before": "x", "tail": "3"}, "expected the `before` of another page"),
        ({"limit": "0"}, "limit is '0'"),
        ({"after": "x"}, "expected the `after` of another page"),
        ({"steps": "9:1"}, "is no range of steps"),
        ({"steps": "40"}, "the job has computed 30 steps"),
        ({"since": "yesterday"}, "is no time"),
    ],
)
async def test_what_cannot_be_understood_is_refused(
    job: JobStore, api: Api, params: dict[str, str], expected: str
) -> None:
    status, answer = await api("GET", f"/jobs/{job.id}/output", params=params)
    assert status == 400 and expected in answer["message"]


async def test_another_job_is_not_found(api: Api) -> None:
    assert (await api("GET", f"/jobs/{UNKNOWN}/output"))[0] == 404


def test_a_page_has_bounds(job: JobStore, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = count()
    slow = page(store, job.id, OutputQuery(text="nowhere"), lambda: next(ticks) * output_pages.PAGE_S / 5)
    assert slow["more"] and slow["pieces"] == [] and slow["after"], "it goes on from where the time was over"
    rest = page(store, job.id, OutputQuery(text="nowhere", after=slow["after"]))
    assert rest == {"pieces": [], "after": rest["after"], "before": "", "more": False} and rest["after"] > slow["after"]
    monkeypatch.setattr(output_pages, "PAGE_BYTES", 3000)
    small = page(store, job.id, OutputQuery())
    assert len(small["pieces"]) == 3 and small["more"]
    with pytest.raises(SpecError):
        page(store, job.id, OutputQuery(after="nan agent-1.a 1"))


def ticking(limit: int = 10) -> Callable[[], float]:
    """A clock by which the time of a page is over after about so many pieces."""
    ticks = count()
    return lambda: next(ticks) * output_pages.PAGE_S / limit


def test_steps_that_no_index_leads_to_are_looked_for_page_by_page(job: JobStore, store: Store) -> None:
    """What is read and not chosen counts, too, and the next page goes on behind it."""
    for index in output_directory(job).glob(f"*{step_index.SUFFIX}"):
        os.truncate(index, 0)
    found, after, pages, more = [], "", 0, True
    while more:
        got = page(store, job.id, OutputQuery(steps="20:21", after=after), ticking())
        assert len(got["pieces"]) < 12 and (got["after"] != after or not got["more"])
        found, after, more, pages = found + got["pieces"], got["after"], got["more"], pages + 1
    assert [(piece["step"], piece["rank"]) for piece in found] == [(20, 0), (20, 1), (21, 0), (21, 1)]
    assert pages > 4


def test_other_events_take_the_time_of_a_page(make_job: MakeJob, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_range, "SKIPPED", 10)
    made = make_job()
    with event_writer(made.events, "agent-node-0") as events:
        for number in range(1000):
            events.append("warning.raised", {"text": f"number {number}"})
        events.append("output.written", {"member": "a", "node": "node-0", "rank": 0, "stream": "stdout", "text": "x\n"})
    first = page(store, made.id, OutputQuery(), ticking(20))
    assert first["more"] and first["pieces"] == [] and first["after"]
    rest = page(store, made.id, OutputQuery(after=first["after"]))
    assert [piece["text"] for piece in rest["pieces"]] == ["x\n"] and not rest["more"]


def back(store: Store, job: JobStore, clock: Callable[[], float] | None = None, **asked: str) -> list[dict[str, Any]]:
    """The pages of what is asked for, the newest first."""
    pages, before = [], ""
    while True:
        query = OutputQuery(before=before, **{"tail": "7", **asked})
        pages.append(page(store, job.id, query, clock) if clock else page(store, job.id, query))
        assert pages[-1]["before"] != before or not before
        if not (before := pages[-1]["before"]):
            return pages


@pytest.mark.parametrize("asked", [{}, {"rank": "1"}, {"steps": "5:9"}, {"text": "line 3 of 1"}, {"tail": "1000"}])
def test_pages_that_go_back_are_the_output(
    job: JobStore, store: Store, monkeypatch: pytest.MonkeyPatch, asked: dict[str, str]
) -> None:
    forward = {name: value for name, value in asked.items() if name != "tail"}
    every = page(store, job.id, OutputQuery(limit="1000", **forward))["pieces"]
    for bytes_read in (1 << 18, 3000):
        monkeypatch.setattr(output_range, "TAIL_BYTES", bytes_read)
        pages = back(store, job, **asked)
        assert [piece for found in reversed(pages) for piece in found["pieces"]] == every
    slow = count()
    pages = back(store, job, lambda: next(slow) * output_pages.PAGE_S, **asked)
    assert [piece for found in reversed(pages) for piece in found["pieces"]] == every, "a chunk of each page is read"


def test_pages_go_back_past_much_that_has_one_time(
    make_job: MakeJob, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that was set back stands still for its agent until it has caught up."""
    monkeypatch.setattr(output_range, "TAIL_BYTES", 2000)
    monkeypatch.setattr(output_range, "MOST_CHUNK_BYTES", 3000)
    made = make_job()
    piece = {"member": "a", "node": "node-0", "rank": 0, "stream": "stdout"}
    times = iter([1.0] * 10 + [2.0] * 100 + [3.0] * 10)
    with event_writer(made.events, "output-node-0", clock=lambda: next(times)) as events:
        for number in range(120):
            events.append("output.written", piece | {"text": f"{number} {'x' * 100}\n"})
    found = [piece for got in reversed(back(store, made)) for piece in got["pieces"]]
    assert [int(piece["text"].split()[0]) for piece in found] == list(range(120))


def test_the_last_pieces_have_a_size(job: JobStore, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    every = page(store, job.id, OutputQuery(tail="10"))
    assert len(every["pieces"]) == 10 and not every["more"] and every["before"] == every["pieces"][0]["place"]
    monkeypatch.setattr(output_pages, "PAGE_BYTES", 3000)
    newest = page(store, job.id, OutputQuery(tail="10"))
    kept = every["pieces"][-3:]
    assert newest == {"pieces": kept, "after": every["after"], "before": kept[0]["place"], "more": True}


@pytest.fixture
def levelled(make_job: MakeJob, monkeypatch: pytest.MonkeyPatch) -> JobStore:
    """A rank has printed lines of several levels in each of 300 pieces, every tenth with a traceback in two pieces."""
    monkeypatch.setenv(output_relay.SHARE_VARIABLE, "0.01")
    made = make_job()
    journal = JournalWriter(made.events, "agent-node-0")
    relay = OutputRelay(made, "node-0", journal)
    for number in range(300):
        said = f"INFO piece {number}\nplain {number}\n"
        if number % 10 == 3:
            said += f'ERROR it failed {number}\nTraceback (most recent call last):\n  File "{"a" * 200}"\n'
        if number % 10 == 4:
            said = f"    code {number - 1}\nValueError: {number - 1}\n{said}"
        relay.write("node-0.a.7", 0, "stdout", said, StepLabel(1, number + 1))
    relay.close()
    journal.close()
    return made


async def test_levels_are_found_in_all_of_the_output(levelled: JobStore, api: Api) -> None:
    async def found(**params: str) -> list[str]:
        status, answer = await api("GET", f"/jobs/{levelled.id}/output", params={"limit": "1000"} | params)
        assert status == 200, answer
        return "".join(piece["text"] for piece in answer["pieces"]).splitlines()

    errors = await found(level="error")
    assert len(errors) == 150 and errors[3:6] == ["    code 3", "ValueError: 3", "ERROR it failed 13"]
    assert len(await found(level="other")) == 300 and len(await found(level="error,info")) == 450
    assert await found(level="info", text="piece 12") == [
        "INFO piece 12",
        *(f"INFO piece {n}" for n in range(120, 130)),
    ]
    assert await found(level="debug") == []
    status, answer = await api("GET", f"/jobs/{levelled.id}/output", params={"level": "loud"})
    assert status == 400 and "'loud' is no level" in answer["message"]


@pytest.mark.parametrize("tail", ["1", "4", "1000"])
def test_levels_are_the_same_from_any_page(
    levelled: JobStore, store: Store, monkeypatch: pytest.MonkeyPatch, tail: str
) -> None:
    """A page that begins in the middle of a traceback knows that it is an error."""
    monkeypatch.setattr(output_range, "TAIL_BYTES", 700)
    monkeypatch.setattr(output_range, "MOST_CHUNK_BYTES", 700)
    forward = page(store, levelled.id, OutputQuery(level="error", limit="1000"))["pieces"]
    pages = back(store, levelled, level="error", tail=tail)
    assert [piece for found in reversed(pages) for piece in found["pieces"]] == forward
    pieces, after, more = [], "", True
    while more:
        got = page(store, levelled.id, OutputQuery(level="error", limit=tail, after=after))
        pieces, after, more = pieces + got["pieces"], got["after"], got["more"]
    assert pieces == forward
