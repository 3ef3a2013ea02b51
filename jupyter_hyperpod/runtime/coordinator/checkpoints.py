"""The coordinator's side of the durable rung: how often, how old the newest checkpoint is, and what was refused."""

from __future__ import annotations

import time
from typing import Any

from ...core.views import View
from ...policy import interval
from ...policy.recovery import RecoveryPlan
from ...storage.journal_writer import JournalWriter
from ..connection import Channel, Message
from ..context import Context
from .incidents import RUNG_DURABLE, RUNG_REQUEUED
from .joining import Admission
from .roster import Member

RETURN_S = 10.0  # how long restarted workers are waited for


class Durability(Admission):
    """An admission that knows of durable checkpoints."""

    def __init__(
        self, context: Context, view: View, reporter: JournalWriter, opened: int = 0, closed: int = 0, restarts: int = 0
    ) -> None:
        super().__init__(context, view, reporter, opened, closed, restarts)
        newest = view["checkpoint"] or {}
        self._costs: tuple[float, float] | None = (newest["paused_s"], newest["took_s"]) if newest else None
        self._every_s: float | None = None
        self.all_lost = False  # since the last plan, everybody who held the state was lost
        now = time.monotonic()
        self._observed_from_s = now - (time.time() - view["started_s"] if view["started_s"] else 0.0)
        self._saved_at_s = now - (time.time() - newest["time_s"]) if newest else now
        self._loaded_in = 0  # the generation whose loading has been journaled
        self.coming = 0  # workers that were restarted together and have not all returned
        self._coming_until_s = 0.0
        self._refusals: set[tuple[str, str]] = set()

    def call(self, members: list[Member]) -> None:
        """Call members; whoever is rank 0 now is told when the next checkpoint is due."""
        super().call(members)
        if members:
            self._say_interval(members[0])

    def restart_all(self, lost: Member) -> None:
        """In-process recovery is switched off: a fault ends every worker, and all begin again together."""
        others = [m for m in self.roster.members.values() if not m.channel.closed]
        reason = f"in-process recovery is switched off: the loss of {lost.member} restarts {len(others)} other workers"
        self.decided("recovery", "restart all", reason)
        for member in others:
            del self.roster.members[member.member]
            member.channel.send({"type": "restart"})
        self.coming = len(others) + (not lost.channel.closed)
        self._coming_until_s = time.monotonic() + RETURN_S

    def more_are_coming(self, ready: int) -> bool:
        """Restarted workers are waited for, so that all begin together; not for ever."""
        if self.coming and ready < min(self.coming, self.target) and time.monotonic() < self._coming_until_s:
            return True
        self.coming = 0
        return False

    def state_found(self, plan: RecoveryPlan, held: bool) -> None:
        """How the members of a generation come to their state: ``held`` by one of them, or else as planned."""
        if plan.load is not None:
            self._saved_at_s = time.monotonic()
        cut_short = self.step > 0 and any("resumed" not in incident.stages for incident in self.incidents.open)
        if not held and (self.all_lost or cut_short):
            self.incidents.rung = RUNG_DURABLE if plan.load is not None else RUNG_REQUEUED
        elif self.incidents.rung is None:
            self.all_lost = False

    def _on_back(self, channel: Channel, message: Message) -> None:
        """A member is to go back to a checkpoint: it gives its state up when all have come to that."""
        members = self.roster.generation()
        if message["generation"] == self.generation:
            self.roster.members[message["member"]].back = True
        if all(member.back for member in members):
            for member in members:
                member.back = False
                member.channel.send({"type": "back", "generation": self.generation})

    def _on_saved(self, channel: Channel, message: Message) -> None:
        self._costs = (message["paused_s"], message["took_s"])
        self._saved_at_s = time.monotonic() - message["took_s"]
        self._say_interval(self.roster.members[message["member"]])

    def _on_refused(self, channel: Channel, message: Message) -> None:
        """Several members find the same: it is journaled once."""
        about = (message["path"], message["reason"])
        if about not in self._refusals:
            self._refusals.add(about)
            self.reporter.write("checkpoint.refused", {"path": about[0], "reason": about[1]})

    def _on_loaded(self, channel: Channel, message: Message) -> None:
        self.incidents.rejoined(message["member"], message["text"])
        if self._loaded_in != self.generation:
            self._loaded_in = self.generation
            about = {key: message[key] for key in ("step", "path", "took_s")}
            self.reporter.write("checkpoint.loaded", about | {"session": self.session_index})

    def _say_interval(self, member: Member) -> None:
        settings = (self.session or {}).get("checkpoint")
        if self.session is None or self.session_over or not settings or settings["every"] != interval.AUTOMATIC:
            return
        paused_s, took_s = self._costs or (None, None)
        observed_s = time.monotonic() - self._observed_from_s
        decision = interval.decide(
            self.incidents.count, observed_s, paused_s, took_s, int(self.session["state_bytes"] or 0)
        )
        if interval.worth_saying(self._every_s, decision.value):
            self._every_s = decision.value
            self.decided("checkpoint", round(decision.value, 3), decision.reason)
        age_s = time.monotonic() - self._saved_at_s
        order: dict[str, Any] = {"type": "interval", "every_s": self._every_s, "age_s": age_s}
        member.channel.send(order)
