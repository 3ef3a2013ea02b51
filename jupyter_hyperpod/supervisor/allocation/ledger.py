"""A job's requests to its scheduler and the state of each node, kept in the journal because schedulers forget."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace

from ...backends.base import Scheduler
from ...backends.types import Element, ElementPhase
from ...core.events import GATEWAY
from ...policy.membership import NODE_GONE
from ...storage.journal_search import Search, read_kinds
from ...storage.store import ENDPOINT_FILE, write_private
from ..entry import COORDINATOR, WRITER, JobEntry
from ..reconcile import QUICK_LIMIT

FAILED_STARTS = 2  # once can be chance
REST_S = 30.0
BEFORE_S = 5.0  # by so much a queue may be older than what was journaled of it


class Presence:
    """Which nodes have joined the job and which were lost, by its head's events; times since the Unix epoch.

    ``lost_s``: when each node was lost that has not joined again. ``joined_s``: when each joined last. ``working_s``:
    when each was of use last, in a deployment as one of those that answer. ``members``: those that answer now.
    ``begun``: members have computed together. ``formed_s``: when those were last named that do.
    """

    def __init__(self, entry: JobEntry) -> None:
        self._deployed = entry.spec.serve is not None
        kinds = ("member.lost", "member.joined", "generation.formed")
        self._search = Search(entry.job.events, kinds, GATEWAY if self._deployed else COORDINATOR)
        self.members: set[str] = set()
        self.begun = False
        self.formed_s = -math.inf
        self.lost_s: dict[str, float] = {}
        self._member: dict[str, str] = {}  # node -> the one that joined there last
        self.joined_s: dict[str, float] = {}
        self.working_s: dict[str, float] = {} if self._deployed else self.joined_s

    def joined(self, names: Iterable[str]) -> float:
        """When one of these nodes joined last; minus infinity where none has."""
        return max((self.joined_s.get(name, -math.inf) for name in names), default=-math.inf)

    def keeps(self, names: Iterable[str]) -> bool:
        """One of these nodes has been there since the members were last named, and so has the job's state."""
        return any(self.joined_s.get(name, math.inf) <= self.formed_s and name not in self.lost_s for name in names)

    def poll(self, budget_s: float = math.inf) -> bool:
        """Read new events for a limited time; False where more are left."""
        found = self._search.poll(budget_s)
        for event in found or ():
            if event.kind == "generation.formed" and event.data["generation"] > 0:  # 0 is one that only has been scaled
                self.begun, self.formed_s = True, event.time_s
            if event.kind == "generation.formed" and self._deployed:
                self.members = {member["node"] for member in event.data["members"]}
                self.working_s |= dict.fromkeys(self.members, event.time_s)
            elif event.kind == "member.lost" and event.data["cause"] in NODE_GONE:
                node, member = event.data["node"], event.data["member"]
                if self._member.get(node, member) == member:  # its successor is there, perhaps
                    self.lost_s[node] = event.time_s
            elif event.kind == "member.joined":
                self._member[event.data["node"]] = event.data["member"]
                self.joined_s[event.data["node"]] = event.time_s
                self.lost_s.pop(event.data["node"], None)
        return found is not None


@dataclass
class Seen:
    """An element as it was journaled last; ``began_s`` is when it was first seen to run, on the monotonic clock.

    ``idle_s``: it did not run on its node before this time, in seconds since the Unix epoch; 0 if that is unknown.
    ``requeued``: it waits again, after it had a node.
    """

    element: Element
    began_s: float | None = None
    idle_s: float = 0.0
    requeued: bool = False

    def follows(self, before: Seen | None) -> None:
        """Take over what was known of the same element before."""
        if before is None:
            return
        if self.element.phase is ElementPhase.QUEUED:
            self.requeued = before.requeued or (
                before.element.active and before.element.phase is not ElementPhase.QUEUED
            )
        if before.element.node == self.element.node:
            self.began_s, self.idle_s = before.began_s, before.idle_s


class Ledger:
    """A job's requests. ``batches``: number -> (part, how many). ``seen``: name -> the element's newest state.

    ``dismissed``: names of those that were told to end, so that their end is no failure, whatever its name.
    ``rest_until_s``: nothing is asked for before, on the monotonic clock.
    """

    def __init__(self, entry: JobEntry, scheduler: Scheduler) -> None:
        self._entry = entry
        self._scheduler = scheduler
        self._record = entry.job.path / f"{entry.spec.backend}.json"
        self.presence = Presence(entry)
        self._read_s = 0.0  # when the queue was read last, in seconds since the Unix epoch
        self._failed_s = 0.0  # when an element failed last, in seconds since the Unix epoch
        self._failed_starts: dict[str, list[float]] = {}  # node -> when elements failed before they joined, in a row
        self._returned = 0  # how many elements in a row were requeued before they joined
        self.dismissed: set[str] = set()
        self.rest_until_s = 0.0
        self._open_s: float | None = None  # since when nodes find the job's coordinator, on the monotonic clock
        self._lookup: Future[list[Element]] | None = None
        self.batches = dict(self._recorded())
        self.seen = self._recalled()

    @property
    def running(self) -> list[Element]:
        """Elements that run, as far as is known."""
        return [seen.element for seen in self.seen.values() if seen.element.phase is ElementPhase.RUNNING]

    def unfit_nodes(self, since_s: float) -> set[str]:
        """Nodes on which elements keep failing before they join, though others run: what they lack, others have."""
        return {
            node
            for node, ends_s in self._failed_starts.items()
            if sum(end_s > since_s for end_s in ends_s) >= FAILED_STARTS
        }

    def _heard(self, seen: Seen) -> bool:
        """The job's coordinator has heard of an element since it began."""
        return self._is_in(self.presence.joined_s, seen)

    def _has_worked(self, seen: Seen) -> bool:
        """It was of use since it began."""
        return self._is_in(self.presence.working_s, seen)

    @staticmethod
    def _is_in(times_s: Mapping[str, float], seen: Seen) -> bool:
        return any(times_s.get(node, -math.inf) >= seen.idle_s for node in seen.element.names)

    def lost(self, now_s: float) -> dict[str, float]:
        """Elements that run where the job has lost the node -> seconds since then."""
        self.presence.poll()
        since_s, found, clock_s = self.presence.lost_s, {}, time.time()
        for name, seen in self.seen.items():
            lost_s = next((max(0.0, clock_s - since_s[node]) for node in seen.element.names if node in since_s), None)
            # one that began there afterwards has nothing to do with it
            if lost_s is not None and seen.began_s is not None and seen.began_s < now_s - lost_s:
                found[name] = lost_s
        return found

    def silent(self, now_s: float) -> dict[str, float]:
        """Elements that run and have never joined the job -> seconds for which they could have."""
        self.presence.poll()
        found = {}
        for name, seen in self.seen.items() if self._open_s is not None else ():
            if seen.element.phase is not ElementPhase.RUNNING or seen.began_s is None:
                continue
            if not self._heard(seen):
                found[name] = now_s - max(seen.began_s, self._open_s or 0.0)
        return found

    def record(self, batch: int, part: str, count: int) -> None:
        """Remember what was submitted, also for the next supervisor. Raises StoreError."""
        self.batches[batch] = (part, count)
        lines = [[batch, part, count] for batch, (part, count) in self.batches.items()]
        write_private(self._record, json.dumps(lines).encode())

    def update(self, elements: list[Element], now_s: float) -> None:
        """Journal what has changed; ask accounting for elements that the queue has forgotten."""
        for batch in {element.batch for element in elements} - self.batches.keys():
            # submitted by an earlier supervisor that could not record it any more
            mine = [element for element in elements if element.batch == batch]
            self.record(batch, mine[0].part, self._count(batch, {element.name for element in mine}))
        if self._open_s is None and (self._entry.job.path / ENDPOINT_FILE).exists():
            self._open_s = now_s
        for element in elements:
            self._note(element, now_s)
        missing = self._missing(elements)
        if self._lookup is not None and self._lookup.done():
            wanted = {element.name for element in missing}
            for element in self._lookup.result():
                if element.name in wanted:
                    self._note(element, now_s)
            self._lookup = None
        elif self._lookup is None and missing:
            self._lookup = self._scheduler.ends(missing)
        self._read_s = time.time() - (time.monotonic() - self._scheduler.fresh_s)

    def _count(self, batch: int, names: set[str]) -> int:
        """How many elements a batch has of which these are known."""
        count = len(names)
        while not names <= set(self._scheduler.names(batch, count)):
            count += 1
        return count

    def _missing(self, elements: list[Element]) -> list[Element]:
        """Elements whose end nobody has told, and that the scheduler does not show."""
        shown = {element.name for element in elements}
        job = self._entry.job.id
        blank = [
            Element(name, "", ElementPhase.QUEUED, job=job, part=part, batch=batch)
            for batch, (part, count) in self.batches.items()
            for name in self._scheduler.names(batch, count)
        ]
        known = [self.seen[e.name].element if e.name in self.seen else e for e in blank if e.name not in shown]
        return [element for element in known if element.active]

    def _note(self, element: Element, now_s: float) -> None:
        before = self.seen.get(element.name)
        seen = Seen(element)
        seen.follows(before)
        if not element.waits and seen.began_s is None:
            seen.began_s, seen.idle_s = now_s if element.phase is ElementPhase.RUNNING else None, self._read_s
        self.seen[element.name] = seen
        if before and seen.requeued and not before.requeued:
            self._count_returned(before, now_s)
        if element.waits:
            self.dismissed.discard(element.name)  # it begins once more
        if before is None or (before.element.state, before.element.node) != (element.state, element.node):
            reason = "" if element.reason == "None" else element.reason
            facts = {"element": element.name, "part": element.part, "state": element.state, "node": element.node}
            who = {"scheduler": self._entry.backend.title}
            self._entry.journal.write("allocation.changed", who | facts | {"reason": reason})
            if not element.active:
                self._ended(seen, now_s)

    def _ended(self, seen: Seen, now_s: float) -> None:
        self.presence.poll()
        name, node = seen.element.name, seen.element.node
        failed = seen.element.phase is ElementPhase.FAILED and name not in self.dismissed
        if self._has_worked(seen):
            self._failed_starts.pop(node, None)
        elif failed and node and self._works():
            self._count_failed_start(seen.element, now_s)
            return
        if failed:
            self._count_failure(seen, now_s)

    def _works(self) -> bool:
        """Whether the job itself can run: a node has joined since the last failure, or runs it now."""
        if max(self.presence.working_s.values(), default=-math.inf) >= self._failed_s:
            return True
        running = (other for other in self.seen.values() if other.element.phase is ElementPhase.RUNNING)
        return any(self._has_worked(other) for other in running)

    def _count_failed_start(self, element: Element, now_s: float) -> None:
        """It is the node: the job goes on without it, and tries it less and less often where there is no other."""
        ends_s = self._failed_starts.setdefault(element.node, [])
        ends_s.append(now_s)
        self._failed_s = time.time()
        self._entry.agents = replace(self._entry.agents, quick=0)
        if len(ends_s) >= FAILED_STARTS:
            self._rest(now_s, len(ends_s) - 1)
        if len(ends_s) == FAILED_STARTS:
            why = f"{FAILED_STARTS} elements in a row ended there before they joined; {self._said(element)}"
            self._entry.warn(f"{element.node} is avoided where enough others serve: {why}")

    def _count_returned(self, before: Seen, now_s: float) -> None:
        """The scheduler requeues elements that never join; request less and less often then."""
        self.presence.poll()
        self._returned = 0 if self._heard(before) else self._returned + 1
        if self._returned > 1:
            self._rest(now_s, self._returned - 1)

    def _count_failure(self, seen: Seen, now_s: float) -> None:
        """End a job of which nothing gets further; while some node may still join, only try less and less often."""
        entry, element = self._entry, seen.element
        lived_s = now_s - seen.began_s if seen.began_s is not None else 0.0
        entry.agents = entry.agents.after(lived_s, None if self._works() else 1)
        self._failed_s = time.time()
        if self.running and (over := entry.agents.quick - QUICK_LIMIT) >= 0:
            self._rest(now_s, over + 1)
        if reason := entry.agents.too_many(entry.spec.max_restarts, sys.maxsize if self.running else QUICK_LIMIT):
            what = f"{element.name} on {element.node or 'no node'} is {element.state}"
            entry.end("failed", f"{entry.backend.title}'s {what}: {reason}; {self._said(element)}", time.monotonic())

    def _rest(self, now_s: float, times: int) -> None:
        """Ask for nothing for a while, twice as long each time."""
        self.rest_until_s = now_s + min(2.0**times, REST_S)

    def _said(self, element: Element) -> str:
        return self._entry.log_tail(self._scheduler.log(element.name))

    def _recorded(self) -> Iterator[tuple[int, tuple[str, int]]]:
        try:
            for batch, part, count in json.loads(self._record.read_text()):
                yield int(batch), (str(part), int(count))
        except (OSError, ValueError, TypeError):
            return

    def _recalled(self) -> dict[str, Seen]:
        """What an earlier supervisor has seen last, by name."""
        found: dict[str, Seen] = {}
        waited_s: dict[str, float] = {}
        offset_s = time.monotonic() - time.time()
        for event in read_kinds(self._entry.job.events, ("allocation.changed",), WRITER) if self.batches else ():
            data = event.data
            name, words = str(data["element"]), (data["state"], data["node"], data["reason"])
            element = self._scheduler.element(name, *words, self._entry.job.id, data["part"])
            if element is None:
                continue
            seen = Seen(element)
            seen.follows(found.get(name))
            if element.waits:
                waited_s[name] = event.time_s
            elif element.phase is ElementPhase.RUNNING and seen.began_s is None:
                seen.began_s = event.time_s + offset_s
                seen.idle_s = max(0.0, waited_s.get(name, 0.0) - BEFORE_S)
            found[name] = seen
        return found
