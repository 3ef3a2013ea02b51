"""For how long jobs lack nodes, what comes of what one leaves to another, and when they ask again."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pytest

from jupyter_hyperpod.backends.types import BASE, ELASTIC, Element, ElementPhase
from jupyter_hyperpod.core.elastic import ElasticRange
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.policy.cluster.gifts import PATIENCE_S
from jupyter_hyperpod.storage.store import Store
from jupyter_hyperpod.supervisor.allocation.gangs import (
    AGAIN_S,
    EVERY_S,
    LONGEST_S,
    OLD_S,
    ROOM_S,
    STARTS_S,
    Gangs,
    Gathering,
)
from jupyter_hyperpod.supervisor.entry import JobEntry


def element(phase: ElementPhase, part: str = BASE) -> Element:
    return Element("1_0", phase.name, phase, part=part)


RUNS, QUEUED, STARTS = (element(p) for p in (ElementPhase.RUNNING, ElementPhase.QUEUED, ElementPhase.WAITING))


class Job:
    """A job's nodes, as the test tells them, and what was asked of it."""

    def __init__(self, store: Store, name: str, **given: object) -> None:
        fields: dict[str, object] = {"nodes": 2, "backend": "slurm", "slurm": {"partition": "train"}, **given}
        spec = JobSpec(name, store.put_cell("pass"), **fields)  # type: ignore[arg-type]
        self.entry = JobEntry(store, store.create_job(spec))
        self.gathering = Gathering(self.entry, "")
        self.room: list[tuple[int, float]] = []
        self.asked = 0

    def make_room(self, nodes: int, reason: str, until_s: float) -> None:
        self.room.append((nodes, until_s))
        self.gathering.gang = None

    def ask_again(self) -> None:
        self.asked += 1

    def look(self, now_s: float, *elements: Element, begun: bool = False, keeps: bool = False) -> float | None:
        self.gathering.look(elements, begun, keeps, QUEUED in elements, now_s)
        return self.gathering.gang and self.gathering.gang.waits_s


class Pair:
    """Two jobs, the older one first, each with one of the two nodes that it needs."""

    def __init__(self, store: Store) -> None:
        self.older, self.younger = Job(store, "older"), Job(store, "younger")
        self.younger.entry.order = self.older.entry.order + 1
        self.gangs = Gangs()

    def stuck(self, now_s: float) -> None:
        for job in (self.older, self.younger):
            job.look(now_s, RUNS, QUEUED)

    def step(self, now_s: float) -> None:
        self.gangs.step({job.entry.job.id: job for job in (self.older, self.younger)}, now_s)


@pytest.fixture
def pair(store: Store) -> Iterator[Pair]:
    found = Pair(store)
    yield found
    for job in (found.older, found.younger):
        job.entry.journal.close()


def test_a_job_waits_from_when_the_last_node_came(pair: Pair) -> None:
    job = pair.older
    assert job.look(0, QUEUED, QUEUED) == 0
    assert job.look(30, QUEUED, QUEUED) == 30
    assert job.look(40, RUNS, QUEUED) == 0
    assert job.look(55, RUNS, QUEUED) == 15
    assert job.look(60, RUNS, STARTS) == 0, "it is about to come"
    assert job.look(60 + STARTS_S, RUNS, STARTS) == 20 + STARTS_S, "it does not come: its image cannot be pulled"
    assert job.gathering.gang and not job.gathering.gang.takes and job.gathering.gang.holds == 1
    assert job.look(200, RUNS, RUNS) is None
    assert job.look(210, RUNS, QUEUED) == 0, "it has lost one"
    assert job.look(220, RUNS) == 10, "it rests after failures, and holds one"
    assert job.look(230, RUNS, QUEUED, keeps=True) == 20
    assert job.gathering.gang and job.gathering.gang.holds == 0, "the state of the job is there"


def test_a_job_that_has_begun_needs_fewer_and_a_deployment_none(pair: Pair, store: Store) -> None:
    assert pair.older.look(0, RUNS, QUEUED, begun=True) is None, "a fixed job goes on with one"
    elastic = Job(store, "elastic", nodes=4, elastic=ElasticRange(2, 4))
    elastic.look(0, RUNS, element(ElementPhase.RUNNING, ELASTIC), QUEUED)
    assert elastic.gathering.gang is None
    elastic.look(0, element(ElementPhase.RUNNING, ELASTIC), QUEUED)
    assert elastic.gathering.gang is not None
    assert (elastic.gathering.gang.missing, elastic.gathering.gang.holds) == (1, 0)
    elastic.entry.journal.close()


def test_jobs_that_may_get_other_nodes_are_of_another_kind(pair: Pair, store: Store) -> None:
    kinds = []
    shared = {"partition": "train", "constraint": "a,b"}
    for options in (shared, {**shared, "constraint": "b,a", "bind": "10.0.0.1"}, {"partition": "spot"}):
        job = Job(store, "job", slurm=options)
        job.look(0, QUEUED)
        assert job.gathering.gang is not None
        kinds.append(job.gathering.gang.kind)
        job.entry.journal.close()
    assert kinds[0] == kinds[1] != kinds[2]


def test_the_younger_job_makes_room_and_asks_again_when_the_older_has_its_nodes(pair: Pair) -> None:
    pair.stuck(0)
    pair.stuck(PATIENCE_S)
    now_s = PATIENCE_S
    pair.step(now_s)
    assert pair.younger.room == [(1, now_s + ROOM_S)] and not pair.older.room
    pair.step(now_s + EVERY_S)
    assert len(pair.younger.room) == 1 and not pair.younger.asked
    pair.older.look(now_s + 2, RUNS, RUNS)
    pair.step(now_s + 2 * EVERY_S)
    assert pair.younger.asked == 1
    pair.step(now_s + 3 * EVERY_S)
    assert pair.younger.asked == 1


def test_nothing_is_decided_by_what_a_scheduler_has_told_long_ago(pair: Pair) -> None:
    pair.stuck(0)
    pair.stuck(PATIENCE_S)
    pair.step(PATIENCE_S + OLD_S)
    assert not pair.younger.room


def test_what_comes_to_nothing_is_tried_less_and_less_often_and_keeps_nobody_from_giving(pair: Pair) -> None:
    tries = []
    for now_s in range(8000):
        pair.stuck(now_s)
        before = len(pair.younger.room) + len(pair.older.room)
        pair.step(now_s)
        if len(pair.younger.room) + len(pair.older.room) > before:
            tries.append(now_s)
    assert tries[:3] == [PATIENCE_S, PATIENCE_S + AGAIN_S, PATIENCE_S + 3 * AGAIN_S]
    assert AGAIN_S < max(after - before for before, after in pairwise(tries)) <= LONGEST_S
    third = Job(pair.older.entry.store, "first", priority=1)
    given = len(pair.younger.room)
    for now_s in (8100, 8200):
        third.look(now_s, RUNS, QUEUED)
        pair.stuck(now_s)
    jobs = {job.entry.job.id: job for job in (pair.older, pair.younger, third)}
    pair.gangs.step(jobs, 8201)
    assert len(pair.younger.room) == given + 1, "one of a higher priority gets the node"
    third.entry.journal.close()
