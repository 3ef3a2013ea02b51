"""A member that is cut off stops before the coordinator fences it: on any network, with clocks of different rates.

The real lease, the real decision; what lies between them is a model: a TCP connection in each direction that delays,
stands still and is cut, an agent and a coordinator that are not always scheduled, and two clocks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from jupyter_hyperpod.policy import membership
from jupyter_hyperpod.policy.membership import BEAT_S, PARTITION, MemberHeartbeat, lost
from jupyter_hyperpod.runtime.agent.lease import Lease

END_S = 12.0
TICK_S = 0.02
RATE = 0.05  # clocks of real machines differ by less than a thousandth


@dataclass
class Link:
    """One direction of a TCP connection: bytes arrive in order, late, or not at all after ``cut_s``."""

    delays: list[float]
    stalls: list[tuple[float, float]]  # (from, until): what is sent then arrives afterwards
    cut_s: float
    arrived_s: float = 0.0
    count: int = 0

    def send(self, now_s: float) -> float:
        """When what is sent now arrives."""
        delay_s = self.delays[self.count % len(self.delays)]
        self.count += 1
        at_s = now_s + delay_s
        for start_s, end_s in self.stalls:
            if start_s <= at_s < end_s:
                at_s = end_s
        self.arrived_s = max(self.arrived_s, at_s) if at_s < self.cut_s else math.inf
        return self.arrived_s


@dataclass
class ModelChannel:
    """The agent's end, as the lease sees it: beats that the other host has confirmed."""

    up: Link
    down: Link
    greeted: bool = True
    position: int = 0
    arrivals: list[float] = field(default_factory=list)  # of each beat at the coordinator's host
    confirmations: list[float] = field(default_factory=list)
    now_s: float = 0.0

    def send(self, now_s: float) -> None:
        """A beat leaves; its confirmation comes back on the other link."""
        self.position += 1
        self.arrivals.append(self.up.send(now_s))
        back_s = self.down.send(self.arrivals[-1]) if math.isfinite(self.arrivals[-1]) else math.inf
        self.confirmations.append(max(back_s, self.confirmations[-1] if self.confirmations else 0.0))

    @property
    def confirmed(self) -> int:
        """Beats that are confirmed by now."""
        return sum(time_s <= self.now_s for time_s in self.confirmations)


@dataclass
class History:
    """What happened: when the worker was allowed to write, and when it was fenced, in true time."""

    allowed: list[tuple[float, float]] = field(default_factory=list)  # (from, until)
    fenced_s: float = math.inf


def play(
    up: Link, down: Link, rate: float, agent_gaps: list[float], tick_gaps: list[float], others_s: list[float]
) -> History:
    """Run both sides; ``rate``: the agent's clock against true time, which is the coordinator's."""
    lease, channel, history = Lease(), ModelChannel(up, down), History()
    lease.connected(0.0, 0.0)
    length_s, said, held = membership.LEASE_S, list[float](), False
    beat_s, probe_s, unread = 0.0, math.nan, 0
    agent_s, tick_s, next_beat_s, turn = 0.0, TICK_S, 0.0, 0
    while min(agent_s, tick_s) < END_S and math.isinf(history.fenced_s):
        turn += 1
        if agent_s <= tick_s:
            channel.now_s, mine_s = agent_s, agent_s * rate
            lease.update(cast(Any, channel), mine_s)
            held = held or lease.lapsed
            if not held:
                history.allowed.append((agent_s, lease.until_s / rate))
            if mine_s >= next_beat_s:
                next_beat_s = mine_s + BEAT_S
                said.append(lease.next_s(BEAT_S, mine_s))
                channel.send(agent_s)
                lease.beat(cast(Any, channel), mine_s, said[-1])
            agent_s += agent_gaps[turn % len(agent_gaps)]
        else:
            while unread < len(channel.arrivals) and channel.arrivals[unread] <= tick_s:
                beat_s, length_s, probe_s, unread = tick_s, said[unread], math.nan, unread + 1
            silent_s = tick_s - beat_s
            if silent_s > 0.25 and math.isnan(probe_s):
                probe_s = tick_s
                answer_s = up.send(arrived_s) if math.isfinite(arrived_s := down.send(tick_s)) else math.inf
            unconfirmed_s = tick_s - probe_s if not math.isnan(probe_s) and answer_s > tick_s else None
            pulse = MemberHeartbeat("a", silent_s, 0.0, "user", 0.0, unconfirmed_s, length_s)
            others = [MemberHeartbeat(f"o{i}", age_s, 0.0, "user") for i, age_s in enumerate(others_s)]
            found = lost([pulse, *others], 60.0).value
            if found == ("a", PARTITION):
                history.fenced_s = tick_s
            tick_s += tick_gaps[turn % len(tick_gaps)]
    return history


delays = st.lists(st.floats(0.0001, 0.3), min_size=1, max_size=6)
stalls = st.lists(st.tuples(st.floats(0, 8), st.floats(0.1, 3)).map(lambda s: (s[0], s[0] + s[1])), max_size=3)
links = st.builds(Link, delays, stalls, st.floats(1, 10) | st.just(math.inf))
agent_gaps = st.lists(st.floats(0.01, 0.05) | st.floats(0.01, 2.5), min_size=1, max_size=40)
tick_gaps = st.lists(st.floats(TICK_S, 0.05) | st.floats(TICK_S, 1.0), min_size=1, max_size=40)


@given(links, links, st.floats(1 - RATE, 1 + RATE), agent_gaps, tick_gaps, st.lists(st.floats(0, 0.4), max_size=3))
@settings(max_examples=600, deadline=None)
def test_whoever_is_fenced_has_stopped(
    up: Link, down: Link, rate: float, agent: list[float], ticks: list[float], others_s: list[float]
) -> None:
    history = play(up, down, rate, agent, ticks, others_s)
    assume(math.isfinite(history.fenced_s))
    event("fenced early" if history.fenced_s < END_S / 2 else "fenced late")
    for start_s, until_s in history.allowed:
        assert start_s < history.fenced_s and until_s < history.fenced_s - membership.STOP_S / 2


def test_the_property_finds_a_patience_that_is_shorter_than_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the test above looks for is there once the coordinator waits no longer than the lease."""

    def ends_s() -> tuple[float, float]:
        history = play(Link([0.001], [], 4.0), Link([0.001], [], 4.0), 1.0, [0.02], [TICK_S], [0.1])
        return max(until_s for _, until_s in history.allowed), history.fenced_s

    until_s, fenced_s = ends_s()
    assert until_s < fenced_s < 5.0
    for name, value in (("STOP_S", -0.3), ("UNCONFIRMED_S", 0.0), ("SILENT_S", 0.2)):
        monkeypatch.setattr(membership, name, value)
    until_s, fenced_s = ends_s()
    assert until_s > fenced_s
