"""How a newcomer enters without a stall: it takes a snapshot while the others train, and joins at a step's end.

Every member copies its stripe of the state into shared memory between two micro-batches; the newcomer reads it there.
When it has loaded that, the members are told at the end of which step to meet, and the gradients of the steps in
between are replayed to it. Where memory cannot be shared the newcomer gets the state at that meeting instead.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from ...policy import recovery
from ...policy.decision import Decision
from ..connection import Channel, Message
from .phase import Phase
from .roster import Member
from .session_lifecycle import Proceedings

NO_SNAPSHOT = -1  # tried in vain: it gets the state when it joins


@dataclass
class Approach:
    """Newcomers on their way in, and the donors' stripes as far as they are known."""

    newcomers: list[str]
    donors: list[str]
    stripes: dict[str, Message] = field(default_factory=dict)


class Admission(Proceedings):
    """Brings ready newcomers in."""

    approach: Approach | None = None
    hold_step: int | None = None  # the members meet when this step is committed
    planned_step = 0

    def invite(self) -> None:
        """Ask the members for a snapshot for newcomers that there is room for."""
        members = self.roster.generation()
        waiting = self.ready_newcomers()
        ready = [m for m in waiting[: self.room(len(waiting))] if m.snapshot is None]
        if self.approach is not None or not ready or not members:
            return
        self.approach = Approach([m.member for m in ready], [m.member for m in members])
        for part, donor in enumerate(members):
            self._ask(donor, part, len(members))

    def room(self, newcomers: int) -> int:
        """How many of so many newcomers can join: up to the target, and to an allowed size."""
        here = len(self.roster.generation())
        return max(0, self.spec.range.fit(min(self.target, here + newcomers)) - here)

    def ready_newcomers(self) -> list[Member]:
        """Those that wait at the session that is being trained."""
        return [m for m in self.roster.newcomers() if m.session and m.session["index"] == self.session_index]

    def entrants(self, vacancies: int) -> Decision[list[Member]]:
        """Newcomers that take empty places in the generation that is formed now, in the middle of a step.

        Only where the one before had committed a step: what a newcomer may bring about must not keep survivors from
        going on a second time.
        """
        if self.finishing or self.session is None or "peers" not in self.spec.components:
            return Decision([], "")
        if not self.committed_in_generation:
            return Decision([], "the survivors go on first: no step was committed since the last change")
        enter = recovery.at_once(vacancies, self.session["state_bytes"], self.step_time_s)
        return Decision([m for m in self.ready_newcomers() if enter.value or m.snapshot is not None], enter.reason)

    def meet(self) -> None:
        """Newcomers hold a snapshot: tell the members at the end of which step they join."""
        if self.phase is not Phase.TRAINING:
            return  # who forms a generation must not wait for the next one
        names = [m.node for m in self.ready_newcomers() if m.snapshot is not None]
        if not names or self.hold_step is not None or not self.room(len(names)):
            return
        self.hold_step = max(self.step, self.planned_step) + 1
        reason = f"{', '.join(names)} can join: the members meet when step {self.hold_step} is committed"
        self.decided("membership", {"after": self.hold_step}, reason)
        for member in self.roster.generation():
            member.channel.send({"type": "hold", "generation": self.generation, "step": self.hold_step})

    def call(self, members: list[Member]) -> None:
        """Another generation, or session, begins: what the donors of this one were asked for is void."""
        self.approach, self.hold_step = None, None
        super().call(members)

    def release(self, member: Member, begins_again: bool = False) -> None:
        """Send a member or newcomer home."""
        super().release(member, begins_again)
        self.leave_approach(member)

    def leave_approach(self, member: Member) -> None:
        """A newcomer is gone."""
        if self.approach is not None and member.member in self.approach.newcomers:
            self.approach.newcomers.remove(member.member)
            self._arrived()

    def _ask(self, donor: Member, part: int, parts: int) -> None:
        donor.channel.send({"type": "offer", "generation": self.generation, "part": part, "parts": parts})

    def _on_offered(self, channel: Channel, message: Message) -> None:
        approach = self.approach
        if approach is None or message["generation"] != self.generation:
            return
        approach.stripes[message["member"]] = message
        if len(approach.stripes) < len(approach.donors):
            return
        if any(donor not in self.roster.members for donor in approach.donors):
            return  # the next generation asks anew
        newest = max(stripe["step"] for stripe in approach.stripes.values())
        stripes = [approach.stripes[donor] for donor in approach.donors]
        late = [part for part, stripe in enumerate(stripes) if stripe["step"] < newest]
        for part in late:  # it had not applied the step yet that others had
            del approach.stripes[approach.donors[part]]
            self._ask(self.roster.members[approach.donors[part]], part, len(stripes))
        if not late:
            snapshot = {"type": "snapshot", "step": newest, "skeleton": stripes[0]["skeleton"]}
            for name in approach.newcomers:
                tokens = [stripe["token"] for stripe in stripes]
                self.roster.members[name].channel.send(snapshot | {"tokens": tokens})

    def _on_approached(self, channel: Channel, message: Message) -> None:
        member = self.roster.members[message["member"]]
        member.snapshot = NO_SNAPSHOT if message["step"] is None else message["step"]
        self._arrived()

    def _arrived(self) -> None:
        """When all newcomers of an approach have loaded the snapshot, or are gone, those that have meet the others."""
        approach = self.approach
        waiting = [n for n in approach.newcomers if self.roster.members[n].snapshot is None] if approach else []
        if not waiting:
            self.approach = None
            self.meet()
