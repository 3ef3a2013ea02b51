"""Stragglers of one job: noticed by pace, journaled as incidents, given less to compute, replaced if they stay slow.

Shares never change the bits, so they may follow the members' speed. New shares take effect
with a generation of the same members: what they have computed of the step is kept.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from ...core.units import plural
from ...policy import balance
from ...policy.batching import share_sizes
from .actions import Action, Actions, BeginGeneration, Decide
from .draining import Draining
from .incidents import STRAGGLER, Incident
from .job_state import JobState
from .roster import Member

WINDOW_S = 3.0
REST_S = 3.0  # between two changes


@dataclass
class Slow:
    """One straggler: since when, how many times longer it needs, and what people are told."""

    since_s: float
    times: float
    incident: Incident
    dismissed: bool = False


class Stragglers:
    """Who is slow, since when, and how micro-batches are shared out for it."""

    def __init__(self, state: JobState, draining: Draining) -> None:
        self._state = state
        self._draining = draining
        self._slow: dict[str, Slow] = {}
        self._paces: dict[str, float] = {}  # by which micro-batches are shared out now; 1 for all who are not in it
        self._rest_until_s = 0.0

    def paces(self) -> list[float]:
        """By rank: how many times longer than usual a member needs, as its share is to reflect it."""
        return [self._paces.get(member.member, 1.0) for member in self._state.roster.generation()]

    def committed(self, step: int, spares: int) -> Actions:
        """A step was committed: the moment to look at everybody's pace; ``spares`` wait at the session."""
        state, now = self._state, time.monotonic()
        members = state.roster.generation()
        self._forget_all_but({member.member for member in members})
        self._say_resumed(step, len(members))
        if state.session is None or now < self._rest_until_s:
            return
        windows = [_window(member, share, now) for member, share in zip(members, self._sizes(), strict=True)]
        found = balance.stragglers(windows, self._slow.keys())
        for member in members:
            if member.member in found and member.member not in self._slow:
                decision = found[member.member]
                since_s = max(_seen(member, now)[0][0], member.signs.struck_s)
                about = (member.member, member.node, member.rank, STRAGGLER, decision.reason, since_s)
                incident = state.incidents.note(*about)
                self._slow[member.member] = Slow(now, decision.value, incident)
        for name in [name for name in self._slow if name not in found]:
            state.incidents.stage(self._slow.pop(name).incident, "rejoined", "it is as fast as the others again")
        for name, slow in self._slow.items():
            slow.times = found[name].value or slow.times
        if not (yield from self._dismiss(members, spares, now)):
            yield from self._share_out(members, state.micro_batches, now)

    def _sizes(self) -> list[int]:
        paces = self.paces()
        return share_sizes(self._state.micro_batches, len(paces), paces)

    def _share_out(self, members: Sequence[Member], micro_batches: int, now: float) -> Actions:
        times = [self._slow[m.member].times if m.member in self._slow else 1.0 for m in members]
        sizes = self._sizes()
        decision = (
            balance.share_out(micro_batches, sizes, times) if self._slow else balance.even_again(micro_batches, sizes)
        )
        if decision.value is None:
            return
        self._rest_until_s = now + REST_S
        self._paces = {m.member: pace for m, pace in zip(members, decision.value, strict=True) if pace != 1.0}
        yield Decide("balance", list(decision.value), decision.reason)
        for slow in self._slow.values():
            if "repaired" not in slow.incident.stages:
                self._state.incidents.stage(slow.incident, "repaired", decision.reason)
        yield BeginGeneration(f"shares follow the members' pace: {decision.reason}")

    def _dismiss(self, members: Sequence[Member], spares: int, now: float) -> Generator[Action, None, bool]:
        since_s = {name: slow.since_s for name, slow in self._slow.items() if not slow.dismissed}
        decision = balance.replace(since_s, now, spares)
        if decision.value is None:
            return False
        slow = self._slow[decision.value]
        slow.dismissed = True
        member = next(m for m in members if m.member == decision.value)
        reason = f"rank {member.rank} on {member.node} is a straggler: {decision.reason}"
        yield from self._draining.dismiss(member, reason)
        return True

    # ---- what people are told -----------------------------------------------------------------------------

    def _say_resumed(self, step: int, world_size: int) -> None:
        for slow in self._slow.values():
            if "repaired" in slow.incident.stages and "resumed" not in slow.incident.stages:
                text = f"step {step} committed by {plural(world_size, 'member')} in their new shares"
                self._state.incidents.stage(slow.incident, "resumed", text)

    def _forget_all_but(self, members: set[str]) -> None:
        for name in [name for name in self._slow if name not in members]:
            slow = self._slow.pop(name)
            if slow.dismissed:
                self._state.incidents.stage(slow.incident, "replaced", "it left, and a spare takes its place")
        self._paces = {name: pace for name, pace in self._paces.items() if name in members}


def _window(member: Member, share: int, now: float) -> balance.Window:
    """The last steps of a member that computes ``share`` micro-batches of each."""
    seen = _seen(member, now)
    span_s = now - seen[0][0] if seen else 0.0
    assert member.rank is not None
    return balance.Window(member.member, member.node, member.rank, tuple(pace for _, pace in seen), span_s, share)


def _seen(member: Member, now: float) -> list[tuple[float, float]]:
    """The last steps of a member, by which it is judged: (when, seconds for a micro-batch)."""
    recent = sum(at > now - WINDOW_S for at, _ in member.paces)
    return list(member.paces)[-max(recent, balance.STEPS + 1) :]
