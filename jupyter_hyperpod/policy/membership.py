"""Decides which members form the next generation and which are lost. Time is an argument."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ..core.elastic import ElasticRange
from ..core.units import format_number, plural
from .decision import Decision

BEAT_S = 0.1  # between two heartbeats of a member, in a job of at most `OFTEN` members
OFTEN, SELDOM_S = 250, 0.5  # in larger jobs they are less frequent, up to this
BEATS_LOST_S = 2.0  # of a member whose host can be reached
SHORT_LEASE_S, LEASE_S = 0.5, 1.5
LEASE_BEATS = 2.5
GAPS = 2.5  # a lease is this many times as long as the longest gap between signs of life that was seen lately
GAPS_HALVE_S = 60.0
STOP_S = 0.25  # a member that is cut off stops before it is fenced, even where its process wakes up late
PARTITION = "network partition"
SILENT, NODE_LOST = "heartbeat lost", "node lost"
STOPPED, HUNG = "process stopped", "process hung"
NODE_GONE = frozenset({PARTITION, SILENT, NODE_LOST})  # causes that take the whole node away, not only a process
UNCONFIRMED_S = 0.4  # TCP has sent the same bytes again by then
SILENT_S = 0.5  # after this silence of its agent the node is lost, not only the process
STOPPED_S = 0.5
HANG_STEPS = 3.0
FIRST_FLOORS = 20.0
COMPUTE, WARM_UP = "compute", "warm-up"  # phases of a worker; the latter: its first micro-batch
START_PATIENCE_S = 2.0  # then a job begins with fewer members than it wants
SETTLE_S = 5.0  # how long a job may stay between two allowed sizes after a loss
LEAVE_LEAD_S = 0.05  # a request to leave has reached all members by then


@dataclass(frozen=True, slots=True)
class Candidate:
    """A worker that could be a member: ``rank`` is its place in the present generation, None for a newcomer."""

    member: str
    node: str
    rank: int | None
    ready: bool


@dataclass(frozen=True, slots=True)
class MemberHeartbeat:
    """The signs of life of one member: ages in seconds, ``phase`` as its worker reports it.

    ``unconfirmed_s``: for how long its host has not confirmed what was sent to it; None where it has. ``lease_s``: the
    lease of its last heartbeat.
    """

    member: str
    beat_age_s: float
    progress_age_s: float
    phase: str
    stopped_s: float = 0.0
    unconfirmed_s: float | None = None
    lease_s: float = LEASE_S


def start(ready: int, target: int, minimum: int, waited_s: float, allowed: ElasticRange | None = None) -> Decision[int]:
    """How many of the ``ready`` workers begin the job now, on an ``allowed`` size; 0 means wait for more."""
    if ready >= target:
        return Decision(target, f"all {target} members are here" if target > 1 else "its one member is here")
    size = allowed.fit(ready) if allowed else ready
    if size >= minimum and waited_s >= START_PATIENCE_S:
        text = f"{ready} of {target} members are here, at least {minimum} needed, waited {waited_s:.1f} s"
        return Decision(size, text if size == ready else f"{text}; {size} is the next size of {allowed}")
    return Decision(0, f"{ready} of {target} members are here")


def next_size(
    present: int, newcomers: int, target: int, minimum: int, allowed: ElasticRange | None = None
) -> Decision[int | None]:
    """How many of the ``present`` and ready members continue, or None where they are too few."""
    size = min(target, present + newcomers)
    if allowed is not None:
        size = max(allowed.fit(size), min(target, present))
    if size < minimum:
        return Decision(None, f"only {plural(size, 'member')} left and at least {minimum} are needed: waiting for more")
    return Decision(size, f"{size} of {target} members")


def next_members(
    candidates: Sequence[Candidate], target: int, minimum: int, allowed: ElasticRange | None = None
) -> Decision[tuple[str, ...] | None]:
    """The ordered members of the next generation, or None where too few are left to continue.

    Present members keep their order (a survivor's rank only ever shrinks), newcomers come after them, and
    a smaller target releases the highest ranks. Newcomers join only up to an ``allowed`` size; after a loss
    members may continue between two sizes, see `leavers`. Where no member with state is left, newcomers start the
    run again: from its seed it takes the same trajectory.
    """
    present = sorted((c for c in candidates if c.rank is not None), key=lambda c: c.rank or 0)
    newcomers = [c for c in candidates if c.rank is None and c.ready]
    size = next_size(len(present), len(newcomers), target, minimum, allowed)
    if size.value is None:
        return Decision(None, size.reason)
    chosen = [*present, *newcomers][: size.value]
    if not present:
        text = (
            f"nobody that holds the training state is left: the run starts again from its seed with "
            f"{plural(len(chosen), 'newcomer')}"
        )
        return Decision(tuple(c.member for c in chosen), text)
    joined = [c.node for c in chosen if c.rank is None]
    left = len(present) - sum(c.rank is not None for c in chosen)
    parts = [size.reason]
    if joined:
        parts.append(f"{', '.join(joined)} joined")
    if left:
        parts.append(f"{left} released")
    return Decision(tuple(c.member for c in chosen), "; ".join(parts))


def leavers(
    candidates: Sequence[Candidate],
    preempted: Collection[str],
    target: int,
    allowed: ElasticRange,
    unsettled_s: float = 0.0,
) -> Decision[tuple[str, ...]]:
    """Which present members leave at the next step boundary. Leaving there throws no computed work away.

    First the preempted members, then the highest ranks beyond ``target``. Where the job has been between two
    ``allowed`` sizes for ``unsettled_s`` after a loss and no newcomer came, also the highest ranks beyond the smaller
    size. The last member that holds the training state stays until another member has it.
    """
    present = sorted((c for c in candidates if c.rank is not None), key=lambda c: c.rank or 0)
    staying = [c for c in present if c.member not in preempted]
    going = [c for c in present if c.member in preempted]
    parts = [f"{', '.join(c.node for c in going)} is preempted"] if going else []
    if len(staying) > target:
        parts.append(f"the job is to run on {target}")
        staying = staying[:target]
    if unsettled_s >= SETTLE_S and (size := allowed.fit(len(staying))) not in (0, len(staying)):
        parts.append(f"nobody came for {unsettled_s:.0f} s, and {len(staying)} is none of the sizes {allowed}")
        staying = staying[:size]
    if present and not staying:
        staying = present[:1]
        parts.append(f"{present[0].node} stays until somebody has taken over the training state")
    names = {c.member for c in staying}
    leaving = [c for c in present if c.member not in names]
    ranks = ", ".join(str(c.rank) for c in leaving)
    text = f"{'; '.join(parts) or 'nobody has to leave'}{f': rank {ranks} leaves' if ranks else ''}"
    return Decision(tuple(c.member for c in leaving), text)


def surplus(staying: int, newcomers: int, target: int, spares: int) -> Decision[int]:
    """How many of the ``newcomers`` are released beside ``staying`` members. A job keeps newcomers up to its ``target``
    and the ``spares`` that its owner asked for; other jobs may be waiting for the rest.
    """
    keep = max(0, target - staying) + spares
    over = max(0, newcomers - keep)
    if not over:
        return Decision(0, f"{newcomers} newcomers may stay, at most {keep}")
    places = f"{staying} of {target} members" if staying else f"{target} members"
    return Decision(over, f"{over} of {newcomers} newcomers are not needed beside {places} and {spares} spares")


def leave_after(step: int, step_time_s: float | None) -> int:
    """The step after which members leave together: no member has passed it when the request arrives."""
    return step + 1 + (int(LEAVE_LEAD_S / step_time_s) if step_time_s else 0)


def beat_interval_s(members: int) -> float:
    """The time between two heartbeats of each of so many members, so that all of them together stay bearable."""
    return min(max(BEAT_S, BEAT_S * members / OFTEN), SELDOM_S)


def lease_s(interval_s: float, gap_s: float) -> float:
    """How long a member may go on after a heartbeat that was confirmed; with the next one it has a new lease.

    ``interval_s``: between two heartbeats. ``gap_s``: see `longest_gap_s`.
    """
    return min(LEASE_S, max(SHORT_LEASE_S, STOP_S + LEASE_BEATS * interval_s, GAPS * gap_s))


def longest_gap_s(before_s: float, gap_s: float, passed_s: float) -> float:
    """The longest time without a sign of life that was seen lately, after one more of ``gap_s``.

    ``passed_s``: since the last one; what was long fades. A gap for which any member is fenced is no delay but a cut.
    """
    faded_s = before_s * math.pow(0.5, passed_s / GAPS_HALVE_S)
    return max(faded_s, min(gap_s, LEASE_S / GAPS)) if gap_s <= BEATS_LOST_S else faded_s


def silence_limit_s(pulse: MemberHeartbeat, heard: int, others: int) -> float:
    """For how long a member may be silent; ``heard`` of the ``others`` give signs of life.

    If its host confirms nothing, while at least half of the others are heard, it is the member that is cut off, not the
    coordinator. It stops by itself at the end of its lease.
    """
    if pulse.unconfirmed_s is None or pulse.unconfirmed_s < UNCONFIRMED_S or not others or 2 * heard < others:
        return BEATS_LOST_S
    return min(BEATS_LOST_S, pulse.lease_s + STOP_S)


def hang_timeout_s(step_time_s: float | None, floor_s: float) -> float:
    """How long a member may stand still inside a step while others wait for it: three steps, at least ``floor_s``.

    Before the first step its duration is unknown, so the wait is that for a first micro-batch.
    """
    if step_time_s is None:
        return first_timeout_s(step_time_s, floor_s)
    return max(floor_s, HANG_STEPS * step_time_s)


def first_timeout_s(step_time_s: float | None, floor_s: float, longest_s: float = 0.0) -> float:
    """The limit for the first micro-batch of a process, which may include compiling: twenty times the floor.

    ``longest_s``: the longest that any member took for its first one; a newcomer may take three times that.
    """
    return max(FIRST_FLOORS * floor_s, HANG_STEPS * max(longest_s, step_time_s or 0.0))


def lost(pulses: Sequence[MemberHeartbeat], timeout_s: float, first_s: float = 0.0) -> Decision[tuple[str, str] | None]:
    """The member to fence now with its cause, or None. One at a time: the next check follows the next generation.

    ``first_s``: how long a process may take for its first micro-batch, where that is longer than ``timeout_s``.
    A member that cannot be reached stops by itself when its lease has run out, and is not fenced before.
    """
    heard = sum(pulse.beat_age_s <= SILENT_S for pulse in pulses)
    for pulse in pulses:
        silent = pulse.beat_age_s > SILENT_S
        limit_s = silence_limit_s(pulse, heard, len(pulses) - 1) if silent else BEATS_LOST_S
        if pulse.beat_age_s > limit_s:
            reason = f"no heartbeat from {pulse.member} for {pulse.beat_age_s:.1f} s, limit {format_number(limit_s)} s"
            if pulse.unconfirmed_s is not None:
                return Decision(
                    (pulse.member, PARTITION), f"{reason}, and its host confirms nothing that is sent to it"
                )
            return Decision((pulse.member, SILENT), reason)
        if pulse.stopped_s > STOPPED_S:
            return Decision((pulse.member, STOPPED), f"{pulse.member} has been stopped for {pulse.stopped_s:.1f} s")
    waiting = [p for p in pulses if p.phase == "exchange"]
    for pulse in pulses:
        limit_s = max(timeout_s, first_s) if pulse.phase == WARM_UP else timeout_s
        stuck = pulse.phase in (COMPUTE, WARM_UP) and _standstill_s(pulse) > limit_s
        if stuck and pulse.unconfirmed_s is None and any(other.progress_age_s > limit_s for other in waiting):
            where = " in the first micro-batch of its process" if pulse.phase == WARM_UP else ""
            reason = (
                f"{pulse.member} made no progress for {pulse.progress_age_s:.1f} s{where}, limit {limit_s:.1f} s, "
                "while others wait"
            )
            cause = SILENT if pulse.beat_age_s > SILENT_S else HUNG
            return Decision((pulse.member, cause), reason)
    return Decision(None, "every member is alive")


def _standstill_s(pulse: MemberHeartbeat) -> float:
    """How long a member has certainly stood still: by its own heartbeats, or because its agent stands still too."""
    return pulse.progress_age_s - (pulse.beat_age_s if pulse.beat_age_s <= SILENT_S else 0.0)
