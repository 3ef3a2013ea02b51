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
    assert await api("GET", path, params={"after": after}) == (200, {"pieces": [], "after": after, "more": False})


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
        ({"tail": "3", "text": "x"}, "cannot be combined"),
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
    assert rest == {"pieces": [], "after": rest["after"], "more": False} and rest["after"] > slow["after"]
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


def test_the_last_pieces_of_a_rank_have_a_time(job: JobStore, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the time is over, the page has what was found, and says that older output was not read."""
    monkeypatch.setattr(output_range, "TAIL_BYTES", 2000)
    read = 0

    def clock() -> float:
        nonlocal read
        read += 1
        return read * output_pages.PAGE_S / 10

    nothing = page(store, job.id, OutputQuery(tail="1", rank="5"), clock)
    assert nothing == {"pieces": [], "after": "", "more": True} and read < 15
    assert not page(store, job.id, OutputQuery(tail="1", rank="5"))["more"], "with time everything is read"
    some = page(store, job.id, OutputQuery(tail="20"), ticking())
    assert some["more"] and 0 < len(some["pieces"]) < 20 and some["pieces"][-1]["step"] == 30


def test_the_last_pieces_have_a_size(job: JobStore, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    every = page(store, job.id, OutputQuery(tail="10"))
    assert len(every["pieces"]) == 10 and not every["more"]
    monkeypatch.setattr(output_pages, "PAGE_BYTES", 3000)
    newest = page(store, job.id, OutputQuery(tail="10"))
    assert newest == {"pieces": every["pieces"][-3:], "after": every["after"], "more": True}
