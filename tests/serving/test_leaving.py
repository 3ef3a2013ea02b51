"""Replicas whose node goes out of service, as the gateway sees them: they answer until others do; and those that are
gone when another gateway takes over.

The pool, its manager and the journal are the real ones; reports are handed to them, and nobody is at the other end.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_hyperpod.core.elastic import ElasticRange
from jupyter_hyperpod.core.events import GATEWAY
from jupyter_hyperpod.core.spec import JobSpec, ServeSpec
from jupyter_hyperpod.policy.serving import Limits
from jupyter_hyperpod.serving import replica_manager
from jupyter_hyperpod.serving.context import HOST_VARIABLE, Site
from jupyter_hyperpod.serving.pool import PooledReplica, ReplicaPool
from jupyter_hyperpod.serving.replica_manager import STARTING_S, ReplicaManager
from jupyter_hyperpod.storage.folded import FoldedJournal
from jupyter_hyperpod.storage.journal import event_writer
from jupyter_hyperpod.storage.journal_search import read_kinds
from jupyter_hyperpod.storage.journal_writer import JournalWriter
from jupyter_hyperpod.storage.store import Store

FAR = "127.0.0.2"


class Link:
    """What is said to one replica."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def write_message(self, message: str) -> None:
        self.said.append(json.loads(message)["type"])


class Gateway:
    """A gateway's pool: of one replica, at most three."""

    def __init__(self, store: Store) -> None:
        serve = ServeSpec("model", task="predict", minimum=1)
        self.spec = JobSpec("chat", store.put_cell(""), nodes=1, elastic=ElasticRange(1, 3), serve=serve)
        self.job = store.create_job(self.spec)
        with event_writer(self.job.events, "control") as journal:
            journal.append("job.submitted", {"id": self.job.id, "spec": self.spec.to_json()})
        self.links: dict[str, Link] = {}
        self.journals: list[JournalWriter] = []
        self.begin()

    def begin(self) -> None:
        """Another one takes over."""
        site = Site(self.job, "", Path(), self.spec, self.spec.serve or ServeSpec(""))
        self.pool = ReplicaPool(8, 8)
        self.journals.append(JournalWriter(self.job.events, GATEWAY))
        self.manager = ReplicaManager(site, self.pool, self.journals[-1], FoldedJournal(self.job).catch_up())

    def hears(self, node: str, state: str = "ready", started_s: float | None = None) -> PooledReplica:
        link: Any = self.links.setdefault(node, Link())
        stages = {"started": time.time() - 100 if started_s is None else started_s}
        facts: dict[str, Any] = {"replica": f"{node}.7", "node": node, "pid": 7, "host": FAR, "port": 1}
        facts |= {"state": state, "path": "/predict", "error": None, "progress": (0, 0), "stages": stages}
        return self.manager.heard(facts, link)

    def ended(self) -> list[str]:
        return [node for node, link in self.links.items() if "end" in link.said]

    def answers(self) -> list[str]:
        return [replica.node for replica in self.pool.ready()]


@pytest.fixture
def gateway(store: Store) -> Iterator[Gateway]:
    found = Gateway(store)
    yield found
    for journal in found.journals:
        journal.close()


def test_the_only_one_answers_until_its_replacement_does_and_then_it_goes(gateway: Gateway) -> None:
    gateway.hears("a")
    assert gateway.manager.leave_node("a", time.time()) == 1
    assert (gateway.answers(), gateway.ended()) == (["a"], [])
    gateway.hears("b", "loading")
    gateway.manager.adjust()
    assert (gateway.answers(), gateway.ended()) == (["a"], []), "its replacement is not one too many"
    gateway.hears("b")
    assert (gateway.answers(), gateway.ended()) == (["b"], ["a"])


def test_it_finishes_what_it_was_asked_and_others_are_asked_first(gateway: Gateway) -> None:
    async def asked() -> None:
        gateway.manager.told_to_scale(2, False, time.time())
        a, _ = gateway.hears("a"), gateway.hears("b")
        gateway.manager.leave_node("a", time.time())
        taken = [await gateway.pool.take() for _ in range(9)]
        assert [replica.node for replica in taken] == ["b"] * 8 + ["a"]
        gateway.hears("c")
        assert (gateway.answers(), gateway.ended()) == (["b", "c"], [])
        gateway.pool.give(a)
        gateway.manager.adjust()
        assert gateway.ended() == ["a"]

    asyncio.run(asyncio.wait_for(asked(), 20))


def test_it_goes_at_once_where_it_was_told_so_itself(gateway: Gateway) -> None:
    gateway.hears("a")
    gateway.hears("a", "draining")
    assert (gateway.answers(), gateway.ended()) == ([], ["a"])


def test_one_that_is_being_started_there_leaves_too_and_one_that_comes_later_stays(gateway: Gateway) -> None:
    told_s = time.time()
    assert gateway.manager.leave_node("a", told_s) == 0
    assert gateway.hears("a", started_s=told_s + 1).departing
    assert gateway.hears("a.1", started_s=told_s + 1).departing, "a node may have several places"
    assert not gateway.hears("ab", started_s=told_s + 1).departing
    assert not gateway.hears("a.2", started_s=told_s + 2 * STARTING_S).departing
    assert gateway.manager.leave_node("a", time.time()) == 3, "whatever the clock of its host says"


def test_the_first_replica_stays_until_it_has_answered_and_goes_when_nobody_has_needed_it_since(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = [time.monotonic()]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    gateway.manager.limits = Limits(0, 3, 1.0, 3.0)

    def wanted_after(seconds: int) -> int:
        for _ in range(seconds):
            now_s[0] += 1
            gateway.hears("a", state)
            gateway.manager.look()
        return gateway.manager.wanted

    state = "loading"
    assert wanted_after(20) == 1
    state = "ready"
    assert (wanted_after(2), wanted_after(3)) == (1, 0)


def test_the_next_gateway_lets_it_go_as_the_first_one_would(gateway: Gateway) -> None:
    gateway.hears("a")
    told_s = time.time()
    gateway.manager.leave_node("a", told_s)
    gateway.begin()
    gateway.manager.leave_node("a", told_s)
    gateway.hears("b", "loading")
    gateway.hears("a")
    assert (gateway.answers(), gateway.ended()) == (["a"], [])
    gateway.hears("b")
    assert (gateway.answers(), gateway.ended()) == (["b"], ["a"])


def test_one_of_another_host_that_does_not_come_to_the_next_gateway_is_lost(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOST_VARIABLE, "127.0.0.3")
    gateway.manager.told_to_scale(3, False, time.time())
    for node in ("a", "b", "c"):
        gateway.hears(node)
    gateway.begin()
    gateway.hears("b")
    gateway.manager.told_to_scale(3, False, time.time())

    def lost() -> list[str]:
        gateway.manager.look()
        gateway.journals[-1].flush()
        return [event.data["node"] for event in read_kinds(gateway.job.events, ("member.lost",))]

    assert lost() == [], "they may still be on their way"
    gateway.hears("c")
    monkeypatch.setattr(replica_manager, "RETURN_S", 0.0)
    assert lost() == lost() == ["a"]
    causes = [event.data["cause"] for event in read_kinds(gateway.job.events, ("incident.stage",))]
    assert {*causes} == {"replica lost"}
