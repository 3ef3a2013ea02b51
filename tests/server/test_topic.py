"""What a followed journal takes of the server's memory."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import pytest

from jupyter_hyperpod.core.views import View, new_job_view
from jupyter_hyperpod.server.extension import HyperpodExtension
from jupyter_hyperpod.server.listing import LISTED, TREND_S, listed_fields
from jupyter_hyperpod.server.topic import Topic
from jupyter_hyperpod.storage.journal import event_writer
from tests.server.client import Client
from tests.server.conftest import MakeJob
from tests.server.test_stream import step

RECENT_BYTES = 1 << 20


def test_the_newest_events_take_the_memory_that_the_setting_allows(tmp_path: Path) -> None:
    topic = Topic("j", tmp_path, new_job_view("j"), RECENT_BYTES)
    with event_writer(tmp_path, "worker-node-0.a") as journal:
        tracemalloc.start()
        try:
            for step in range(1, 7001):
                journal.append("metric.logged", {"step": step, "values": {"accuracy": 0.5, "rate/0": 64.25}})
                journal.append("phase.changed", {"phase": "训练", "reason": ""})
                if step % 10 == 0:
                    topic.poll()
            taken, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert 0.6 * RECENT_BYTES < taken < 1.1 * RECENT_BYTES, f"{taken:,} bytes are held of {RECENT_BYTES:,}"
    kept = topic.after(topic.end - 100)
    assert kept is not None and [entry.seq for entry in kept] == list(range(13_901, 14_001))


async def test_the_events_of_a_job_are_in_memory_only_while_somebody_follows_it(
    connect: Callable[[], Awaitable[Client]],
    make_job: MakeJob,
    extension: HyperpodExtension,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from jupyter_hyperpod.server import tailer

    job = make_job()
    with event_writer(job.events, "coordinator") as journal:
        client = await connect()
        await client.subscribe("jobs")
        for phase in range(3):
            journal.append("phase.changed", {"phase": f"unwatched {phase}", "reason": ""})
        await client.until(lambda: [job["phase"] for job in client.jobs or []] == ["unwatched 2"])
        topic = extension.tailer._tails[job.id].topic
        assert topic.after(topic.end - 1) is None
        await client.subscribe(job.id)
        await client.until(lambda: job.id in client.views)
        journal.append("phase.changed", {"phase": "watched", "reason": ""})
        await client.until(lambda: client.views[job.id]["phase"] == "watched")
        assert len(topic.after(topic.end - 1) or []) == 1
        monkeypatch.setattr(tailer, "LINGER_S", 0.0)
        await client.say({"type": "unsubscribe", "topics": [job.id]})
        for _ in range(5000):
            if topic.after(topic.end - 1) is None:
                break
            await asyncio.sleep(0.01)
        assert topic.after(topic.end - 1) is None


class CopiedTopic(Topic):
    """Counts how often its history is copied, most of what a view holds."""

    copied = 0

    def copy_fields(self, names: Iterable[str]) -> View:
        chosen = list(names)
        self.copied += "history" in chosen
        return super().copy_fields(chosen)


def test_a_history_is_copied_for_the_list_only_where_its_line_is_drawn_anew(tmp_path: Path) -> None:
    topic = CopiedTopic("j", tmp_path, new_job_view("j"), RECENT_BYTES)
    with event_writer(tmp_path, "worker-node-0.a") as journal:
        step(journal, 1)
        topic.poll()
        entry = listed_fields(topic, None, 100.0)
        for number, now_s in ((2, 100.3), (3, 102.0), (4, 104.9)):
            step(journal, number)
            topic.poll()
            entry = listed_fields(topic, entry, now_s)
        assert (topic.copied, entry["step"], len(entry["trend"]["points"])) == (1, 4, 1)
        entry = listed_fields(topic, entry, 100.0 + TREND_S)
        assert (topic.copied, len(entry["trend"]["points"])) == (2, 4)
        step(journal, 5)
        journal.append("job.state", {"state": "succeeded", "reason": ""})
        topic.poll()
        entry = listed_fields(topic, entry, 100.1 + TREND_S)
        assert (topic.copied, len(entry["trend"]["points"])) == (3, 5)


def test_an_entry_of_the_list_does_not_copy_members_and_stays_as_it_was(tmp_path: Path) -> None:
    topic = Topic("j", tmp_path, new_job_view("j"), RECENT_BYTES)
    with event_writer(tmp_path, "coordinator") as journal:

        def form(number: int) -> View:
            members = [{"member": f"node-{rank}.a", "node": f"node-{rank}", "rank": rank} for rank in range(number)]
            formed = {"generation": number, "members": members, "spares": [], "target": 2, "reason": "a loss"}
            journal.append("generation.formed", formed)
            topic.poll()
            return listed_fields(topic, None, 0.0)

        first = form(1)
        before = json.dumps(first)
        again = listed_fields(topic, None, 0.0)
        assert again == first and again["members"][0] is first["members"][0]
        later = form(2)
    assert json.dumps(first) == before and set(first) == {*LISTED, "trend"}
    assert [len(entry["members"]) for entry in (first, later)] == [1, 2]
    assert [len(entry["generations"]) for entry in (first, later)] == [1, 2]
