"""The coordinator's part in checkpoints: when the next one is due, how old the newest is, and which were refused."""

from __future__ import annotations

import time

from ...core.views import View
from ...policy import interval
from ...policy.recovery import RecoveryPlan
from ..protocol import facts, orders
from ..protocol.dispatch import handles
from .actions import Actions, Decide, ReleaseMember, Send, WriteEvent
from .incidents import RUNG_DURABLE, RUNG_REQUEUED
from .job_state import JobState
from .roster import Member

RETURN_S = 10.0  # how long restarted workers are waited for


class CheckpointTracker:
    """What is known of the job's checkpoints, from its journal and from members' messages."""

    def __init__(self, state: JobState, view: View) -> None:
        self._state = state
        newest = view["checkpoint"] or {}
        self._costs: tuple[float, float] | None = (newest["paused_s"], newest["took_s"]) if newest else None
        self._every_s: float | None = None
        self._all_lost = False  # since the last plan, everybody who held the state was lost
        now = time.monotonic()
        self._observed_from_s = now - (time.time() - view["started_s"] if view["started_s"] else 0.0)
        self._saved_at_s = now - (time.time() - newest["time_s"]) if newest else now
        self._loaded_in = 0  # the generation whose loading has been journaled
        self.coming = 0  # workers that were restarted together and have not all returned
        self._coming_until_s = 0.0
        self._refusals: set[facts.CheckpointRefused] = set()

    def lost_all(self) -> None:
        """Everybody who held the state is lost."""
        self._all_lost = True

    def restart_all(self, lost: Member) -> Actions:
        """In-process recovery is switched off: a fault ends every worker, and all begin again together."""
        others = [m for m in self._state.roster.members.values() if not m.channel.closed]
        reason = f"in-process recovery is switched off: the loss of {lost.member} restarts {len(others)} other workers"
        yield Decide("recovery", "restart all", reason)
        for member in others:
            yield ReleaseMember(member, begins_again=True)
        self.coming = len(others) + (not lost.channel.closed)
        self._coming_until_s = time.monotonic() + RETURN_S

    def more_are_coming(self, ready: int) -> bool:
        """Restarted workers are waited for, so that all begin together; not for ever."""
        if self.coming and ready < min(self.coming, self._state.target) and time.monotonic() < self._coming_until_s:
            return True
        self.coming = 0
        return False

    def state_found(self, plan: RecoveryPlan, held: bool) -> None:
        """Note where a generation gets its state: from a member that has it (``held``), or else as the plan says."""
        if plan.load is not None:
            self._saved_at_s = time.monotonic()
        incidents = self._state.incidents
        cut_short = self._state.step > 0 and any("resumed" not in incident.stages for incident in incidents.open)
        if not held and (self._all_lost or cut_short):
            incidents.rung = RUNG_DURABLE if plan.load is not None else RUNG_REQUEUED
        elif incidents.rung is None:
            self._all_lost = False

    @handles(facts.ReadyToGoBack)
    def back(self, member: Member, ready: facts.ReadyToGoBack) -> Actions:
        """A member will go back to a checkpoint: it discards its state once all members are ready to."""
        members = self._state.roster.generation()
        member.back = True
        if all(member.back for member in members):
            for each in members:
                each.back = False
                yield Send(each, orders.GoBack(self._state.generation))

    @handles(facts.CheckpointSaved)
    def saved(self, member: Member, saved: facts.CheckpointSaved) -> Actions:
        """A checkpoint is durable; rank 0 is told when the next one is due."""
        self._costs = (saved.paused_s, saved.took_s)
        self._saved_at_s = time.monotonic() - saved.took_s
        yield from self.say_interval(member)

    @handles(facts.CheckpointRefused)
    def refused(self, member: Member, refused: facts.CheckpointRefused) -> Actions:
        """Several members find the same: it is journaled once."""
        if refused not in self._refusals:
            self._refusals.add(refused)
            yield WriteEvent("checkpoint.refused", {"path": refused.path, "reason": refused.reason})

    @handles(facts.CheckpointLoaded)
    def loaded(self, member: Member, loaded: facts.CheckpointLoaded) -> Actions:
        """A member has its state from a checkpoint."""
        self._state.incidents.rejoined(member.member, loaded.text)
        if self._loaded_in != self._state.generation:
            self._loaded_in = self._state.generation
            about = {"step": loaded.step, "path": loaded.path, "took_s": loaded.took_s}
            about |= {"session": self._state.session_index, "generation": self._state.generation}
            yield WriteEvent("checkpoint.loaded", about | {"asked": loaded.asked})

    def say_interval(self, member: Member) -> Actions:
        """Tell rank 0 how often to save, where the session leaves that to be decided here."""
        session = self._state.session
        if session is None or self._state.session_over:
            return
        if session.checkpoint is None or session.checkpoint.every != interval.AUTOMATIC:
            return
        paused_s, took_s = self._costs or (None, None)
        observed_s = time.monotonic() - self._observed_from_s
        decision = interval.decide(self._state.incidents.count, observed_s, paused_s, took_s, session.state_bytes)
        if self._every_s is None or interval.worth_saying(self._every_s, decision.value):
            self._every_s = decision.value
            yield Decide("checkpoint", round(decision.value, 3), decision.reason)
        age_s = time.monotonic() - self._saved_at_s
        yield Send(member, orders.CheckpointInterval(self._every_s, age_s))
