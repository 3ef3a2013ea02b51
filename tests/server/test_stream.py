"""The websocket: nothing lost, nothing twice, whatever happens to writers, readers and the server."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket as sockets
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.websocket import websocket_connect

from jupyter_hyperpod.core.events import Event
from jupyter_hyperpod.core.views import BULK, View, fold_all, new_cluster_view, new_job_view
from jupyter_hyperpod.server.extension import STATE_CHANGED, HyperpodExtension
from jupyter_hyperpod.server.listing import CHANGES_KEPT, LIST_S, MOVING_S, TREND_POINTS, JobsList, JobsReader, trend_of
from jupyter_hyperpod.server.stream import SIGN_IN_AGAIN
from jupyter_hyperpod.storage.journal import RecordWriter, event_writer, read_events
from jupyter_hyperpod.storage.store import JobStore, Store
from tests.server.client import Client
from tests.server.conftest import ROOT, Api, MakeJob

WRITER = Path(__file__).parents[1] / "storage" / "writer_process.py"
Connect = Callable[[], Awaitable[Client]]


def step(journal: RecordWriter[Event], number: int) -> None:
    loss = 5.0 / number
    journal.append(
        "step.committed",
        {
            "step": number,
            "generation": 1,
            "loss": loss,
            "loss_hex": loss.hex(),
            "step_time_s": 0.1,
            "samples": 8,
            "world_size": 2,
            "assignment": {},
            "redone": 0,
        },
    )


def state(journal: RecordWriter[Event], name: str, reason: str = "") -> None:
    journal.append("job.state", {"state": name, "reason": reason})


def node(journal: RecordWriter[Event], number: int, name: str) -> None:
    data = {"node": f"node-{number}", "state": name, "reason": "", "spare": False, "slots": 1, "used": 0}
    journal.append("node.state", data | {"jobs": [], "pid": 1, "incarnation": 1})


def truth(job: JobStore) -> View:
    return fold_all(new_job_view(job.id), read_events(job.events))


def without_order(view: View) -> View:
    """A view in which the order between writers, which two readers may see differently, does not matter."""
    lists = {name: sorted(view[name], key=json.dumps) for name in ("output", "warnings", "decisions") if name in view}
    return json.loads(json.dumps(view | lists))  # type: ignore[no-any-return]


@pytest.fixture
def writers(store: Store) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Real processes that append to a journal; killed afterwards."""
    running: list[subprocess.Popen[str]] = []

    def start(directory: Path, name: str, size: int, count: int) -> subprocess.Popen[str]:
        command = [sys.executable, str(WRITER), str(directory), name, str(size), str(count)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


async def test_snapshot_then_events(connect: Connect, make_job: MakeJob) -> None:
    job = make_job()
    with event_writer(job.events, "coordinator") as journal:
        state(journal, "running")
        client = await connect()
        await client.subscribe(job.id)
        await client.until(lambda: client.views.get(job.id) == truth(job))
        for number in range(1, 21):
            step(journal, number)
        await client.until(lambda: client.views[job.id]["step"] == 20)
    assert client.views[job.id] == truth(job)
    assert client.snapshots == [job.id] and not client.gaps and not client.problems


async def test_a_followed_job_that_is_deleted_says_so(connect: Connect, make_job: MakeJob) -> None:
    job = make_job()
    with event_writer(job.events, "coordinator") as journal:
        state(journal, "running")
        state(journal, "stopped")
    client = await connect()
    await client.subscribe("jobs", job.id)
    await client.until(lambda: job.id in client.views)
    assert "deleted" not in client.views[job.id]
    shutil.rmtree(job.path)
    await client.until(lambda: client.views[job.id].get("deleted"))
    assert client.views[job.id]["state"] == "stopped" and not client.problems


async def test_a_topic_needs_the_right_to_read_its_kind(connect: Connect, jp_serverapp: Any, make_job: MakeJob) -> None:
    class JobsAlone(type(jp_serverapp.authorizer)):  # type: ignore[misc]
        def is_authorized(self, handler: Any, user: Any, action: str, resource: str) -> bool:
            return (action, resource) == ("read", "jupyter_hyperpod.jobs")

    job = make_job()
    jp_serverapp.web_app.settings["authorizer"] = JobsAlone(parent=jp_serverapp)
    client = await connect()
    await client.subscribe("cluster", job.id)
    await client.until(lambda: job.id in client.views and client.problems)
    assert "cluster" not in client.views
    assert "not authorized to read jupyter_hyperpod.cluster" in client.problems[0]["text"]


async def test_the_cluster_is_a_topic_before_it_exists(connect: Connect, store: Store) -> None:
    for path in (store.cluster_events, store.cluster, store.cells, store.jobs, store.shared, store.root):
        shutil.rmtree(path)
    client = await connect()
    await client.subscribe("cluster", "jobs")
    await client.until(lambda: "cluster" in client.views and client.jobs is not None)
    assert client.views["cluster"] == new_cluster_view()
    assert client.jobs == []
    store.prepare()
    with event_writer(store.cluster_events, "supervisor") as journal:
        node(journal, 1, "idle")
        await client.until(lambda: client.views["cluster"]["nodes"])
    assert client.views["cluster"]["nodes"][0]["node"] == "node-1"
    assert client.views["cluster"]["state"] == "stopped"


async def test_resume_from_a_cursor_after_reload_and_server_memory_is_gone(
    connect: Connect, make_job: MakeJob, extension: HyperpodExtension
) -> None:
    job = make_job()
    with event_writer(job.events, "coordinator") as journal:
        for number in range(1, 51):
            step(journal, number)
        first = await connect()
        await first.subscribe(job.id)
        await first.until(lambda: first.views.get(job.id, {}).get("step") == 50)
        cursor = dict(first.views[job.id]["seen"])
        first.close()
        for number in range(51, 101):
            step(journal, number)
        second = await connect()
        second.views[job.id] = first.views[job.id]
        await second.subscribe(job.id, cursors={job.id: cursor})
        await second.until(lambda: second.views[job.id]["step"] == 100)
        for number in range(101, 111):
            step(journal, number)
        await second.until(lambda: second.views[job.id]["step"] == 110)
    assert second.snapshots == [] and not second.gaps
    assert [event["seq"] for _, event in second.events] == list(range(51, 111))
    assert second.views[job.id] == truth(job)


@pytest.mark.parametrize("extension_config", [{"recent_bytes": 2000}, {"recent_bytes": 2**20}])
async def test_a_connection_that_is_cut_a_hundred_times(connect: Connect, make_job: MakeJob) -> None:
    """At any moment, without a word, while events are written: each comes once."""
    job, cuts = make_job(), 100
    view = new_job_view(job.id)
    told: list[int] = []
    with event_writer(job.events, "coordinator") as journal:
        for cut in range(cuts + 1):
            client = await connect()
            client.views[job.id] = view
            await client.subscribe(job.id, cursors={job.id: dict(view["seen"])})
            for number in range(10 * cut + 1, 10 * cut + 11):
                step(journal, number)
            enough = 10 * cut + (10 if cut == cuts else cut % 10)
            await client.until(lambda: view["step"] >= enough)  # noqa: B023
            assert client.snapshots == [] and not client.gaps
            told += [event["seq"] for _, event in client.events if event["kind"] == "step.committed"]
            client.socket.protocol.stream.close()  # as a network does: no closing handshake
    assert told == list(range(1, 10 * cuts + 11))
    assert view == truth(job)


@pytest.mark.parametrize("extension_config", [{"recent_bytes": 0}, {"recent_bytes": 2000}, {"recent_bytes": 2**20}])
async def test_every_fact_from_an_empty_cursor(connect: Connect, make_job: MakeJob) -> None:
    """Whether the events come from memory or from the disk makes no difference."""
    job = make_job()
    with event_writer(job.events, "a") as one, event_writer(job.events, "b") as two:
        client = await connect()
        await client.subscribe(job.id, cursors={job.id: {}})
        for number in range(1, 1501):
            step(one, number)
            if number % 3 == 0:
                two.append("warning.raised", {"text": f"warning {number}"})
            if number % 100 == 0:
                await asyncio.sleep(0)
        await client.until(lambda: client.views[job.id]["seen"] == truth(job)["seen"])
    assert client.snapshots == [] and not client.gaps
    assert len(client.events) == 2001
    assert without_order(client.views[job.id]) == without_order(truth(job))


async def test_a_cursor_from_the_future_hides_what_it_has_seen_only(connect: Connect, make_job: MakeJob) -> None:
    job = make_job()
    client = await connect()
    with event_writer(job.events, "a") as journal:
        await client.subscribe(job.id, cursors={job.id: {journal.name: 5}})
        for number in range(1, 9):
            step(journal, number)
        await client.until(lambda: client.views[job.id]["step"] == 8)
    assert [event["seq"] for _, event in client.events if event["kind"] == "step.committed"] == [6, 7, 8]


async def test_writers_killed_in_the_middle_while_others_write(
    connect: Connect, make_job: MakeJob, writers: Any
) -> None:
    job = make_job()
    client = await connect()
    await client.subscribe(job.id, cursors={job.id: {}})
    steady = [writers(job.events, f"steady{n}", 200, 3000) for n in range(2)]
    victims = [writers(job.events, f"victim{n}", 3_000_000, 10_000) for n in range(2)]
    for victim in victims:
        victim.stdout.readline()
    await client.until(lambda: len(client.events) > 100)
    for victim in victims:
        os.kill(victim.pid, signal.SIGKILL)
    ends = await asyncio.gather(*(asyncio.to_thread(process.communicate) for process in (*steady, *victims)))
    written = sum(len(out.split()) for out, _ in ends[:2])
    assert written == 6000
    expected = truth(job)["seen"]
    await client.until(lambda: client.views[job.id]["seen"] == expected, 60)
    assert not client.gaps
    assert {(e["writer"], e["seq"]) for _, e in client.events} == {(e.writer, e.seq) for e in read_events(job.events)}


async def test_two_sockets_each_at_its_own_place(connect: Connect, make_job: MakeJob) -> None:
    one_job, other_job = make_job("one"), make_job("other")
    early, late = await connect(), await connect()
    await early.subscribe(one_job.id, other_job.id)
    with event_writer(one_job.events, "a") as a, event_writer(other_job.events, "b") as b:
        for number in range(1, 101):
            step(a, number)
            step(b, number)
        await early.until(lambda: all(early.views.get(j.id, {}).get("step") == 100 for j in (one_job, other_job)))
        await late.subscribe(one_job.id)
        await late.until(lambda: one_job.id in late.views)
        early.close()
        step(a, 101)
        await late.until(lambda: late.views[one_job.id]["step"] == 101)
    assert other_job.id not in late.views
    assert late.views[one_job.id] == truth(one_job)


async def test_unsubscribe_and_subscribe_again(connect: Connect, make_job: MakeJob) -> None:
    job = make_job()
    client = await connect()
    await client.subscribe(job.id)
    await client.until(lambda: job.id in client.views)
    await client.say({"type": "unsubscribe", "topics": [job.id, "cluster", "never-abcdefgh"]})
    await client.subscribe("cluster")
    await client.until(lambda: "cluster" in client.views)
    with event_writer(job.events, "a") as journal:
        step(journal, 1)
        step(journal, 2)
        assert await client.quiet(0.3)
    await client.subscribe(job.id, cursors={job.id: client.views[job.id]["seen"]})
    await client.until(lambda: client.views[job.id]["step"] == 2)
    assert client.snapshots == [job.id, "cluster"]


async def test_the_list_of_jobs(connect: Connect, make_job: MakeJob) -> None:
    client = await connect()
    await client.subscribe("jobs")
    await client.until(lambda: client.jobs == [])
    job = make_job("fresh")
    await client.until(lambda: [view["id"] for view in client.jobs or []] == [job.id])
    with event_writer(job.events, "coordinator") as journal:
        state(journal, "running")
        before, since_s = client.messages, time.monotonic()
        for number in range(1, 301):
            step(journal, number)
            await asyncio.sleep(0.001)
        await client.until(lambda: client.jobs and client.jobs[0]["step"] == 300)
        assert client.messages - before <= (time.monotonic() - since_s) / LIST_S + 2
        state(journal, "succeeded", "done")
        await client.until(lambda: client.jobs and client.jobs[0]["state"] == "succeeded")
    assert client.jobs is not None
    told = dict(client.jobs[0])
    trend = told.pop("trend")
    assert trend[-1][0] == 300 and len(trend) <= TREND_POINTS
    assert told == {name: value for name, value in truth(job).items() if name not in BULK}
    other = make_job("newer")
    await client.until(lambda: len(client.jobs or []) == 2)
    assert client.jobs[0]["id"] == other.id


def entry(job_id: str, **fields: Any) -> dict[str, Any]:
    return {"id": job_id, "state": "running", "step": 0, "trend": {"drawn_s": 0.0, "points": []}} | fields


def test_a_reader_of_the_list_gets_what_changed_and_the_whole_where_it_is_far_behind() -> None:
    told = JobsList()
    first, behind = JobsReader(told), JobsReader(told)
    assert told.tell([entry("b"), entry("a")], 7, "a", 0.0) and told.version == 1
    for reader in (first, behind):
        assert reader.take_ready() is None, "the first message is made away from the loop"
        (message,) = map(json.loads, reader.take())
        assert [job["id"] for job in message["jobs"]] == ["b", "a"] and message["older"] == 7
    assert not told.tell([entry("b", step=1), entry("a")], 7, "a", LIST_S), "a step alone waits"
    assert told.tell([entry("b", step=2), entry("a")], 7, "a", MOVING_S)
    (message,) = map(json.loads, first.take_ready() or [])
    assert message == {"type": "jobs.changed", "jobs": [{"id": "b", "step": 2}], "older": 7, "before": "a"}
    now_s = MOVING_S
    for number in range(CHANGES_KEPT):
        now_s += 2 * LIST_S
        assert told.tell([entry(f"c-{number}"), entry("b", step=2)], 7, "a", now_s), "who comes is told soon"
    assert json.loads(first.take()[-1])["order"] == [f"c-{CHANGES_KEPT - 1}", "b"]
    assert not first.pending and behind.pending
    assert behind.take_ready() is None, "the whole list is made away from the loop"
    (message,) = map(json.loads, behind.take())
    assert message["type"] == "jobs" and [job["id"] for job in message["jobs"]] == [f"c-{CHANGES_KEPT - 1}", "b"]


@pytest.mark.parametrize("extension_config", [{"jobs_listed": 2}])
async def test_a_job_that_runs_is_in_the_list_however_old(connect: Connect, make_job: MakeJob) -> None:
    old = make_job("old")
    with event_writer(old.events, "coordinator") as journal:
        state(journal, "running")
        ended = [make_job(f"ended-{number}") for number in range(4)]
        for job in ended:
            with event_writer(job.events, "coordinator") as other:
                state(other, "succeeded")
        client = await connect()
        await client.subscribe("jobs")
        listed = [ended[3].id, ended[2].id, old.id]
        await client.until(lambda: [job["id"] for job in client.jobs or []] == listed and client.older == 2)
        state(journal, "succeeded")
        await client.until(lambda: [job["id"] for job in client.jobs or []] == listed[:2] and client.older == 3)


async def test_readers_at_one_position_share_one_message(
    connect: Connect, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jupyter_hyperpod.server import topic

    made: list[int] = []
    message = topic.events_message

    def counted(name: str, batch: list[Any]) -> str:
        made.append(len(batch))
        return message(name, batch)

    job = make_job()
    clients = [await connect() for _ in range(5)]
    for client in clients:
        await client.subscribe(job.id)
        await client.until(lambda client=client: job.id in client.views)
    monkeypatch.setattr(topic, "events_message", counted)
    with event_writer(job.events, "coordinator") as journal:
        state(journal, "running")
        for client in clients:
            await client.until(lambda client=client: client.views[job.id]["state"] == "running")
    assert all(not client.gaps and client.views[job.id] == clients[0].views[job.id] for client in clients)
    assert made == [1]


@pytest.mark.parametrize("extension_config", [{"jobs_listed": 3}])
async def test_old_jobs_are_let_go_of(
    connect: Connect, make_job: MakeJob, extension: HyperpodExtension, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jupyter_hyperpod.server import tailer

    monkeypatch.setattr(tailer, "LINGER_S", 0.1)
    made = []
    for number in range(5):
        made.append(make_job(f"job-{number}"))
        os.utime(made[-1].path)
        with event_writer(made[-1].events, "coordinator") as journal:
            state(journal, "succeeded")
    client = await connect()
    await client.subscribe("jobs", made[0].id)
    newest = {job.id for job in made[2:]}
    await client.until(lambda: {view["id"] for view in client.jobs or []} == newest and made[0].id in client.views)
    for _ in range(5000):
        if set(extension.tailer._tails) == {"cluster", made[0].id}:
            break
        await asyncio.sleep(0.01)
    assert set(extension.tailer._tails) == {"cluster", made[0].id}


@pytest.mark.parametrize("extension_config", [{"recent_bytes": 50_000, "heartbeat_s": 0.0}])
async def test_a_slow_reader_costs_no_memory_and_loses_no_fact(
    connect: Connect, make_job: MakeJob, extension: HyperpodExtension
) -> None:
    job = make_job()
    slow, quick = await connect(), await connect()
    await slow.subscribe(job.id, cursors={job.id: {}})
    await quick.subscribe(job.id, cursors={job.id: {}})
    await asyncio.gather(*(client.until(lambda client=client: client.events) for client in (slow, quick)))
    tracemalloc.start()
    try:
        with event_writer(job.events, "a") as journal:
            for number in range(1, 3001):
                journal.append(
                    "output.written",
                    {"text": "x" * 10_000} | dict.fromkeys(("member", "node", "stream"), "n") | {"rank": 0},
                )
                journal.append("metric.logged", {"step": number, "values": {"loss": number, "rate": 1}})
                if number % 200 == 0:
                    await quick.until(lambda number=number: quick.views[job.id]["metrics"].get("loss") == number)
                    quick.events.clear()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20e6, f"30 MB were written to a client that does not read; {peak / 1e6:.0f} MB were held at the peak"
    assert len(slow.events) < 100
    await slow.until(lambda: slow.views[job.id]["metrics"].get("loss") == 3000, 60)
    outputs = [event["seq"] for _, event in slow.events if event["kind"] == "output.written"]
    assert outputs == list(range(1, 6001, 2))
    assert slow.views[job.id] == truth(job)


async def test_only_superseded_samples_are_left_out(connect: Connect, make_job: MakeJob) -> None:
    job = make_job()
    with event_writer(job.events, "a") as journal:
        journal.append("metric.logged", {"step": 0, "values": {"only_once": 7.0}})
        for number in range(1, 501):
            journal.append("metric.logged", {"step": number, "values": {"loss": number}})
    client = await connect()
    await client.subscribe(job.id, cursors={job.id: {}})
    await client.until(lambda: client.views[job.id]["metrics"].get("loss") == 500)
    assert client.views[job.id]["metrics"] == {"only_once": 7.0, "loss": 500}
    assert len(client.events) < 10 and client.gaps
    assert client.views[job.id] == truth(job)


async def test_corrupt_and_unfoldable_lines_are_told_and_do_no_harm(connect: Connect, make_job: MakeJob) -> None:
    job = make_job()
    (job.events / "bad.jsonl").write_bytes(b"not json\n")
    client = await connect()
    await client.subscribe(job.id)
    await client.until(lambda: job.id in client.views)
    assert "not a journal line" in client.views[job.id]["warnings"][0]["text"]
    with event_writer(job.events, "odd") as journal:
        journal.append("generation.formed", {"generation": "x", "members": 5, "spares": 0, "target": 0, "reason": ""})
    await client.until(lambda: client.problems and client.unfoldable)
    assert "generation.formed number 1" in client.problems[0]["text"]
    other = await connect()
    await other.subscribe(job.id)
    await other.until(lambda: job.id in other.views)
    assert any("cannot be shown" in warning["text"] for warning in other.views[job.id]["warnings"])
    with event_writer(job.events, "good") as journal:
        step(journal, 1)
    await other.until(lambda: other.views[job.id]["step"] == 1)
    with open(job.events / "bad.jsonl", "ab") as file:  # noqa: ASYNC230
        file.write(b"{again\n")
    await other.until(lambda: other.problems)
    assert "{again" in other.problems[0]["text"] and "topic" not in other.problems[0]


BAD_MESSAGES: list[tuple[Any, str]] = [
    ("{", "not JSON"),
    (b"\xff\x00", "not JSON"),
    ("[" * 100_000, "not JSON"),
    ("null", "type 'None' is unknown"),
    ([], "type 'None' is unknown"),
    ({"type": "dance"}, "type 'dance' is unknown; expected subscribe or unsubscribe"),
    ({"type": ["subscribe"]}, "is unknown"),
    ({"type": "subscribe"}, "'watch' is a required property"),
    ({"type": "subscribe", "watch": "jobs"}, "watch: 'jobs' is not of type 'array'"),
    ({"type": "subscribe", "watch": [5]}, "watch.0: 5 is not of type 'string'"),
    ({"type": "subscribe", "watch": [], "cursors": {"cluster": {"a": "1"}}}, "cursors.cluster.a"),
    ({"type": "subscribe", "watch": [], "cursors": {"cluster": {"a": -1}}}, "cursors.cluster.a"),
    ({"type": "subscribe", "watch": ["jobs"] * 1001}, "watch: "),
    ({"type": "subscribe", "watch": ["../../etc"]}, "'../../etc' is not of the form"),
    ({"type": "subscribe", "watch": ["x" * 10_000]}, "is not of the form"),
    ({"type": "subscribe", "watch": ["nothing-abcdefgh"]}, "no job nothing-abcdefgh"),
    ({"type": "unsubscribe"}, "'topics' is a required property"),
]


async def test_bad_messages_are_answered_and_survived(connect: Connect, make_job: MakeJob) -> None:
    job = make_job()
    client = await connect()
    for message, words in BAD_MESSAGES:
        told = len(client.problems)
        if isinstance(message, bytes):
            await client.socket.write_message(message, binary=True)
        else:
            await client.say(message)
        await client.until(lambda told=told: len(client.problems) > told)
        assert words in client.problems[-1]["text"], (message, client.problems[-1])
        assert len(client.problems[-1]["text"]) < 1000
    assert client.problems[-2]["topic"] == "nothing-abcdefgh"
    await client.subscribe(job.id)
    await client.until(lambda: job.id in client.views)


@pytest.mark.parametrize("extension_config", [{"max_message_bytes": 2000}])
async def test_an_oversized_message_closes_the_socket(
    connect: Connect, extension: HyperpodExtension, eventually: Any
) -> None:
    client = await connect()
    await client.say(json.dumps({"type": "subscribe", "watch": ["x" * 3000]}))
    assert await asyncio.wait_for(client.socket.read_message(), 50) is None
    assert client.socket.close_code == 1009
    other = await connect()
    await other.subscribe("cluster")
    await other.until(lambda: "cluster" in other.views)


async def test_another_sites_page_is_refused(
    extension: HyperpodExtension, jp_http_port: int, jp_base_url: str, jp_fetch: Any
) -> None:
    answer = await jp_fetch("api", "status")
    cookies = "; ".join(cookie.split(";")[0] for cookie in answer.headers.get_list("Set-Cookie"))
    url = f"ws://127.0.0.1:{jp_http_port}{jp_base_url}{ROOT}/stream"
    for origin, works in ((f"http://127.0.0.1:{jp_http_port}", True), ("https://elsewhere.example", False)):
        request = HTTPRequest(url, headers={"Cookie": cookies, "Origin": origin})
        if works:
            (await websocket_connect(request)).close()
        else:
            with pytest.raises(HTTPClientError) as refused:
                await websocket_connect(request)
            assert refused.value.code == 403


@pytest.mark.parametrize("extension_config", [{"heartbeat_s": 2.0}])
async def test_a_client_that_went_away_without_a_word_is_noticed(
    extension: HyperpodExtension, jp_http_port: int, jp_base_url: str, jp_auth_header: Any, connect: Connect
) -> None:
    alive = await connect()
    with sockets.create_connection(("127.0.0.1", jp_http_port)) as raw:
        raw.setblocking(False)
        loop = asyncio.get_running_loop()
        head = f"GET {jp_base_url}{ROOT}/stream HTTP/1.1\r\nHost: 127.0.0.1:{jp_http_port}\r\nUpgrade: websocket\r\n"
        head += "Connection: Upgrade\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        await loop.sock_sendall(raw, f"{head}Authorization: {jp_auth_header['Authorization']}\r\n\r\n".encode())
        assert b"101" in await asyncio.wait_for(loop.sock_recv(raw, 4096), 50)
        assert len(extension.sockets) == 2
        for _ in range(6000):  # its kernel acknowledges every byte, but nobody answers the pings
            if len(extension.sockets) == 1:
                break
            await asyncio.sleep(0.01)
        assert len(extension.sockets) == 1
    await alive.subscribe("cluster")
    await alive.until(lambda: "cluster" in alive.views)


@pytest.mark.parametrize("extension_config", [{"socket_lifetime_s": 5.0}])
async def test_the_rights_of_an_old_socket_are_checked_again(
    connect: Connect, jp_serverapp: Any, jp_ws_fetch: Any, make_job: MakeJob
) -> None:
    job = make_job()
    before = await connect()
    await before.subscribe(job.id)
    await before.until(lambda: job.id in before.views)
    assert await asyncio.wait_for(before.socket.read_message(), 50) is None
    assert before.socket.close_code == SIGN_IN_AGAIN
    with event_writer(job.events, "a") as journal:
        journal.append("warning.raised", {"text": "meanwhile"})
    after = await connect()
    after.views = before.views
    await after.subscribe(job.id, cursors={job.id: before.views[job.id]["seen"]})
    await after.until(lambda: after.views[job.id]["warnings"])
    assert after.snapshots == []

    class Nobody(type(jp_serverapp.authorizer)):  # type: ignore[misc]
        def is_authorized(self, *_: Any) -> bool:
            return False

    jp_serverapp.web_app.settings["authorizer"] = Nobody(parent=jp_serverapp)
    assert await asyncio.wait_for(after.socket.read_message(), 50) is None
    with pytest.raises(HTTPClientError) as refused:
        await jp_ws_fetch(*ROOT.split("/"), "stream")
    assert refused.value.code == 403


async def test_a_dead_supervisor_is_shown_as_lost(connect: Connect, store: Store, monkeypatch: Any) -> None:
    from jupyter_hyperpod.control import cluster
    from jupyter_hyperpod.server import tailer

    monkeypatch.setattr(tailer, "PROBE_S", 0.05)
    # with 10,000 nodes, to read it again at each look would hold up all that is shown
    monkeypatch.setattr(cluster, "follow_events", None)
    with event_writer(store.cluster_events, "supervisor") as journal:
        journal.append("cluster.state", {"state": "running", "reason": "up", "nodes": 1, "pid": 1})
        node(journal, 1, "idle")
        client = await connect()
        await client.subscribe("cluster")
        await client.until(lambda: client.views.get("cluster", {}).get("state") == "lost")
        assert "supervisor" in client.views["cluster"]["reason"]
        assert client.views["cluster"]["nodes"][0]["node"] == "node-1"
        journal.append("cluster.state", {"state": "stopped", "reason": "asked to", "nodes": 0, "pid": None})
        await client.until(lambda: client.views["cluster"]["state"] == "stopped")


async def test_state_changes_are_told_to_jupyter_events(
    connect: Connect, extension: HyperpodExtension, jp_serverapp: Any, make_job: MakeJob, store: Store
) -> None:
    told: list[dict[str, Any]] = []

    async def listener(logger: Any, schema_id: str, data: dict[str, Any]) -> None:
        told.append({name: data[name] for name in ("subject", "name", "state")})

    client = await connect()
    await client.subscribe("jobs")
    await client.until(lambda: client.jobs is not None)
    jp_serverapp.event_logger.add_listener(schema_id=STATE_CHANGED, listener=listener)
    job = make_job("heard")
    with event_writer(job.events, "coordinator") as journal, event_writer(store.cluster_events, "s") as nodes:
        state(journal, "running", "2 nodes are there")
        node(nodes, 3, "lost")
        state(journal, "failed", "it broke")
    for _ in range(5000):
        if len(told) == 3:
            break
        await asyncio.sleep(0.01)
    assert sorted(told, key=lambda record: (record["subject"], record["state"])) == [
        {"subject": "job", "name": job.id, "state": "failed"},
        {"subject": "job", "name": job.id, "state": "running"},
        {"subject": "node", "name": "node-3", "state": "lost"},
    ]
    assert [record["state"] for record in told if record["subject"] == "job"] == ["running", "failed"]


async def test_what_is_asked_over_rest_arrives_as_events(api: Api, connect: Connect, make_job: MakeJob) -> None:
    job = make_job()
    client = await connect()
    await client.subscribe(job.id)
    await client.until(lambda: client.views.get(job.id) == truth(job))
    assert (await api("GET", f"/jobs/{job.id}"))[1] == client.views[job.id]
    with event_writer(job.events, "coordinator") as journal:
        state(journal, "stopped", "asked to stop")
    await client.until(lambda: client.views[job.id]["state"] == "stopped")
    assert (await api("GET", f"/jobs/{job.id}"))[1] == client.views[job.id]


async def test_stopping_the_server_closes_sockets_and_threads(
    connect: Connect, extension: HyperpodExtension, make_job: MakeJob
) -> None:
    client = await connect()
    await client.subscribe("cluster", "jobs", make_job().id)
    await client.until(lambda: "cluster" in client.views)
    assert any(thread.name == "hyperpod-tailer" for thread in threading.enumerate())
    await extension.stop_extension()
    while await asyncio.wait_for(client.socket.read_message(), 50) is not None:
        pass
    assert client.socket.close_code == 1001
    assert not any(thread.name == "hyperpod-tailer" for thread in threading.enumerate())


async def test_many_old_jobs_keep_nobody_waiting(connect: Connect, make_job: MakeJob, store: Store) -> None:
    big = make_job("big")
    with event_writer(big.events, "a") as journal:
        for number in range(1, 40_001):
            step(journal, number)
        state(journal, "succeeded")
    for number in range(30):
        make_job(f"old-{number}")
    client = await connect()
    await client.subscribe("jobs", "cluster")
    with event_writer(store.cluster_events, "supervisor") as nodes:
        node(nodes, 1, "idle")
        await client.until(lambda: client.views.get("cluster", {}).get("nodes"))
    await client.until(lambda: len(client.jobs or []) == 31, 30)


async def test_a_topic_that_cannot_be_read_any_more_closes_the_socket(
    connect: Connect, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, extension: HyperpodExtension
) -> None:
    """Silence would look like a job in which nothing happens; a closed socket comes back with its cursor."""
    from jupyter_hyperpod.server import topic

    def broken(*_: Any) -> Any:
        raise PermissionError(13, "Permission denied", "events")

    job = make_job()
    monkeypatch.setattr(topic, "replay_events", broken)
    monkeypatch.setattr(topic.Topic, "position_after", lambda *_: None)
    client = await connect()
    await client.subscribe(job.id, cursors={job.id: {}})
    assert await asyncio.wait_for(client.socket.read_message(), 50) is None
    assert client.socket.close_code == 1011


def test_a_strange_loss_keeps_no_job_from_the_list() -> None:
    rows = [[1, 2.123456789, 4], [2, "2.0", 4], [3, None, 4], [4, float("nan"), 4], [5, {"no": "number"}, 4]]
    assert trend_of(rows) == [[1, 2.1235], [2, None], [3, None], [4, None], [5, None]]
    assert trend_of([]) == []
    points = trend_of([[step, float(step)] for step in range(1000)])
    steps = [int(step) for step, _ in points]
    # the early part stays; src/__tests__/derive.spec.ts has the same steps
    assert (len(points), steps[:3], steps[-2:]) == (TREND_POINTS, [0, 43, 86], [955, 999])
