"""Members that leave alive: at a step boundary, so that nobody else restarts and nothing is computed twice.

A member that is asked to leave finishes the named step, reports that, and waits; the others form a generation without
it and continue. It has computed nothing of the next step, so nothing is lost.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence

from ...core import backends
from ...core.health import BY_HAND
from ...policy import membership
from ..protocol import facts, orders
from ..protocol.dispatch import handles
from .actions import Action, Actions, BeginGeneration, Decide, JournalGeneration, ReleaseMember, Send
from .job_state import JobState
from .joining import Joining
from .phase import Phase
from .roster import Member

TOGETHER_S = 0.2
# a scheduler's replacement comes before the node that it replaces is told to leave
REPLACEMENT_S = 10.0


class Draining:
    """Which members were asked to leave and which have left; the next generation forms without them."""

    def __init__(self, state: JobState, joining: Joining) -> None:
        self._state = state
        self._joining = joining
        self.lends = False  # nodes that its owner wants: it keeps no spare meanwhile
        self._parted: list[str] = []  # who has left at a step boundary since the last plan
        self._left_since_s: float | None = None
        self._unsettled_since_s: float | None = None
        self._surplus_since_s: float | None = None
        owns_nodes = backends.load(state.spec.backend).capabilities.owns_nodes
        self._surplus_rest_s = 0.0 if owns_nodes else REPLACEMENT_S
        self._reason = ""

    @handles(facts.NodePreempted)
    def preempted(self, member: Member, leaving: facts.NodePreempted) -> Actions:
        """The node of a member will be taken away."""
        if (yield from self._marked(member, "membership", f"{member.node} is preempted while it stands by")):
            reason = f"{member.node} is preempted: rank {member.rank} has {leaving.grace_s:g} s to leave"
            yield Decide("membership", f"preempt {member.node}", reason)

    def unhealthy(self, member: Member, cause: str, reason: str) -> Actions:
        """Something was found at a member's node that makes it leave: an incident, but nothing is lost."""
        if not (yield from self._marked(member, "healing", f"{member.node} stands by: {reason}")):
            return
        state = self._state
        yield Decide("healing", f"drain {member.node}", reason)
        if state.trains:
            since_s = time.monotonic() if cause == BY_HAND else None  # a probe does not know since when
            member.ailment = state.incidents.note(member.member, member.node, member.rank, cause, reason, since_s)

    def dismiss(self, member: Member, reason: str) -> Actions:
        """A member is to leave for good, because of ``reason``."""
        if not member.preempted:
            member.preempted = True
            yield Decide("balance", f"dismiss {member.node}", reason)

    def parted(self) -> list[str]:
        """Who has left at a step boundary since this was asked last."""
        parted, self._parted = self._parted, []
        return parted

    @handles(facts.MemberLeft)
    def left(self, member: Member, left: facts.MemberLeft) -> None:
        """A member has finished its last step."""
        if member.leaving:
            member.left = left.step
            self._left_since_s = self._left_since_s or time.monotonic()

    def tick(self, now: float) -> Actions:
        """Ask those who have to leave, and go on without those who have left."""
        yield from self._give_back(now)
        yield from self._release_the_done()
        state = self._state
        members = state.roster.generation()
        if not any(member.left is not None for member in members):
            self._left_since_s = None
        if state.phase is not Phase.TRAINING:
            self._unsettled_since_s = None
        elif self._left_since_s is not None:
            yield from self._part(members, now)
        elif state.committed_in_generation:
            yield from self._ask(members, now)

    def _give_back(self, now: float) -> Actions:
        """Release newcomers for which there is no place: their nodes were lent, or the owner wants fewer."""
        state = self._state
        newcomers = state.roster.newcomers()
        spares = 0 if self.lends else state.spec.spares
        staying = sum(not member.preempted for member in state.roster.generation())
        decision = membership.surplus(staying, len(newcomers), state.target, spares)
        if not decision.value or state.phase is Phase.ADOPTING:  # who is still to come may be a member
            self._surplus_since_s = None
            return
        self._surplus_since_s = self._surplus_since_s or now
        if now - self._surplus_since_s < self._surplus_rest_s:
            return
        newcomers.sort(key=lambda m: (m.snapshot is None, m.session is None, m.spare, m.order))
        over = newcomers[-decision.value :]
        yield Decide("membership", {"release": [member.node for member in over]}, decision.reason)
        for member in over:
            yield ReleaseMember(member)
        if state.generation:
            yield JournalGeneration(decision.reason)

    def _release_the_done(self) -> Actions:
        """After the last session, ranks beyond the target whose cell has ended need not wait for the others."""
        state = self._state
        if state.session is None or state.phase is not Phase.RUNNING_SCRIPT:
            return
        here = [m for m in state.roster.generation() if not m.channel.closed and not m.leaving]
        done = [m for m in reversed(here) if m.done and m.exited is not None]
        for member in done[: max(0, len(here) - state.target)]:
            member.leaving = True
            yield Decide("membership", {"release": [member.node]}, f"rank {member.rank} has ended its cell")
            yield Send(member, orders.Release())

    def _marked(self, member: Member, policy: str, at_rest: str) -> Generator[Action, None, bool]:
        """Release a spare at once; mark a member, and return True if it has to leave at the end of a step."""
        if member.preempted:
            return False
        member.preempted = True
        if member.rank is None:
            yield Decide(policy, f"release {member.node}", at_rest)
            yield ReleaseMember(member)
        return member.rank is not None

    def _ask(self, members: Sequence[Member], now: float) -> Actions:
        state = self._state
        allowed = state.spec.range
        settled = allowed.allows(len(members)) or len(members) >= state.target
        self._unsettled_since_s = None if settled else self._unsettled_since_s or now
        preempted = {member.member for member in members if member.preempted}
        if settled and not preempted and len(members) <= state.target:
            return  # of many members most looks end here
        unsettled_s = now - (self._unsettled_since_s or now)
        decision = membership.leavers(state.roster.candidates(()), preempted, state.target, allowed, unsettled_s)
        asked = [m for m in members if m.member in decision.value and not m.leaving]
        if not asked:
            return
        step = membership.leave_after(state.step, state.step_time_s)
        self._reason = decision.reason
        yield Decide("membership", {"leave": [m.node for m in asked], "after": step}, decision.reason)
        for member in asked:
            member.leaving = True
            member.stands_by = self._unsettled_since_s is not None and not member.preempted
            yield Send(member, orders.LeaveAfter(state.generation, step))

    def _part(self, members: Sequence[Member], now: float) -> Actions:
        assert self._left_since_s is not None
        leaving = [m for m in members if m.leaving]
        gone = [m for m in leaving if m.left is not None]
        together = len(gone) == len(leaving) and self._state.step >= max(m.left or 0 for m in gone)
        if not together and now - self._left_since_s < TOGETHER_S:
            return
        self._left_since_s = None
        for member in gone:
            self._parted.append(member.member)
            if member.ailment is not None:
                self._state.incidents.departed(member.ailment)
            yield ReleaseMember(member, begins_again=member.stands_by)
        reason = f"{self._reason} after step {max(m.left or 0 for m in gone)}"
        yield BeginGeneration(reason, tuple(self._joining.entrants(1).value))
