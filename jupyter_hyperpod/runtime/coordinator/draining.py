"""Members that leave alive: at a step boundary, so that nobody else restarts and nothing is computed twice.

A member that is asked to leave finishes the step it is told, says so and waits; the others form a generation without
it and go on. It computed nothing of the step that follows, so nothing of that step is lost.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ...core.health import BY_HAND
from ...policy import membership
from .job_state import Ensemble
from .phase import Phase
from .roster import Member

TOGETHER_S = 0.2
# a scheduler's replacement comes before the node that it replaces is told to leave
REPLACEMENT_S = 10.0


class Departures:
    """Who has been asked to leave, and who has; ``regroup(reason)`` forms the generation without them."""

    def __init__(self, ensemble: Ensemble, regroup: Callable[[str], None]) -> None:
        self._ensemble = ensemble
        self._regroup = regroup
        self._left_since_s: float | None = None
        self._unsettled_since_s: float | None = None
        self._surplus_since_s: float | None = None
        self._reason = ""

    def preempted(self, member: Member, grace_s: float) -> None:
        """The node of a member will be taken away after ``grace_s``."""
        if self._marked(member, "membership", f"{member.node} is preempted while it stands by"):
            reason = f"{member.node} is preempted: rank {member.rank} has {grace_s:g} s to leave"
            self._ensemble.decided("membership", f"preempt {member.node}", reason)

    def unhealthy(self, member: Member, cause: str, reason: str) -> None:
        """Something was found at a member's node that makes it leave: an incident, but nothing is lost."""
        if not self._marked(member, "healing", f"{member.node} stands by: {reason}"):
            return
        ensemble = self._ensemble
        ensemble.decided("healing", f"drain {member.node}", reason)
        if ensemble.trains:
            since_s = time.monotonic() if cause == BY_HAND else None  # a probe does not know since when
            member.ailment = ensemble.incidents.ailing(member.member, member.node, member.rank, cause, reason, since_s)

    def dismiss(self, member: Member, reason: str) -> None:
        """A member is to leave for good, because of ``reason``."""
        if not member.preempted:
            member.preempted = True
            self._ensemble.decided("balance", f"dismiss {member.node}", reason)

    def left(self, member: Member, step: int) -> None:
        """A member has finished its last step."""
        member.left = step
        self._left_since_s = self._left_since_s or time.monotonic()

    def tick(self, now: float) -> None:
        """Ask those who have to leave, and go on without those who have left."""
        self._give_back(now)
        self._release_the_done()
        ensemble = self._ensemble
        members = ensemble.roster.generation()
        if not any(member.left is not None for member in members):
            self._left_since_s = None
        if ensemble.phase is not Phase.TRAINING:
            self._unsettled_since_s = None
        elif self._left_since_s is not None:
            self._part(members, now)
        elif ensemble.committed_in_generation:
            self._ask(members, now)

    def _give_back(self, now: float) -> None:
        """Release newcomers for which there is no place: their nodes were lent, or the owner wants fewer."""
        ensemble = self._ensemble
        newcomers = ensemble.roster.newcomers()
        spares = 0 if ensemble.lends else ensemble.spec.spares
        staying = sum(not member.preempted for member in ensemble.roster.generation())
        decision = membership.surplus(staying, len(newcomers), ensemble.target, spares)
        if not decision.value or ensemble.phase is Phase.ADOPTING:  # who is still to come may be a member
            self._surplus_since_s = None
            return
        self._surplus_since_s = self._surplus_since_s or now
        if now - self._surplus_since_s < (0.0 if ensemble.spec.backend == "local" else REPLACEMENT_S):
            return
        newcomers.sort(key=lambda m: (m.snapshot is None, m.session is None, m.spare, m.order))
        over = newcomers[-decision.value :]
        ensemble.decided("membership", {"release": [member.node for member in over]}, decision.reason)
        for member in over:
            ensemble.release(member)
        if ensemble.generation:
            ensemble.journal_generation(decision.reason)

    def _release_the_done(self) -> None:
        """After the last session, ranks beyond the target whose cell has ended need not wait for the others."""
        ensemble = self._ensemble
        if ensemble.session is None or ensemble.phase is not Phase.RUNNING_SCRIPT:
            return
        here = [m for m in ensemble.roster.generation() if not m.channel.closed and not m.leaving]
        done = [m for m in reversed(here) if m.done and m.exited is not None]
        for member in done[: max(0, len(here) - ensemble.target)]:
            member.leaving = True
            ensemble.decided("membership", {"release": [member.node]}, f"rank {member.rank} has ended its cell")
            member.channel.send({"type": "release"})

    def _marked(self, member: Member, policy: str, at_rest: str) -> bool:
        """Mark a member that has to go, and release one that only stands by; whether it is to leave at a step's end."""
        if member.preempted:
            return False
        member.preempted = True
        if member.rank is None:
            self._ensemble.decided(policy, f"release {member.node}", at_rest)
            self._ensemble.release(member)
        return member.rank is not None

    def _ask(self, members: list[Member], now: float) -> None:
        ensemble = self._ensemble
        allowed = ensemble.spec.range
        settled = allowed.allows(len(members)) or len(members) >= ensemble.target
        self._unsettled_since_s = None if settled else self._unsettled_since_s or now
        preempted = {member.member for member in members if member.preempted}
        decision = membership.leavers(
            ensemble.roster.candidates(()),
            preempted,
            ensemble.target,
            allowed,
            now - (self._unsettled_since_s or now),
        )
        asked = [m for m in members if m.member in decision.value and not m.leaving]
        if not asked:
            return
        step = membership.leave_after(ensemble.step, ensemble.step_time_s)
        self._reason = decision.reason
        ensemble.decided("membership", {"leave": [m.node for m in asked], "after": step}, decision.reason)
        for member in asked:
            member.leaving = True
            member.stands_by = self._unsettled_since_s is not None and not member.preempted
            member.channel.send({"type": "leave", "generation": ensemble.generation, "after": step})

    def _part(self, members: list[Member], now: float) -> None:
        assert self._left_since_s is not None
        leaving = [m for m in members if m.leaving]
        gone = [m for m in leaving if m.left is not None]
        together = len(gone) == len(leaving) and self._ensemble.step >= max(m.left or 0 for m in gone)
        if not together and now - self._left_since_s < TOGETHER_S:
            return
        self._left_since_s = None
        for member in gone:
            self._ensemble.parted.append(member.member)
            if member.ailment is not None:
                self._ensemble.incidents.departed(member.ailment)
            self._ensemble.release(member, begins_again=member.stands_by)
        self._regroup(f"{self._reason} after step {max(m.left or 0 for m in gone)}")
