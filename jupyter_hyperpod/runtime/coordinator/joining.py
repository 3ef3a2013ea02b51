"""How a newcomer enters without a stall: it takes a snapshot while the others train, and joins at a step's end.

Every member copies its stripe of the state into shared memory between two micro-batches; the newcomer reads it there.
When it has loaded that, the members are told at the end of which step to meet, and the gradients of the steps in
between are replayed to it. Where memory cannot be shared the newcomer gets the state at that meeting instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...policy import membership, recovery
from ...policy.decision import Decision
from ..protocol import facts, orders
from ..protocol.dispatch import handles
from .actions import Actions, Decide, Send
from .job_state import JobState
from .phase import Phase
from .roster import Member

NO_SNAPSHOT = -1  # tried in vain: it gets the state when it joins


@dataclass
class JoinAttempt:
    """Newcomers on their way in, and the donors' stripes as far as they are known."""

    newcomers: list[str]
    donors: list[str]
    stripes: dict[str, facts.StateOffered] = field(default_factory=dict)


class Joining:
    """Brings ready newcomers in: at most one attempt at a time."""

    def __init__(self, state: JobState) -> None:
        self._state = state
        self._attempt: JoinAttempt | None = None
        self.hold_step: int | None = None  # the members meet when this step is committed

    def invite(self) -> Actions:
        """Ask the members for a snapshot for newcomers that there is room for."""
        members = self._state.roster.generation()
        waiting = self._state.ready_newcomers()
        ready = [m for m in waiting[: self._state.room(len(waiting))] if m.snapshot is None]
        if self._attempt is not None or not ready or not members:
            return
        self._attempt = JoinAttempt([m.member for m in ready], [m.member for m in members])
        for part, donor in enumerate(members):
            yield self._offer(donor, part, len(members))

    def entrants(self, vacancies: int) -> Decision[list[Member]]:
        """Newcomers that take empty places in the generation that is formed now, in the middle of a step.

        Only where the one before had committed a step: what a newcomer may bring about must not keep survivors from
        going on a second time.
        """
        if self._state.finishing or self._state.session is None or "peers" not in self._state.spec.components:
            return Decision([], "")
        if not self._state.committed_in_generation:
            return Decision([], "the survivors go on first: no step was committed since the last change")
        if self._state.joins_between:
            return Decision([], "newcomers join between two steps, because the program changes something in them")
        enter = recovery.at_once(vacancies, self._state.session.state_bytes, self._state.step_time_s)
        return Decision(
            [m for m in self._state.ready_newcomers() if enter.value or m.snapshot is not None], enter.reason
        )

    def meet(self) -> Actions:
        """Newcomers hold a snapshot: tell the members at the end of which step they join."""
        if self._state.phase is not Phase.TRAINING:
            return  # who forms a generation must not wait for the next one
        names = [m.node for m in self._state.ready_newcomers() if m.snapshot is not None]
        if not names or self.hold_step is not None or not self._state.room(len(names)):
            return
        self.hold_step = self._meeting()
        reason = f"{', '.join(names)} can join: the members meet when step {self.hold_step} is committed"
        yield Decide("membership", {"after": self.hold_step}, reason)
        for member in self._state.roster.generation():
            yield Send(member, orders.MeetAfter(self._state.generation, self.hold_step))

    def _meeting(self) -> int:
        """The step after which members and newcomers meet: at the end of a turn of the loop, where that matters."""
        step, runs = max(self._state.step, self._state.planned_step), self._state.joins_between
        if not runs:
            return step + 1
        return -(-membership.leave_after(step, self._state.step_time_s) // runs) * runs

    def give_up(self) -> None:
        """Another generation, or session, begins: what the donors of this one were asked for is void."""
        self._attempt, self.hold_step = None, None

    def gone(self, member: Member) -> Actions:
        """A newcomer is gone."""
        if self._attempt is not None and member.member in self._attempt.newcomers:
            self._attempt.newcomers.remove(member.member)
            yield from self._arrived()

    def _offer(self, donor: Member, part: int, parts: int) -> Send:
        return Send(donor, orders.OfferState(self._state.generation, part, parts))

    @handles(facts.StateOffered)
    def offered(self, member: Member, offered: facts.StateOffered) -> Actions:
        """A donor has copied its stripe; when all have for the same step, the newcomers load the snapshot."""
        attempt = self._attempt
        if attempt is None or member.member not in attempt.donors:
            return
        attempt.stripes[member.member] = offered
        if len(attempt.stripes) < len(attempt.donors):
            return
        if any(donor not in self._state.roster.members for donor in attempt.donors):
            return  # the next generation asks anew
        newest = max(stripe.step for stripe in attempt.stripes.values())
        stripes = [attempt.stripes[donor] for donor in attempt.donors]
        late = [part for part, stripe in enumerate(stripes) if stripe.step < newest]
        for part in late:  # it had not applied the step yet that others had
            del attempt.stripes[attempt.donors[part]]
            yield self._offer(self._state.roster.members[attempt.donors[part]], part, len(stripes))
        if not late:
            tokens = tuple(stripe.token for stripe in stripes)
            snapshot = orders.TakeSnapshot(newest, stripes[0].skeleton, tokens)
            for name in attempt.newcomers:
                yield Send(self._state.roster.members[name], snapshot)

    @handles(facts.SnapshotLoaded)
    def approached(self, member: Member, loaded: facts.SnapshotLoaded) -> Actions:
        """A newcomer has loaded the snapshot, or could not."""
        member.snapshot = NO_SNAPSHOT if loaded.step is None else loaded.step
        yield from self._arrived()

    def _arrived(self) -> Actions:
        """When all newcomers of an attempt have loaded the snapshot, or are gone, those that have meet the others."""
        attempt = self._attempt
        waiting = [n for n in attempt.newcomers if self._state.roster.members[n].snapshot is None] if attempt else []
        if not waiting:
            self._attempt = None
            yield from self.meet()
