"""Who lost what, and the cheapest way back: rung 0 salvages the step, rung 1 brings a newcomer in from its peers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .batching import Node, assign_missing
from .decision import Decision


@dataclass(frozen=True, slots=True)
class Report:
    """What a member holds when a generation forms.

    ``step``: steps applied to its state; None for a newcomer without state. ``nodes``: sums of finished
    micro-batches of step ``step + 1``. ``replayable``: it still has the reduced gradient of step ``step``.
    """

    step: int | None
    nodes: tuple[Node, ...] = ()
    replayable: bool = False
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Plan:
    """How the members of a generation meet at one step. Everything is by rank.

    ``replay`` get the reduced gradient of step ``step`` from ``donors[0]``; ``fresh`` get the whole state, striped
    over ``donors``; then each computes its ``shares`` of step ``step + 1``, keeping what it ``held``.
    """

    step: int
    donors: tuple[int, ...]
    replay: tuple[int, ...]
    fresh: tuple[int, ...]
    held: tuple[tuple[Node, ...], ...]
    shares: tuple[tuple[int, ...], ...]


def plan(reports: Sequence[Report], micro_batches: int) -> Decision[Plan]:
    """Bring all members to the newest step any of them has applied; where none has state, begin at step 1."""
    if all(report.step is None for report in reports):
        return _begin(reports, micro_batches)
    newest = max(report.step for report in reports if report.step is not None)
    donors = tuple(rank for rank, report in enumerate(reports) if report.step == newest)
    can_replay = any(reports[rank].replayable for rank in donors)
    donors = tuple(sorted(donors, key=lambda rank: (not reports[rank].replayable, rank)))
    replay = tuple(r for r, report in enumerate(reports) if report.step == newest - 1 and can_replay)
    fresh = tuple(r for r in range(len(reports)) if r not in donors and r not in replay)
    held = tuple(reports[r].nodes if r in donors else () for r in range(len(reports)))
    shares = assign_missing(micro_batches, held)
    kept = micro_batches - sum(map(len, shares))
    parts = [f"step {newest + 1} goes on with {kept} of {micro_batches} micro-batches kept"]
    if replay:
        parts.append(f"{len(replay)} member(s) one step behind get the reduced gradient")
    if fresh:
        parts.append(f"{len(fresh)} newcomer(s) get the state from {len(donors)} peer(s)")
    return Decision(Plan(newest, donors, replay, fresh, held, shares), "; ".join(parts))


def _begin(reports: Sequence[Report], micro_batches: int) -> Decision[Plan]:
    nobody: tuple[tuple[Node, ...], ...] = ((),) * len(reports)
    shares = assign_missing(micro_batches, nobody)
    differing = tuple(rank for rank, report in enumerate(reports) if report.digest != reports[0].digest)
    reason = "all members start from the same state"
    if differing:
        reason = f"{len(differing)} member(s) built a different initial state: all take that of rank 0"
    return Decision(Plan(0, (0,), (), differing, nobody, shares), reason)
