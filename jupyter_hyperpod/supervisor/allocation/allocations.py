"""All jobs of one supervisor whose nodes come from schedulers."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import cast

from ...backends.base import Scheduler
from ...backends.types import ReportedNode, Surroundings
from ..entry import JobEntry
from .allocation import Allocation
from .gangs import Gangs

CLOSE_S = 8.0


class Allocations:
    """All jobs of one supervisor whose nodes come from schedulers."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings
        self._schedulers: dict[tuple[str, str], tuple[str, Scheduler]] = {}  # by backend and place, with its title
        self._jobs: dict[str, Allocation] = {}
        self._gangs = Gangs()
        self.avoided: tuple[str, ...] = ()  # nodes that were repaired too often lately

    def of(self, entry: JobEntry) -> Allocation:
        if entry.job.id not in self._jobs:
            options = entry.options
            where = entry.spec.backend, entry.backend.place(options)
            if where not in self._schedulers:
                scheduler = cast("Scheduler", entry.backend.open(self._surroundings, options))
                self._schedulers[where] = entry.backend.title, scheduler
            self._jobs[entry.job.id] = Allocation(entry, self._schedulers[where][1])
        return self._jobs[entry.job.id]

    def weigh(self, now_s: float) -> None:
        """Let jobs that cannot compute leave nodes to others that could then."""
        there = {id_: job for id_, job in self._jobs.items() if not (job.entry.ended or job.entry.resting(now_s))}
        self._gangs.step(there, now_s)

    def release(self, entry: JobEntry) -> bool:
        """The job has ended: give everything back and forget it; True when that is done."""
        if not self.of(entry).release():
            return False
        del self._jobs[entry.job.id]
        return True

    def close(self, entries: Iterable[JobEntry]) -> None:
        """The cluster ends: give the nodes of all its jobs back, waiting a while for their schedulers."""
        jobs = [self.of(entry) for entry in entries if entry.elsewhere]
        jobs = [job for job in jobs if job.released is None]
        for _, scheduler in self._schedulers.values():
            scheduler.keep_nothing()
        for job in jobs:
            job.released = job.scheduler.release(job.entry.job.id)
        for _, scheduler in self._schedulers.values():
            scheduler.close(CLOSE_S)
        for job in jobs:
            job.report_kept()

    def draining(self) -> dict[str, tuple[str, str]]:
        """Nodes to which a scheduler gives nothing new -> what people call that, and the reason that stands there."""
        told = [(title, node) for title, scheduler in self._schedulers.values() for node in scheduler.nodes.values()]
        return {node.name: (title, node.drained) for title, node in told if node.drained}

    def watched(self) -> dict[str, tuple[ReportedNode, float]]:
        """Nodes that have a health agent which shows its record there, and when they were asked about."""
        told = [(node, one.nodes_s) for _, one in self._schedulers.values() for node in one.nodes.values()]
        return {node.name: (node, asked_s) for node, asked_s in told if node.health is not None}

    def joined_s(self, job_id: str, node: str) -> float:
        """When the head of a job heard last of something new on a node; minus infinity where it never did."""
        ledger = self._jobs[job_id].ledger if job_id in self._jobs else None
        names = [name for element in ledger.running if element.node == node for name in element.names] if ledger else ()
        return ledger.presence.joined(names) if ledger else -math.inf

    def nodes(self, job_id: str) -> set[str]:
        """Where elements of a job run now, as far as was observed."""
        return {element.node for element in self._jobs[job_id].ledger.running} if job_id in self._jobs else set()
