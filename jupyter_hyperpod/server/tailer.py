"""One thread per server that follows all watched journals and wakes their readers."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from ..control import cluster
from ..control.remote import followed
from ..core.errors import HyperpodError, UserError
from ..core.events import TERMINAL_STATES, Event
from ..core.views import View, new_cluster_view
from ..storage import room
from ..storage.folded import AT_ONCE_BYTES, FoldedJournal
from ..storage.host_lease import OtherHost
from ..storage.journal import unread_bytes
from ..storage.store import Store
from .listing import JOBS, LIST_S, JobsList, JobsReader, listed_fields
from .topic import Topic, TopicReader

CLUSTER = "cluster"
QUIET_AFTER_S = 10.0
LINGER_S = 5.0
PROBE_S = 2.0
SCAN_S = 0.05
LOOKS = 64  # jobs that nobody follows, of which one scan looks whether somebody wrote on them
SETTLED_S = 2.0  # a directory that changed later may change again without another time
CALM_S = 0.05  # between two wakes for what comes with each step; all else wakes at once
CALM = frozenset({"step.committed", "metric.logged", "output.written"})
JOIN_S = 10.0

Wake = Callable[[], None]
# called with (subject, name, event) for each change of state written since the start
Told = Callable[[str, str, Event], None]


@dataclass
class _Tail:
    """A topic and its watchers."""

    topic: Topic
    watchers: set[Wake] = field(default_factory=set)
    polled_s: float = 0.0
    changed_s: float = float("-inf")
    woken_s: float = float("-inf")
    left_s: float = float("-inf")  # when a watcher left
    owed: bool = False  # watchers have not been woken for the newest events


AnyReader = TopicReader | JobsReader


class Tailer:
    """Follows the cluster's and the jobs' journals of one store. Public methods may be called from any thread."""

    def __init__(
        self,
        store: Store,
        *,
        poll_interval_s: float,
        idle_interval_s: float,
        recent_bytes: int,
        jobs_listed: int,
        on_change: Told,
        log: logging.Logger,
    ) -> None:
        self._store = store
        self._poll_interval_s = poll_interval_s
        self._idle_interval_s = idle_interval_s
        self._recent_bytes = recent_bytes
        self._jobs_listed = jobs_listed
        self._on_change = on_change
        self._log = log
        self._tails: dict[str, _Tail] = {}
        self._summaries: dict[str, tuple[int, View]] = {}
        self._stamps: dict[str, int] = {}
        self._looked = 0  # where in the list the next look at jobs that nobody follows begins
        self._jobs_watchers: set[Wake] = set()
        self._over: dict[str, bool] = {}  # ended jobs that are too old for the list, and whether each is archived
        self._labelled: set[str] = set()  # jobs on which somebody has just written
        self.jobs = JobsList()
        self._scanned_s = self._probed_s = float("-inf")
        self._other_host = OtherHost(store)
        self._known: set[str] | None = None
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._news = threading.Event()
        self._stopping = False
        self._failure = ""
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread, once."""
        with self._lock:
            if self._thread is None and not self._stopping:
                self._thread = threading.Thread(target=self._run, name="hyperpod-tailer", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """End the thread and wait until it has."""
        with self._lock:
            self._stopping = True
            thread = self._thread
        self._news.set()
        if thread is not None:
            thread.join(JOIN_S)

    def watch(self, name: str, cursor: dict[str, int] | None, wake: Wake) -> AnyReader:
        """Follow a topic for a socket; `wake` is called (from any thread) when there is news.

        Raises SpecError or NotFound for a job that does not exist. Reads the journal: not for the event loop.
        """
        reader: AnyReader
        if name == JOBS:
            with self._lock:
                self._jobs_watchers.add(wake)
            reader = JobsReader(self.jobs)
        else:
            reader = TopicReader(self._watched(name, wake), cursor)
        self._news.set()
        return reader

    def unwatch(self, name: str, wake: Wake) -> None:
        """Undo `watch`; an unwatched topic is released after a while."""
        with self._lock:
            if name == JOBS:
                self._jobs_watchers.discard(wake)
            elif tail := self._tails.get(name):
                tail.watchers.discard(wake)
                tail.changed_s = tail.left_s = time.monotonic()

    def look_at(self, job_ids: Iterable[str]) -> None:
        """Read what was just written on jobs, also on those that nobody follows any more."""
        with self._lock:
            self._labelled.update(job_ids)
        self._news.set()

    def _watched(self, name: str, wake: Wake) -> Topic:
        while True:
            tail = self._open(name)
            with self._lock:
                if self._tails.get(name) is tail:
                    tail.watchers.add(wake)
                    return tail.topic

    def _open(self, name: str) -> _Tail:
        """Return a topic's tail, reading its journal where it is not followed yet."""
        with self._lock:
            if name in self._tails:
                return self._tails[name]
        with self._opening:
            if tail := self._tails.get(name):
                return tail
            tail = _Tail(self._new_topic(name))
            events = tail.topic.poll(keep=False)
            if self._known is not None and name != CLUSTER and name not in self._known:
                self._known.add(name)
                self._tell(name, events)
            with self._lock:
                self._tails[name] = tail
            self._have_followed(name, tail)
            return tail

    def _have_followed(self, name: str, tail: _Tail) -> None:
        """Where a job's head runs elsewhere, nobody may follow it any more: this machine was switched off meanwhile."""
        if name != CLUSTER and tail.topic.get("state")[0] not in TERMINAL_STATES:
            try:
                followed.keep(self._store, [self._store.job(name)])
            except HyperpodError as error:
                self._log.warning("%s is not followed at present: %s", name, error)

    def _new_topic(self, name: str) -> Topic:
        if name == CLUSTER:
            return Topic(name, self._store.cluster_events, new_cluster_view(), self._recent_bytes)
        job = self._store.job(name)
        journal = FoldedJournal(job)
        if unread_bytes(job.events, journal.view["seen"]) > AT_ONCE_BYTES:
            journal.catch_up()
        return Topic(name, job.events, journal.view, self._recent_bytes, journal.problems)

    def _run(self) -> None:
        while not self._stopping:
            failure = ""
            try:
                self._tick()
            except Exception as error:  # the thread survives every error, because it is the only one
                failure = repr(error)
                if failure != self._failure:
                    self._log.warning("the job store cannot be followed at present: %s", failure, exc_info=error)
            self._failure = failure
            self._news.wait(self._poll_interval_s if self._is_watched() else self._idle_interval_s)
            self._news.clear()

    def _is_watched(self) -> bool:
        with self._lock:
            return bool(self._jobs_watchers) or any(tail.watchers for tail in self._tails.values())

    def _tick(self) -> None:
        self._open(CLUSTER)
        now_s = time.monotonic()
        with self._lock:
            tails = list(self._tails.items())
        for name, tail in tails:
            if self._stopping:
                return
            busy = tail.watchers or now_s - tail.changed_s < QUIET_AFTER_S
            if busy or now_s - tail.polled_s >= self._idle_interval_s:
                self._poll(tail)
            self._let_go(name, tail, now_s)
        self._probe_cluster(now_s)
        if now_s - self._scanned_s > (LIST_S if self._jobs_watchers else self._idle_interval_s):
            self._scan()

    def _poll(self, tail: _Tail) -> None:
        problems = tail.topic.problem_count
        keep = bool(tail.watchers) or time.monotonic() - tail.left_s < LINGER_S  # a watcher may come back
        events = tail.topic.poll(keep)
        tail.polled_s = time.monotonic()
        if events or tail.topic.problem_count != problems:
            tail.changed_s, tail.owed = tail.polled_s, True
        urgent = tail.topic.problem_count != problems or any(event.kind not in CALM for event in events)
        if tail.owed and (urgent or tail.polled_s - tail.woken_s >= CALM_S):
            tail.owed, tail.woken_s = False, tail.polled_s
            self._wake(tail.watchers)
        self._tell(tail.topic.name, events)

    def _wake(self, watchers: set[Wake]) -> None:
        with self._lock:
            wakes = list(watchers)
        for wake in wakes:
            wake()

    def _tell(self, topic: str, events: list[Event]) -> None:
        for event in events:
            subject, _, what = event.kind.partition(".")
            if what == "state":
                self._on_change(subject, str(event.data.get("node", topic)), event)

    def _let_go(self, name: str, tail: _Tail, now_s: float) -> None:
        """Forget an unwatched topic that will hardly change; its summary stays."""
        if name == CLUSTER or tail.watchers or now_s - tail.changed_s < LINGER_S:
            return
        if tail.topic.get("state")[0] in TERMINAL_STATES:
            with self._lock:
                if not tail.watchers:
                    del self._tails[name]

    def _probe_cluster(self, now_s: float) -> None:
        """Notice a supervisor that died and a disk without room, which no event reports."""
        tail = self._open(CLUSTER)
        if not tail.watchers or now_s - self._probed_s < PROBE_S:
            return
        self._probed_s = now_s
        fields: dict[str, Any] = {}
        served = cluster.connectable(self._store) or self._other_host.serves(now_s)
        if not served:
            said = cluster.standing(self._store, tail.topic.get("state")[0])
            fields = said if said.get("state") == "lost" else {}
        if warning := room.warning(self._store.root):
            fields["room"] = warning
        if tail.topic.overlay(fields):
            self._wake(tail.watchers)

    def _scan(self) -> None:
        """Read the list of jobs and their states; report changes.

        New jobs are read for at most `SCAN_S`; the rest follows in later ticks, so that nothing waits for it.
        """
        ids = self._store.job_ids()
        if self._known is None:
            self._known = set(ids)
        self._forget_removed(set(ids))
        began_s = self._scanned_s = time.monotonic()
        newest = set(ids[: self._jobs_listed])
        looks = self._next_looks(ids)
        for job_id in looks:
            self._over.pop(job_id, None)
        for job_id in ids:
            if job_id in self._over and job_id not in newest:
                continue
            if job_id in self._summaries or time.monotonic() - began_s < SCAN_S:
                self._summarise(job_id, job_id in looks)
            else:
                self._scanned_s = float("-inf")
            self._drop_if_over(job_id, newest)
        self._publish(ids)

    def _drop_if_over(self, job_id: str, newest: set[str]) -> None:
        """Of the jobs that are older than the newest, the list has those that have not ended."""
        if job_id not in newest and job_id in self._summaries:
            view = self._summaries[job_id][1]
            if view["state"] in TERMINAL_STATES:
                self._over[job_id] = _is_archived(view)
                del self._summaries[job_id]

    def _publish(self, ids: list[str]) -> None:
        self._summaries = {job_id: self._summaries[job_id] for job_id in ids if job_id in self._summaries}
        older = len(ids) - len(self._summaries) - sum(self._over.values())
        before = ids[: self._jobs_listed][-1] if older else ""
        shown = (view for _, view in self._summaries.values() if not _is_archived(view))
        if self.jobs.tell(shown, older, before, time.monotonic()):
            self._wake(self._jobs_watchers)

    def _next_looks(self, ids: list[str]) -> set[str]:
        """Some of the listed jobs, others each time: people write tags on jobs that nobody follows any more."""
        listed = [job_id for job_id in ids if job_id in self._summaries]
        first = self._looked if self._looked < len(listed) else 0
        self._looked = first + LOOKS
        with self._lock:
            labelled, self._labelled = self._labelled, set()
        return set(listed[first : first + LOOKS]) | labelled

    def _has_news(self, job_id: str) -> bool:
        """Whether the journal has another file than at the last look; a first look says no."""
        try:
            stamp = os.stat(self._store.jobs / job_id / "events").st_mtime_ns
        except OSError:
            return False
        before, self._stamps[job_id] = self._stamps.get(job_id, stamp), stamp
        return before != stamp or abs(time.time() - stamp / 1e9) < SETTLED_S

    def _summarise(self, job_id: str, look: bool = False) -> None:
        known = self._summaries.get(job_id)
        tail = self._tails.get(job_id)
        if known is not None and (
            not (look and self._has_news(job_id)) if tail is None else known[0] == tail.topic.end
        ):
            return
        if known is None:
            self._has_news(job_id)  # what it is now, before its journal is read
        try:
            tail = tail or self._open(job_id)
        except UserError:
            return  # not a job's directory, or removed meanwhile
        fields = listed_fields(tail.topic, known and known[1], time.monotonic())
        self._summaries[job_id] = (tail.topic.end, fields)
        if known is None or look:
            self._let_go(job_id, tail, time.monotonic())

    def _forget_removed(self, ids: set[str]) -> None:
        with self._lock:
            for name in [name for name, tail in self._tails.items() if name not in ids and not tail.watchers]:
                if name != CLUSTER:
                    del self._tails[name]
            watched = [(name, tail) for name, tail in self._tails.items() if name != CLUSTER]
        for name, tail in watched:
            # The list may be older than the job.
            gone = name not in ids and not (self._store.jobs / name).is_dir()
            if tail.topic.overlay({"deleted": True} if gone else {}):
                self._wake(tail.watchers)
        self._over = {job_id: archived for job_id, archived in self._over.items() if job_id in ids}
        self._stamps = {name: stamp for name, stamp in self._stamps.items() if name in ids}


def _is_archived(view: View) -> bool:
    """Whether the lists leave a job out: one that runs is shown all the same."""
    return bool(view["labels"]["archived"]) and view["state"] in TERMINAL_STATES
