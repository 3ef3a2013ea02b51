"""Weighs jobs that lack nodes against each other: for how long each waits, what each leaves, and what came of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from ...backends.types import BASE, Element, ElementPhase
from ...core.backend_options import placing
from ...policy.cluster.gifts import Gang, Gift, gifts
from ...policy.decision import Decision
from ..entry import JobEntry

ROOM_S = 60.0  # so long nothing is requested where nodes were left to another job that has not taken them
AGAIN_S, LONGEST_S = 120.0, 900.0  # and so long nothing is left to that job again, twice as long each time
EVERY_S = 1.0
STARTS_S = 120.0  # what takes longer to start may never do: an image that cannot be pulled
OLD_S = 10.0  # what the scheduler has not told for so long may be different by now


class Gathering:
    """What one job still lacks to compute: `gang` is None where that is nothing. Times on the monotonic clock."""

    def __init__(self, entry: JobEntry, place: str) -> None:
        self._entry, self._kind = entry, (entry.spec.backend, place, placing(entry.spec.backend, entry.options))
        self._most = 0  # nodes that have run at the same time since then
        self._since_s = math.inf
        self._starts_s: float | None = None  # since when some are about to start
        self.looked_s = -math.inf
        self.gang: Gang | None = None

    def needs(self, begun: bool) -> int:
        """The fewest nodes with which the job computes."""
        spec = self._entry.spec
        return min(spec.range.minimum if begun else spec.start_minimum, self._entry.target)

    def look(self, elements: Iterable[Element], begun: bool, keeps: bool, lacks_node: bool, now_s: float) -> None:
        """Take in the elements that are counted on, as they were at that time.

        ``keeps``: some of them hold the job's state. ``lacks_node``: one is queued, and waits for no more than a node.
        """
        spec, found, needs, self.looked_s = self._entry.spec, list(elements), self.needs(begun), now_s
        running = [element for element in found if element.phase is ElementPhase.RUNNING]
        if spec.serve is not None or len(running) >= needs:
            self.gang = None
            return
        if self.gang is None or len(running) > self._most:
            self._since_s = now_s
        self._most = len(running)
        starts = any(element.phase is ElementPhase.WAITING for element in found)
        self._starts_s = (now_s if self._starts_s is None else self._starts_s) if starts else None
        soon = self._starts_s is not None and now_s < self._starts_s + STARTS_S
        self.gang = Gang(
            job_id=self._entry.job.id,
            kind=self._kind,
            begun=begun,
            priority=spec.priority,
            order=self._entry.order,
            needs=needs,
            missing=needs - len(running),
            holds=0 if keeps else sum(element.part == BASE for element in running),
            waits_s=0.0 if soon else now_s - self._since_s,
            takes=lacks_node,
        )


class Gathers(Protocol):
    """A job's nodes, as requested from its scheduler."""

    gathering: Gathering

    def make_room(self, nodes: int, reason: str, until_s: float) -> None:
        """Give so many nodes back, unless the job can compute meanwhile, and request none before that time."""

    def ask_again(self) -> None:
        """Request what is missing from now on."""


@dataclass(frozen=True, slots=True)
class _Taken:
    """That nodes were left to a job: how often, until when nothing is left to it again, and which jobs wait for it."""

    times: int
    until_s: float
    givers: frozenset[str] = frozenset()


class Gangs:
    """What jobs of one supervisor have left to each other; times on the monotonic clock."""

    def __init__(self) -> None:
        self._taken: dict[str, _Taken] = {}
        self._next_s = 0.0

    def step(self, jobs: Mapping[str, Gathers], now_s: float) -> None:
        """Let jobs make room for others, and request nodes again where those have theirs."""
        if now_s < self._next_s:
            return
        self._next_s = now_s + EVERY_S
        lacking = {job_id: job.gathering.gang for job_id, job in jobs.items() if job.gathering.gang is not None}
        for job_id in self._taken.keys() - lacking.keys():
            for giver in self._taken.pop(job_id).givers & jobs.keys():
                jobs[giver].ask_again()
        fresh = [gang for job_id, gang in lacking.items() if now_s < jobs[job_id].gathering.looked_s + OLD_S]
        for decision in gifts([self._weighed(gang, now_s) for gang in fresh]):
            self._carry_out(decision, jobs, now_s)

    def _weighed(self, gang: Gang, now_s: float) -> Gang:
        """The same, which is given nothing for a while where it could not use what others have left."""
        waits = gang.job_id in self._taken and now_s < self._taken[gang.job_id].until_s
        return replace(gang, takes=False) if waits else gang

    def _carry_out(self, decision: Decision[Gift], jobs: Mapping[str, Gathers], now_s: float) -> None:
        gift = decision.value
        before = self._taken.get(gift.taker, _Taken(0, -math.inf))
        if now_s >= before.until_s:
            before = _Taken(before.times + 1, now_s + min(LONGEST_S, AGAIN_S * 2.0**before.times))
        self._taken[gift.taker] = replace(before, givers=before.givers | {gift.giver})
        jobs[gift.giver].make_room(gift.nodes, decision.reason, now_s + ROOM_S)
