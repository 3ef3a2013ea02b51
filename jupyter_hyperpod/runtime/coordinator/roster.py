"""Who has registered with the coordinator and what is known of each: plain records, no decisions."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from ...policy.membership import HUNG, LEASE_S, STOPPED, WARM_UP, Candidate, MemberHeartbeat
from ...policy.program import Seat
from ...policy.recovery import MemberState
from ...policy.verdict import Statement
from ..connection import Channel
from ..protocol import codec, facts, orders
from .incidents import Incident

PROBE_S = 0.25
PACES_KEPT = 64


@dataclass
class Signs:
    """When a member last gave a sign of life, on the coordinator's monotonic clock, seconds.

    Incidents are timed by them, so they never change; the times that decide about a loss do (`Member.excuse`).
    """

    heard_s: float  # its agent said something
    ran_s: float  # its worker was not stopped
    moved_s: float  # its worker made progress
    struck_s: float = -math.inf  # a fault was injected into it

    def fault_s(self, cause: str) -> float:
        """When the fault happened: at its injection, or at the last sign of life if that came later."""
        return max(self.struck_s, {STOPPED: self.ran_s, HUNG: self.moved_s}.get(cause, self.heard_s))


@dataclass
class Member:
    """A worker and the agent that speaks for it. Times are on the coordinator's monotonic clock, seconds."""

    member: str
    node: str
    channel: Channel
    host: str
    port: int
    order: int
    spare: bool
    beat_s: float
    progress_s: float
    signs: Signs
    unpacks: bool = False  # its agent reads compressed messages
    patches: bool = False  # and patches of them
    ports: tuple[int, ...] = ()  # of the ranks of a replica, by shard
    counter: int = 0
    phase: str = "idle"
    lease_s: float = LEASE_S  # of its last heartbeat
    warmed_s: float = 0.0  # how long the first micro-batch of its process took
    stopped_since_s: float | None = None
    rank: int | None = None
    planned: bool = False  # it has been told how to go on, in a generation of this session
    joined: int | None = None  # after which step, where others had trained before it
    run: orders.RunCell | None = None
    session: facts.SessionOpened | None = None
    finished: facts.SessionFinished | None = None
    back: bool = False  # it is to go back to a checkpoint, and waits for the others
    report: MemberState | None = None
    snapshot: int | None = None  # the step of the state that a newcomer has loaded; -1: it could not
    statement: Statement | None = None
    exited: int | None = None
    done: bool = False
    failed: bool = False  # its cell raised, outside any session
    calls: int = 0  # of elastic_event_detected()
    told: orders.CallElasticEvent | None = None  # the elastic event that its agent knows of
    saw_event: bool = False
    preempted: bool = False
    ailment: Incident | None = None  # something was found at its node
    leaving: bool = False  # it was asked to leave at a step boundary
    stands_by: bool = False  # and to begin again as a newcomer
    left: int | None = None  # the last step it took part in
    probe: tuple[int, float] | None = None  # where what was sent to a silent member ends, and when
    # (when, seconds for a micro-batch), one per step
    paces: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=PACES_KEPT))
    paced_step: int = 0

    @property
    def running(self) -> bool:
        """The worker has been told to run its cell."""
        return self.run is not None

    @property
    def has_snapshot(self) -> bool:
        """It is a newcomer that has loaded a state that others had."""
        return self.snapshot is not None and self.snapshot >= 0

    @property
    def alive(self) -> bool:
        """The worker has not ended and its agent is connected."""
        return self.exited is None and not self.channel.closed

    def beat(self, beat: facts.Beat, now: float) -> None:
        """Take in a heartbeat."""
        self.beat_s, self.probe, self.lease_s = now, None, beat.lease_s
        self.calls = max(self.calls, beat.calls)
        if (beat.counter, beat.phase) != (self.counter, self.phase):
            if self.phase == WARM_UP != beat.phase:
                self.warmed_s = now - self.progress_s
            self.counter, self.phase, self.progress_s = beat.counter, beat.phase, now
            self.signs.moved_s = now
        step, pace_s = beat.pace
        if step != self.paced_step:
            self.paced_step = step
            self.paces.append((now, pace_s))
        if not beat.stopped:
            self.stopped_since_s, self.signs.ran_s = None, now
        elif self.stopped_since_s is None:
            self.stopped_since_s = now

    def excuse(self, away_s: float, now: float) -> None:
        """Do not count ``away_s`` as silence: the coordinator did not run."""
        self.beat_s, self.progress_s = min(now, self.beat_s + away_s), min(now, self.progress_s + away_s)
        if self.stopped_since_s is not None:
            self.stopped_since_s = min(now, self.stopped_since_s + away_s)
        if self.probe is not None:
            self.probe = self.probe[0], min(now, self.probe[1] + away_s)

    def pulse(self, now: float, late_s: float = 0.0) -> MemberHeartbeat:
        """The facts for `policy.membership.lost`. A silent member is sent a `ProbeHost`, to see if its host answers.

        Its beats may be ``late_s`` older than those of a member of a small job.
        """
        stopped = now - self.stopped_since_s if self.stopped_since_s is not None else 0.0
        silent_s = now - self.beat_s
        if silent_s > PROBE_S and self.channel.arrived:
            silent_s = 0.0  # what has arrived is read next
        if silent_s > PROBE_S + late_s and self.probe is None:
            self.tell(orders.ProbeHost())
            self.probe = self.channel.position, now
        unconfirmed_s = None
        if self.probe is not None and self.channel.confirmed < self.probe[0]:
            unconfirmed_s = now - self.probe[1]
        progress_s = now - self.progress_s
        return MemberHeartbeat(self.member, silent_s, progress_s, self.phase, stopped, unconfirmed_s, self.lease_s)

    def address(self) -> orders.Peer:
        """Where its peers reach it."""
        return orders.Peer(self.member, self.host, self.port, self.ports)

    def tell(self, order: codec.Message) -> None:
        """Send an order to its agent, or through it to its worker."""
        self.channel.send(codec.encode(order))

    def public(self) -> dict[str, object]:
        """As journaled in generation.formed."""
        return {"member": self.member, "node": self.node, "rank": self.rank}


@dataclass
class Roster:
    """All members by their id, in order of arrival."""

    members: dict[str, Member] = field(default_factory=dict)
    arrived: int = 0
    _by_channel: dict[Channel, list[Member]] = field(default_factory=dict)
    _by_rank: tuple[Member, ...] | None = None  # None: to be sorted again

    def add(self, name: str, register: facts.Register, channel: Channel, now: float) -> Member:
        """Record a registration; a worker that registers again keeps its place."""
        known, status = self.members.get(name), register.status
        self.arrived += 1
        self._by_rank = None
        member = self.members[name] = Member(
            name, register.node, channel, register.host, register.port, known.order if known else self.arrived,
            register.spare, now, now, Signs(now, now, now), register.unpacks, register.patches, register.ports,
            rank=known.rank if known else register.rank,
            planned=known.planned if known else False, joined=known.joined if known else None,
            run=status.run, session=status.session, finished=status.finished,
            done=status.done is not None, told=status.elastic,
            saw_event=status.done is not None and status.done.elastic,
        )  # fmt: skip
        if known is not None:
            self._part(known)
        self._by_channel.setdefault(channel, []).append(member)
        return member

    def place(self, member: Member, rank: int) -> None:
        """The member has this rank from now on."""
        member.rank, self._by_rank = rank, None

    def remove(self, member: Member) -> None:
        """Forget a member."""
        del self.members[member.member]
        self._part(member)
        self._by_rank = None

    def _part(self, member: Member) -> None:
        spoken_for = self._by_channel[member.channel]
        spoken_for[:] = [other for other in spoken_for if other is not member]
        if not spoken_for:
            del self._by_channel[member.channel]

    def stopped(self) -> list[Channel]:
        """The connections of members whose process was stopped when they were last heard."""
        return [member.channel for member in self.members.values() if member.stopped_since_s is not None]

    def holds(self, member: Member) -> bool:
        """Whether this is what is known of the member now."""
        return self.members.get(member.member) is member

    def generation(self) -> tuple[Member, ...]:
        """Members of the present generation by rank."""
        if self._by_rank is None:
            ranked = (m for m in self.members.values() if m.rank is not None)
            self._by_rank = tuple(sorted(ranked, key=lambda m: m.rank or 0))
        return self._by_rank

    def seat(self, step: int) -> None:
        """The members of the generation go on after ``step``: note who joins those that have trained before."""
        members = self.generation()
        held = [m for m in members if m.report is not None and m.report.step is not None]
        known = any(m.planned for m in held)
        for member in members:
            if not held:
                member.joined = None
            elif not member.planned and (known or member not in held):
                member.joined = step
            member.planned = True

    def seats(self) -> tuple[Seat, ...]:
        """As `policy.program` sees the generation."""
        return tuple(Seat(m.member, f"rank {m.rank} on {m.node}", m.joined) for m in self.generation())

    def newcomers(self) -> list[Member]:
        """Living workers that are not in the generation, first come first."""
        waiting = (m for m in self.members.values() if m.rank is None and m.alive)
        return sorted(waiting, key=lambda m: m.order)

    def candidates(self, newcomers: Iterable[Member]) -> list[Candidate]:
        """What `policy.membership.next_members` chooses from."""
        present = [Candidate(m.member, m.node, m.rank, True) for m in self.generation() if m.alive]
        return present + [Candidate(m.member, m.node, None, True) for m in newcomers]

    def by_channel(self, channel: Channel) -> Member | None:
        """The member that an agent's connection speaks for now."""
        return self._by_channel[channel][-1] if channel in self._by_channel else None
