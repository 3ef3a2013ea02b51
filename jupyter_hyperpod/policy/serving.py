"""Decides how many replicas a deployment has, which replica answers, and when a request has to wait. Pure.

Scaling up is quick: it happens as soon as the outstanding requests, averaged over a second, exceed what the replicas
should have. Scaling down is slow: only replicas that were not needed during the whole delay go, so that load in waves
does not make replicas come and go. Both follow the number of outstanding requests (waiting or being answered): unlike
their rate, it measures the work whatever a request costs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ..core.units import format_number, plural
from .decision import Decision

UP_WINDOW_S = 1.0
SILENT_S, BUSY_S = 3.0, 60.0
ENGINE_IDLE_S = 30.0
RETRY_AFTER_LIMIT_S = 60


@dataclass(frozen=True, slots=True)
class LoadReading:
    """The number of ``outstanding`` requests (waiting or being answered) at ``time_s``."""

    time_s: float
    outstanding: int


@dataclass(frozen=True, slots=True)
class Limits:
    """``outstanding``: wanted requests per replica; ``scale_down_delay_s``: how long fewer replicas must suffice."""

    minimum: int
    maximum: int
    outstanding: float
    scale_down_delay_s: float


def decide(readings: Sequence[LoadReading], replicas: int, limits: Limits, now_s: float) -> Decision[int]:
    """Return how many replicas there should be, given the last decision, ``replicas``.

    ``readings`` are in order of time; those older than the scale-down delay are ignored.
    """
    kept = _clamp(replicas, limits)
    if kept != replicas:
        return Decision(kept, f"outside the range {limits.minimum}:{limits.maximum}: {_count(replicas)}")
    recent = [reading.outstanding for reading in readings if now_s - UP_WINDOW_S <= reading.time_s <= now_s]
    load = sum(recent) / len(recent) if recent else 0.0
    wanted = _clamp(_needed(load, limits), limits)
    if wanted > replicas:
        wish = f"{limits.outstanding:g} a replica are wanted"
        most = ", the most there may be" if wanted == limits.maximum else ""
        return Decision(wanted, f"{format_number(load)} requests are outstanding, {wish}: {_count(wanted)}{most}")
    since_s = now_s - limits.scale_down_delay_s
    if replicas > limits.minimum and readings and readings[0].time_s <= since_s:
        peak = max((reading.outstanding for reading in readings if since_s <= reading.time_s <= now_s), default=0)
        enough = _clamp(_needed(peak, limits), limits)
        if enough < replicas:
            calm = f"no more than {peak} requests were outstanding for {limits.scale_down_delay_s:g} s"
            return Decision(enough, f"{calm}: {_suffice(enough)}")
    return Decision(replicas, f"{format_number(load)} requests are outstanding: {_suffice(replicas)}")


def _needed(load: float, limits: Limits) -> int:
    return math.ceil(load / limits.outstanding)


def _clamp(replicas: int, limits: Limits) -> int:
    return max(limits.minimum, min(replicas, limits.maximum))


def _count(replicas: int) -> str:
    return plural(replicas, "replica")


def _suffice(replicas: int) -> str:
    return "1 replica suffices" if replicas == 1 else f"{replicas:,} replicas suffice"


def choose(outstanding: Mapping[str, int], slots: int, avoid: Collection[str] = ()) -> str | None:
    """Return the replica with the fewest outstanding requests and a free slot; None where there is none.

    Among equals the first of the mapping. One to ``avoid`` is taken only where no other has a free slot.
    """
    free = [name for name, count in outstanding.items() if count < slots]
    return min(free, key=lambda name: (name in avoid, outstanding[name]), default=None)


def retire(outstanding: Mapping[str, int], count: int) -> tuple[str, ...]:
    """Return the ``count`` replicas that should go: those with the least to finish, the newest among equals.

    The mapping is in the order in which the replicas came.
    """
    order = {name: number for number, name in enumerate(outstanding)}
    ranked = sorted(outstanding, key=lambda name: (outstanding[name], -order[name]))
    return tuple(ranked[: max(0, count)])


def leave(outstanding: Mapping[str, int], ready: Collection[str], others: int, target: int) -> tuple[str, ...]:
    """Return the replicas that may go now, of those whose node goes out of service: as many answer until ``target``
    ``others`` do as these lack.

    First go those that are not ``ready``, then those with the least to finish, the newest among equals.
    """
    order = {name: number for number, name in enumerate(outstanding)}
    ranked = sorted(outstanding, key=lambda name: (name in ready, outstanding[name], -order[name]))
    return tuple(ranked[: max(0, len(ranked) - max(0, target - others))])


def patience_s(*, stopped: bool, loading: bool, computes: bool) -> float:
    """Return for how long a replica may say nothing, in seconds.

    A replica that loads or computes may hold Python's interpreter lock for long, in one call of a library. A replica
    that is stopped, or neither computes nor reports, hangs. On a host that cannot be observed, a replica counts as
    neither stopped nor computing.
    """
    return BUSY_S if (loading or computes) and not stopped else SILENT_S


def engine_patience_s(*, stopped: bool, computes: bool) -> float:
    """Return for how long another server, the child of a replica, may leave questions unanswered, in seconds.

    It may wait for a device without computing itself.
    """
    if stopped:
        return SILENT_S
    return BUSY_S if computes else ENGINE_IDLE_S


def retry_after_s(waiting: int, answered_per_s: float) -> int:
    """Return whole seconds, 1 to `RETRY_AFTER_LIMIT_S`, after which the requests that wait will have been answered."""
    if answered_per_s <= 0:
        return RETRY_AFTER_LIMIT_S if waiting > 1 else 1
    return max(1, min(RETRY_AFTER_LIMIT_S, math.ceil(waiting / answered_per_s)))
