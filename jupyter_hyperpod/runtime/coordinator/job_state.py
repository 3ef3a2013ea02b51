"""The facts of one job as its coordinator knows them: its members, generation, session, step and phase.

All parts of the controller read it. Each fact is changed by the part that owns it; the phase by the controller alone.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from ...core.events import TERMINAL_STATES, Event
from ...core.spec import JobSpec
from ...core.views import View
from ...policy.growth import Schedule, count_at, unlisted
from ...storage.store import JobStore
from ..protocol import facts
from ..protocol.codec import decode
from .incidents import Incidents
from .phase import Phase, first
from .repeated_steps import RepeatedSteps
from .roster import Member, Roster

RESTART, RESIZE = BEGUN_ANEW = ("restart", "resize")  # why all ranks began the cell anew, as journaled


class JobState:
    """What is known of one job; ``opened`` and ``closed`` count the sessions of its cell so far."""

    def __init__(
        self,
        spec: JobSpec,
        view: View,
        incidents: Incidents,
        opened: int,
        closed: int,
        batches: Mapping[str, int] | None = None,
    ) -> None:
        self.spec = spec
        self.incidents = incidents
        self.roster = Roster()
        self.repeated = RepeatedSteps()
        self.store: JobStore | None = None
        self.expected: dict[str, dict[str, Any]] = {m["member"]: m for m in view["members"]}  # to register again
        self.target: int = view["target"] or spec.nodes
        # of generations.py
        self.generation: int = view["generation"]
        self.committed_in_generation = False
        self.planned_step = 0
        self.joins_between = 0  # newcomers join between two turns of the loop, of so many updates; 0: anywhere
        # of session_lifecycle.py
        self.session = _session(view["session"]) if opened else None
        self.session_index = max(1, opened)
        self.session_over = 0 < opened <= closed
        # the last step of this session that was committed
        self.session_step = view["step"] if view["session_number"] == opened else 0
        self.batches = _schedule(self.session, batches)  # of this session's steps, where the global batch may change
        self.finishing = False  # a member has come to the end of the session: nobody else enters or leaves
        # of the controller
        self.step: int = view["step"]
        self.step_time_s: float | None = view["step_time_s"]
        self.born_s = time.monotonic()
        self.sound_s = self.born_s  # when all members were last known to hold the same, correct state
        self.gathering_since_s = self.born_s
        self.phase = first(
            ended=view["state"] in TERMINAL_STATES,
            members=bool(self.expected),
            session=self.session is not None,
            session_over=self.session_over,
        )

    def begin_anew(self) -> None:
        """All ranks run the cell from its start, before its first session."""
        self.session, self.session_index, self.session_over, self.finishing = None, 1, False, False

    @property
    def trains(self) -> bool:
        """The ranks have opened a session, and it is not over."""
        return self.session is not None and not self.session_over

    @property
    def can_join(self) -> bool:
        """Whether a newcomer, which runs the cell from its start, can come to the present session."""
        earlier = self.session_index - 1
        return not earlier or (self.store is not None and self.store.session_end(earlier).exists())

    @property
    def ended(self) -> bool:
        """The job is over; only its farewell is left."""
        return self.phase is Phase.ENDED

    @property
    def micro_batches(self) -> int:
        """Micro-batches of the present step of the session."""
        assert self.session is not None
        return count_at(self.batches, self.session_step) if self.batches else self.session.micro_batches

    def ready_newcomers(self) -> list[Member]:
        """Those that wait at the session that is being trained."""
        return [m for m in self.roster.newcomers() if m.session and m.session.index == self.session_index]

    def room(self, newcomers: int) -> int:
        """How many of so many newcomers can join: up to the target, and to an allowed size."""
        here = len(self.roster.generation())
        return max(0, self.spec.range.fit(min(self.target, here + newcomers)) - here)


CELL_KINDS = ("session.opened", "session.closed", "decision.made")  # what `so_far` reads


def so_far(events: Iterable[Event]) -> tuple[int, int, int, dict[str, int]]:
    """How many sessions the cell has opened and closed since all ranks began it, and how often it was restarted.

    And the global batches of the last session, by step, where they may change.
    """
    opened = closed = restarts = 0
    batches: dict[str, int] = {}
    for event in events:
        if event.kind == "session.opened":
            opened, batches = opened + 1, {}
        if event.kind == "decision.made" and event.data["policy"] == "batch":
            batches = event.data["value"]
        closed += event.kind == "session.closed"
        if event.kind == "decision.made" and event.data["policy"] == "scripts":
            if event.data["value"] in BEGUN_ANEW:
                opened = closed = 0
                restarts += event.data["value"] == RESTART
    return opened, closed, restarts, batches


def _schedule(session: facts.SessionOpened | None, batches: Mapping[str, int] | None) -> Schedule:
    """The schedule that a coordinator before this one has journaled."""
    return unlisted(batches or {}, session.micro_batch) if session is not None else ()


def _session(journaled: Mapping[str, Any] | None) -> facts.SessionOpened | None:
    """The session as it was journaled when it was opened."""
    if journaled is None:
        return None
    session = decode({"type": facts.SessionOpened.wire, **journaled})
    assert isinstance(session, facts.SessionOpened)
    return session
