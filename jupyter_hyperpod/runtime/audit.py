"""Audits a journal: was every micro-batch of every committed step counted exactly once? Pure.

A record without an assignment has that of the same writer's record before it. A record of an old step stands for those
before it, too, once samples have been thinned: they count, but only the kept ones are checked.

A step may be journaled more than once: by a rank 0 that was lost just afterwards, and again by the members that had to
finish the step without it. Then both records must have the same loss, to the last bit, and each record must name every
micro-batch exactly once. Where the cell itself has gone back to a checkpoint, later steps are other ones. Records that
a member writes after it was fenced do not count.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..core.events import Event
from ..core.units import plural
from ..core.views import is_fenced

PROBLEMS_KEPT = 100
Assignment = list[Any]  # of [member, [micro-batch, …]]


@dataclass(frozen=True, slots=True)
class Audit:
    """``steps`` committed, ``micro_batches`` that count, ``redone`` after faults, ``repeated`` records of a step.

    ``miscounted`` are micro-batches that a step lacks, counts more than once, or that do not exist.
    """

    sessions: int
    steps: int
    micro_batches: int
    redone: int
    repeated: int
    miscounted: int
    members: int
    digest: str
    problems: tuple[str, ...]

    @property
    def sound(self) -> bool:
        """Nothing was lost, repeated or contradicted."""
        return not self.problems

    @property
    def sentence(self) -> str:
        """The verdict, for people."""
        if not self.steps:
            return "no step was committed: there is nothing to audit"
        computed = f"{plural(self.micro_batches, 'micro-batch')} by {plural(self.members, 'member')}"
        proof = f"{plural(self.steps, 'step')}, {computed}"
        if self.sound:
            return f"{proof}: every micro-batch of every step counts exactly once"
        return f"{proof}: {len(self.problems)} contradictions, the first: {self.problems[0]}"


@dataclass
class _Session:
    """The records of one session so far; ``losses`` is step -> exact loss."""

    name: str
    micro_batches: int | None
    losses: dict[int, str]
    first: int = 1
    miscounted: int = 0
    begins: dict[int, int] = field(default_factory=dict)  # step -> the first step for which its record stands
    counted: dict[int, int] = field(default_factory=dict)  # step -> micro-batches of its record, and of those before

    @property
    def thinned(self) -> int:
        """Steps for which the records of others stand."""
        return sum(step - first for step, first in self.begins.items())

    def go_back(self, step: int) -> None:
        """The cell has gone back to the checkpoint of a step: it computes later ones once more, perhaps otherwise."""
        for later in sorted(one for one in self.losses if one > step):
            loss, first, counted = self.losses.pop(later), self.begins.pop(later), self.counted.pop(later)
            if first <= step:  # it stands for steps up to that one, too
                self.losses[step], self.begins[step] = loss, first
                self.counted[step] = counted // (later - first + 1) * (step - first + 1)

    def check(self, event: Event, assignment: Assignment) -> list[str]:
        data = event.data
        step = data["step"]
        found = []
        count = Counter(leaf for _, leaves in assignment for leaf in leaves)
        said = data.get("micro_batches", self.micro_batches)
        expected = range(said if said is not None else max(count, default=-1) + 1)
        if missing := [leaf for leaf in expected if leaf not in count]:
            found.append(f"{self.name}step {step} lacks micro-batches {missing}")
        if twice := sorted(leaf for leaf, times in count.items() if times > 1):
            found.append(f"{self.name}step {step} counts micro-batches {twice} more than once")
        if unknown := sorted(leaf for leaf in count if leaf not in expected):
            found.append(f"{self.name}step {step} counts micro-batches {unknown}, which do not exist")
        self.miscounted += len(missing) + len(unknown) + sum(count[leaf] - 1 for leaf in twice)
        if step not in self.losses:
            self.begins[step] = step - data.get("steps", 1) + 1
            self.counted[step] = sum(count.values()) * data.get("steps", 1)
        known = self.losses.setdefault(step, data["loss_hex"])
        if known != data["loss_hex"]:
            found.append(f"{self.name}step {step} was committed with loss {known} and again with {data['loss_hex']}")
        return found

    def gaps(self) -> list[str]:
        """Check that no step is missing between the loaded checkpoint and the last step."""
        missing: list[int] = []
        expected = self.first
        for step in sorted(self.losses):
            missing += range(expected, self.begins[step])
            expected = step + 1
        return [f"{self.name}steps {missing} were never committed"] if missing else []


def audit(events: Iterable[Event]) -> Audit:
    """Audit a job's events, given in any order."""
    ordered = sorted(events, key=lambda event: event.time_s)
    opened = [event for event in ordered if event.kind == "session.opened"]
    closed = [event for event in ordered if event.kind == "session.closed"]
    fenced = {event.data["member"]: event.time_s for event in ordered if event.kind == "member.lost"}
    commits = [event for event in ordered if event.kind == "step.committed" and not is_fenced(fenced, event)]
    loaded = _loaded_steps(ordered)
    sessions: dict[int, _Session] = {}
    problems: list[str] = []
    owners: set[str] = set()
    repeated = 0
    back = deque(event for event in ordered if event.kind == "checkpoint.loaded" and event.data.get("asked"))
    for event, assignment in assignments(commits):
        _go_back(sessions, back, event)
        index = event.data.get("session", 1)
        if index not in sessions:
            about = opened[index - 1].data if index <= len(opened) else {}
            name = f"session {index}: " if len(opened) > 1 else ""
            sessions[index] = _Session(name, about.get("micro_batches"), {}, loaded.get(index, 0) + 1)
        repeated += event.data["step"] in sessions[index].losses
        owners |= {owner for owner, _ in assignment}
        problems += sessions[index].check(event, assignment)
    _go_back(sessions, back, None)
    for session in sessions.values():
        problems += session.gaps()
    for index, event in enumerate(closed, start=1):
        last = max(sessions[index].losses, default=0) if index in sessions else loaded.get(index, 0)
        if event.data["step"] != last:
            problems.append(f"a session closed at step {event.data['step']}, the last one committed is {last}")
    steps = sum(len(session.losses) + session.thinned for session in sessions.values())
    return Audit(
        sessions=len(sessions),
        steps=steps,
        micro_batches=sum(sum(session.counted.values()) for session in sessions.values()),
        redone=sum(event.data["redone"] for event in commits),
        repeated=repeated,
        miscounted=sum(session.miscounted for session in sessions.values()),
        members=len(owners),
        digest=str(closed[-1].data["digest"]) if closed else "",
        problems=tuple(problems[:PROBLEMS_KEPT]),
    )


def _go_back(sessions: dict[int, _Session], back: deque[Event], commit: Event | None) -> None:
    """Let sessions go back where their cells have before this commit, by its generation: clocks may be apart."""
    while back and (commit is None or commit.data["generation"] >= back[0].data["generation"]):
        data = back.popleft().data
        if (session := sessions.get(data["session"])) is not None:
            session.go_back(data["step"])


def assignments(commits: Iterable[Event]) -> Iterator[tuple[Event, Assignment]]:
    """Each record with its assignment: the members and the micro-batches that they computed. ``commits`` in order."""
    known: dict[str, Assignment] = {}
    for event in commits:
        known[event.writer] = event.data.get("assignment", known.get(event.writer, []))
        yield event, known[event.writer]


def _loaded_steps(ordered: Iterable[Event]) -> dict[int, int]:
    """Session -> step of the checkpoint it began from."""
    found: dict[int, int] = {}
    for event in ordered:
        if event.kind == "checkpoint.loaded":
            found.setdefault(event.data.get("session", 1), event.data["step"])
        elif event.kind == "step.committed":
            found.setdefault(event.data.get("session", 1), 0)
    return found
