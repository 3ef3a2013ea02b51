"""Cells and scripts without hp.Session: every rank is started again after a loss, and when the job changes in size.

An elastic event reaches all ranks in the same call of elastic_event_detected(). Each agent writes the number of a later
call into memory that its worker reads (`progress`), and reports whether the worker had not made that call yet. The
number is final when that is so for all.
A rank that comes to an undecided call waits there. It waits for agents, never for another rank, so a rank that stands
in a collective holds nobody up.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...core.units import plural
from ...policy import scripts as policy
from ..protocol import facts, orders
from ..protocol.dispatch import handles
from .actions import Action, Actions, Decide, End, Enter, ReleaseMember, SayState, Send
from .incidents import RUNG_NODE, RUNG_PROCESS
from .job_state import RESIZE, RESTART, JobState
from .phase import Phase
from .roster import Member

ANSWER_S = 1.0


@dataclass
class ElasticEvent:
    """An event on its way to the ranks: at which call, who has agreed, and whether it is final."""

    reason: str
    at: int = 0
    tries: int = 0
    proposed_s: float = 0.0
    answers: dict[str, bool] = field(default_factory=dict)
    final: bool = False
    first_end_s: float | None = None


class Scripts:
    """Looks after ranks outside any session. ``restarts``: how often they were started again."""

    def __init__(self, state: JobState, restarts: int = 0) -> None:
        self._state = state
        self.restarts = restarts
        self._troubles: list[tuple[policy.Trouble, float]] = []
        self._alone: list[Member] = []  # lost their worker, not their agent
        self._event: ElasticEvent | None = None
        self._room_since_s: float | None = None
        self._nodes: set[str] = set()

    # ---- losses and errors --------------------------------------------------------------------------------

    def lost(self, member: Member, cause: str, detail: str) -> Actions:
        """A rank is gone."""
        if not member.channel.closed:
            self._alone.append(member)
        yield from self.trouble(member.rank or 0, "lost", f"rank {member.rank} on {member.node}: {cause} ({detail})")

    def failed(self, member: Member, text: str, communication: bool) -> Actions:
        """A rank's cell raised; the echo of a loss, or an error of the program."""
        member.failed = True
        yield from self.trouble(member.rank or 0, "communication" if communication else "error", text)

    def trouble(self, rank: int, kind: Any, text: str) -> Actions:
        """Note a trouble of ``rank``; its ``kind`` is one of `policy.scripts`."""
        self._troubles.append((policy.Trouble(rank, kind, text, 0.0), time.monotonic()))
        yield from self._judge(time.monotonic())

    def _judge(self, now: float) -> Actions:
        state = self._state
        found = [policy.Trouble(t.rank, t.kind, t.text, now - since_s) for t, since_s in self._troubles]
        decision = policy.judge(found, self.restarts, state.spec.script_restarts)
        if decision.value == "fail":
            yield End("failed", decision.reason)
        elif decision.value == "restart":
            self.restarts += 1
            yield from self._begin_anew(RESTART, decision.reason)

    # ---- the same ranks anew, or others -------------------------------------------------------------------

    def _begin_anew(self, value: str, reason: str) -> Actions:
        state = self._state
        yield Decide("scripts", value, reason)
        yield SayState("recovering", reason)
        members = state.roster.generation()
        self._nodes = {member.node for member in members}
        state.begin_anew()
        for member in [*members, *(m for m in state.roster.newcomers() if m.running)]:
            yield ReleaseMember(member, begins_again=not member.preempted)
        for member in self._alone:
            yield Send(member, orders.Restart())
        self._alone, self._troubles, self._event, self._room_since_s = [], [], None, None
        yield Enter(Phase.GATHERING)

    def began(self, members: Sequence[Member], reason: str) -> Actions:
        """All ranks run again, in a generation of their own."""
        state = self._state
        state.incidents.fenced(state.generation, RUNG_PROCESS)
        fresh = [m for m in members if m.node not in self._nodes]
        for incident in list(state.incidents.open):
            same = next((m for m in members if m.node == incident.node), None)
            newcomer = same or (fresh.pop(0) if fresh else None)
            if newcomer is not None:
                state.incidents.replaced(newcomer.member, newcomer.node, RUNG_NODE)
                state.incidents.rejoined(newcomer.member, "it begins with the script's own checkpoint")
        state.incidents.restarted(f"the script runs again with {plural(len(members), 'rank')}, restart {self.restarts}")
        yield SayState("running", reason)

    # ---- elastic events -----------------------------------------------------------------------------------

    def tick(self, now: float) -> Actions:
        """Look whether the ranks should change in number, and how an event fares."""
        state = self._state
        if state.session is not None or state.phase is not Phase.RUNNING_SCRIPT:
            return
        if self._troubles:
            yield from self._judge(now)
        elif self._event is None:
            yield from self._look(now)
        elif not self._event.final and now - self._event.proposed_s > ANSWER_S:
            yield from self._propose(self._event)
        elif self._event.first_end_s is not None and now - self._event.first_end_s > state.spec.grace_s:
            yield from self._begin_anew(RESIZE, f"{self._event.reason}; some ranks did not end by themselves")

    def _look(self, now: float) -> Actions:
        state = self._state
        members = state.roster.generation()
        if not members or any(m.calls == 0 or m.done or not m.alive for m in members):
            return  # a script that never asks is left alone
        here, newcomers = len(members), len(state.roster.newcomers())
        preempted = sum(m.preempted for m in members)
        grows = here < state.target and newcomers > 0
        self._room_since_s = (self._room_since_s or now) if grows else None
        waited_s = now - (self._room_since_s or now)
        decision = policy.resize(here, preempted, newcomers, state.target, state.spec.range, waited_s)
        if decision.value or preempted:
            self._event = ElasticEvent(decision.reason)
            yield from self._propose(self._event)

    def _propose(self, event: ElasticEvent) -> Actions:
        members = self._state.roster.generation()
        event.at = policy.call_number([m.calls for m in members], event.tries)
        event.tries, event.proposed_s, event.answers = min(event.tries + 1, 8), time.monotonic(), {}
        yield from self._tell(members, event)

    def _tell(self, members: Sequence[Member], event: ElasticEvent) -> Actions:
        for member in members:
            yield Send(member, orders.CallElasticEvent(member.member, event.at, event.final))

    @handles(facts.ElasticAnswer)
    def answered(self, member: Member, answer: facts.ElasticAnswer) -> Actions:
        """An agent says whether its worker had not come to the call yet."""
        event = self._event
        member.calls = max(member.calls, answer.calls)
        if event is None or event.final or answer.at != event.at:
            return
        event.answers[member.member] = answer.ok
        members = self._state.roster.generation()
        if any(m.member not in event.answers for m in members):
            return
        if not all(event.answers.values()):
            yield from self._propose(event)
            return
        event.final = True
        yield Decide("scripts", {"call": event.at}, f"{event.reason}: every rank is told in call {event.at}")
        yield from self._tell(members, event)

    def taken_over(self) -> Actions:
        """A new coordinator: what one agent knows as final is final for all, and nothing else is."""
        members = self._state.roster.generation()
        final = next((m.told.at for m in members if m.told and m.told.final), None)
        if final is not None:
            self._event = ElasticEvent("an elastic event that the coordinator before had begun", final, final=True)
            yield from self._tell(members, self._event)
        elif any(m.told for m in members):
            yield from self._tell(members, ElasticEvent(""))

    def ended(self, members: Sequence[Member]) -> Generator[Action, None, bool]:
        """Whether the ranks that have ended so far did so for an elastic event; starts all again when all have."""
        event = self._event
        saw = [m for m in members if m.done and m.saw_event]
        if event is None or not saw:
            return False
        event.first_end_s = event.first_end_s or time.monotonic()
        if all(m.done and m.exited is not None for m in members):
            yield from self._begin_anew(RESIZE, f"{event.reason}; all ranks have saved and ended")
        return True
