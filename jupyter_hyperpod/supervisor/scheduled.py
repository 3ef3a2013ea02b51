"""Looks which schedules have a time that has come, and starts a process for each: a submission takes too long here."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass

from ..control.cluster import daemon_environment
from ..core.errors import HyperpodError
from ..storage.store import ENDED_MARK, Store
from ..system.diagnostics import note

FAILED_REST_S = 30.0


@dataclass
class _Known:
    """What was read of a schedule: the file's version, and when its next time comes; infinity for none.

    ``running``: jobs after whose end some of its jobs may have to be deleted.
    """

    version: tuple[int, int]
    next_s: float
    running: set[str]


class ScheduleWatch:
    """The schedules of a store, as its supervisor sees them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known: dict[str, _Known] = {}
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._rest_until_s: dict[str, float] = {}
        self._names: list[str] | None = []  # None where they cannot be read

    def step(self) -> None:
        """Start what is due. Reads a schedule's file only where it has changed."""
        if not (self._store.root / "schedules").is_dir():
            self._names = []
            return
        from ..control.schedules import schedule_file  # most stores have no schedule

        self._names = None
        self._reap()
        names = self._names = schedule_file.names(self._store)
        self._known = {name: known for name, known in self._known.items() if name in names}
        for name in names:
            resting = time.monotonic() < self._rest_until_s.get(name, 0.0)
            if name not in self._children and not resting:
                if self._next_s(name) <= time.time() or self._has_ended(name):
                    self._children[name] = self._begin(name)

    def waiting(self) -> tuple[str, ...]:
        """Those for which a supervisor is needed: a time of theirs is to come, a run begins, or nobody can say."""
        if self._names is None:
            return ("that cannot be read",)
        known = self._known
        return tuple(name for name in self._names if name in self._children or _waits(known.get(name)))

    def _next_s(self, name: str) -> float:
        from ..control.schedules import cron_times, schedule_file

        path = self._store.root / schedule_file.FOLDER / name / schedule_file.FILE
        try:
            found = path.stat()
            version = (found.st_mtime_ns, found.st_ino)
            known = self._known.get(name)
            if known is None or known.version != version:
                schedule = schedule_file.read(self._store, name)
                next_s: float | None = 0.0
                if schedule.starting is None:
                    times = cron_times.CronTimes(schedule.cron, schedule.zone)
                    next_s = None if schedule.paused else times.next_s(schedule.settled_s)
                jobs = {run.job for run in schedule.runs if run.job and (self._store.jobs / run.job).is_dir()}
                running = jobs if 0 < schedule.keep_runs < len(jobs) else set()
                known = self._known[name] = _Known(version, float("inf") if next_s is None else next_s, running)
        except (HyperpodError, OSError) as error:
            self._known.pop(name, None)
            self._rest(name)
            note(f"the schedule {name} cannot be read and does not run: {error}")
            return float("inf")
        return known.next_s

    def _has_ended(self, name: str) -> bool:
        """Whether a job of a schedule that keeps some only has ended since the last look."""
        known = self._known.get(name)
        ended = [job for job in known.running if (self._store.jobs / job / ENDED_MARK).exists()] if known else []
        if known:
            known.running.difference_update(ended)
        return bool(ended)

    def _begin(self, name: str) -> subprocess.Popen[bytes]:
        command = ["-m", "jupyter_hyperpod.control.schedules.firing", "--store", str(self._store.root), name]
        environment = daemon_environment(os.environ)
        return subprocess.Popen(
            [sys.executable, *command], stdin=subprocess.DEVNULL, env=environment, start_new_session=True
        )

    def _reap(self) -> None:
        for name, child in list(self._children.items()):
            if (status := child.poll()) is not None:
                del self._children[name]
                if status:
                    self._rest(name)

    def _rest(self, name: str) -> None:
        self._rest_until_s[name] = time.monotonic() + FAILED_REST_S

    def close(self) -> None:
        """End the processes. What they have begun, the next supervisor goes on with."""
        for child in self._children.values():
            child.kill()
            child.wait()


def _waits(known: _Known | None) -> bool:
    return known is None or known.next_s != float("inf")
