"""Finds stragglers and decides whether to give them less work or replace them. Time is an argument.

The pace of a member is its seconds per micro-batch. The median over its last steps is compared with the median of the
others, so that neither one slow step nor one slow member changes what counts as usual.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from statistics import median

from ..core.units import plural
from .batching import share_sizes
from .decision import Decision

SLOW, FAST = 1.5, 1.2  # times the others' pace: a straggler from SLOW on, no longer one below FAST
STEPS, SPAN_S = 5, 2.0  # it has to be slow for at least this many steps and seconds
WORTH_S = 0.02  # seconds per step that the others wait for it
WORTH = 0.1  # part of a step that new shares must save, once a straggler has a smaller share
PERSISTS_S = 10.0  # after that a spare takes its place


@dataclass(frozen=True, slots=True)
class Window:
    """The last steps of one member: seconds per micro-batch of each, over ``span_s`` seconds; its present share."""

    member: str
    node: str
    rank: int
    paces: tuple[float, ...]
    span_s: float
    share: int


def stragglers(windows: Sequence[Window], known: Set[str]) -> dict[str, Decision[float]]:
    """The stragglers, each with how many times longer it needs; ``known`` are the stragglers so far."""
    found = {}
    if len(windows) < 2 or any(len(w.paces) < STEPS or w.span_s < SPAN_S for w in windows):
        return {w.member: Decision(0.0, "not known yet") for w in windows if w.member in known}
    paces = {w.member: median(w.paces) for w in windows}
    in_order = sorted(paces.values())
    for window in windows:
        own = paces[window.member]
        usual = _median_of_others(in_order, own)
        waited_s = (own - usual) * max(1, window.share)
        was = window.member in known
        best = sorted(window.paces)[len(window.paces) // 4]  # slow in most steps, not only on the whole
        if own > (FAST if was else SLOW) * usual and (was or (waited_s > WORTH_S and best > FAST * usual)):
            reason = (
                f"rank {window.rank} on {window.node} needs {own / usual:.1f} times as long for a micro-batch as the "
                f"others: {own:.3f} s, median of the others {usual:.3f} s, over {plural(len(window.paces), 'step')}"
            )
            found[window.member] = Decision(own / usual, reason)
    return found


def _median_of_others(in_order: Sequence[float], own: float) -> float:
    """The median of sorted numbers, one of which, ``own``, is left out."""
    place, half = bisect_left(in_order, own), (len(in_order) - 1) // 2

    def other(index: int) -> float:
        return in_order[index + (index >= place)]

    return other(half) if len(in_order) % 2 == 0 else (other(half - 1) + other(half)) / 2


def share_out(micro_batches: int, sizes: Sequence[int], times: Sequence[float]) -> Decision[tuple[float, ...] | None]:
    """The paces by which to share out micro-batches, or None where the present ``sizes`` are good enough.

    ``times[rank]`` is how many times longer than the others a rank needs; 1 for all but stragglers.
    """
    now = max(size * time for size, time in zip(sizes, times, strict=True))
    better = share_sizes(micro_batches, len(times), times)
    then = max(size * time for size, time in zip(better, times, strict=True))
    if better == list(sizes) or then > (1 - WORTH) * now:
        return Decision(None, f"shares of {_list(sizes)} micro-batches are as good as any")
    text = f"{_list(better)} micro-batches instead of {_list(sizes)}: a step takes {1 - then / now:.0%} less"
    return Decision(tuple(times), text)


def even_again(micro_batches: int, sizes: Sequence[int]) -> Decision[tuple[float, ...] | None]:
    """The paces once there is no straggler any more."""
    even = share_sizes(micro_batches, len(sizes))
    if even == list(sizes):
        return Decision(None, "shares are even")
    text = f"{_list(even)} micro-batches instead of {_list(sizes)}: nobody is slow any more"
    return Decision((1.0,) * len(sizes), text)


def replace(slow_since_s: Mapping[str, float], now_s: float, spares: int) -> Decision[str | None]:
    """The straggler that a spare replaces now, or None."""
    if spares:
        for member, since_s in slow_since_s.items():
            if now_s - since_s > PERSISTS_S:
                return Decision(member, f"it has been slow for {now_s - since_s:.0f} s, and a spare is ready")
    return Decision(None, "no straggler persists, or no spare is ready")


def _list(sizes: Sequence[int]) -> str:
    return " ".join(map(str, sizes))
