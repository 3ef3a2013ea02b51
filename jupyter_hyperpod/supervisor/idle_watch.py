"""Ends a local cluster that nobody uses any more, and journals when that is going to be.

A job, a schedule or a request that comes at the last moment keeps the cluster: the supervisor hides its socket first,
so that clients start the next one from then on. Then it looks once more at what has come before, and ends only then.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from ..backends.base import Host
from ..control.cluster import SOCKET
from ..control.clusters.shape import idle_timeout
from ..core.errors import HyperpodError
from ..policy.cluster.idle import ClusterUse, ending, kept_by
from ..storage.host_lease import OTHER_HOSTS
from ..storage.journal_writer import JournalWriter
from ..storage.store import JobStore, Store
from ..system.diagnostics import note
from .entry import JobEntry, unfinished
from .scheduled import ScheduleWatch

HIDDEN = "supervisor.hidden"  # the socket, while the supervisor finds out whether it may end
LOOK_S = 1.0
HEAR_S = 0.05  # who has connected sends a request within this time, or asks once more
MOST_LOOKS = 100
DRIFT_S = 5.0  # a machine that slept was not idle meanwhile: the end comes later than was said


class OwnCluster(Protocol):
    """The part of the supervisor that decides whether it goes on."""

    store: Store
    directory: Path
    host: Host
    journal: JournalWriter
    entries: dict[str, JobEntry]
    reading: dict[str, JobEntry]
    settled: set[str]
    shape: dict[str, bool]
    scheduled: ScheduleWatch
    stopping: bool

    def load(self, job: JobStore) -> None: ...
    def read_on(self) -> None: ...
    def attend(self, patience_s: float) -> bool: ...
    def stop(self, reason: str) -> None: ...


class IdleWatch:
    """Since when nobody has used a cluster. ``ended``: it ends because of that.

    ``clock``: seconds, which stand still while the machine sleeps.
    """

    def __init__(self, cluster: OwnCluster, clock: Callable[[], float] = time.monotonic) -> None:
        self._cluster, self._clock = cluster, clock
        self._used_s = clock()
        self._looked_s = -LOOK_S
        self._ends_s: float | None = None  # as the journal says, in seconds since the Unix epoch
        self._problem = ""
        self.ended = False

    def used(self) -> None:
        """Somebody has asked for something."""
        self._used_s = self._clock()

    def step(self) -> None:
        """Journal what is new, and end the cluster where its time has come."""
        now_s = self._clock()
        if now_s - self._looked_s < LOOK_S or self._cluster.stopping:
            return
        self._looked_s = now_s
        use, timeout_s = self._use(), self._timeout_s()
        if timeout_s is None:
            return
        if kept_by(use):
            self._used_s = now_s
        decision = ending(use, now_s - self._used_s, timeout_s)
        if decision.value == 0.0:
            self._end(timeout_s)
        else:
            self._tell(decision.value, now_s, decision.reason)

    def _use(self) -> ClusterUse:
        cluster = self._cluster
        out = [node.name for node in cluster.host.nodes.values() if node.drained or node.cut]
        starting = tuple(node.name for node in cluster.host.nodes.values() if node.state == "starting")
        running = {job for node in (cluster.host.head, *cluster.host.nodes.values()) for job in node.jobs}
        # the journal of one that runs may have been unreadable when this supervisor began, which left it alone then
        jobs = tuple(sorted({*cluster.entries, *cluster.reading, *running}))
        shared = (cluster.store.cluster / OTHER_HOSTS).is_dir()
        return ClusterUse(jobs, cluster.scheduled.waiting(), tuple(out), starting, bool(cluster.shape), shared)

    def _timeout_s(self) -> float | None:
        """None where nobody knows: then the cluster goes on."""
        try:
            timeout_s = idle_timeout(self._cluster.directory)
        except HyperpodError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                note(f"the cluster does not end by itself: {error}")
            return None
        return timeout_s

    def _tell(self, left_s: float | None, now_s: float, reason: str) -> None:
        ends_s = None if left_s is None else time.time() + left_s
        same = ends_s is None or (self._ends_s is not None and abs(ends_s - self._ends_s) < DRIFT_S)
        if same and (ends_s is None) == (self._ends_s is None):
            return
        self._ends_s = ends_s
        since_s = None if ends_s is None else time.time() - (now_s - self._used_s)
        self._cluster.journal.write("cluster.idle", {"since_s": since_s, "ends_s": ends_s, "reason": reason})

    def _end(self, timeout_s: float) -> None:
        cluster = self._cluster
        try:
            os.rename(cluster.directory / SOCKET, cluster.directory / HIDDEN)
        except OSError as error:
            note(f"the cluster is idle and goes on: its socket cannot be moved: {error}")
            self.used()
            return
        reason = ""
        try:
            reason = self._reason_at_last(timeout_s)
        finally:
            if reason and not cluster.stopping:  # nobody has just asked for it, either
                self.ended = True
                cluster.stop(reason)
            elif not cluster.stopping:
                os.rename(cluster.directory / HIDDEN, cluster.directory / SOCKET)

    def _reason_at_last(self, timeout_s: float) -> str:
        """Why the cluster ends, where nothing has come until its socket was hidden; else ""."""
        cluster = self._cluster
        for _ in range(MOST_LOOKS):
            if not cluster.attend(HEAR_S):
                break
        for job in unfinished(cluster.store, cluster.settled, {*cluster.entries, *cluster.reading}):
            cluster.load(job)
        cluster.read_on()
        cluster.scheduled.step()
        decision = ending(self._use(), self._clock() - self._used_s, timeout_s)
        return decision.reason if decision.value == 0.0 else ""
