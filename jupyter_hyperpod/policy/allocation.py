"""Decides which nodes to request from a scheduler, which to return, and which to give up as lost. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ..core.units import plural
from .decision import Decision

PATIENCE_S = 3.0  # a node that was cut off only briefly is back by then
DEADLINE_S = 300.0  # even the slowest network has delivered the interpreter and its libraries by then


@dataclass(frozen=True, slots=True)
class RequestedNode:
    """One node requested from the scheduler and not ended yet; ``node`` is empty while the request waits.

    ``lost_s``: how long ago the job lost it; None where it is not lost. ``silent_s``: how long it has run without
    contacting the job; None where it has contacted it. ``drain``: why the scheduler takes the node out of service.
    ``told``: the job itself knows why and lets it go. ``announced``: the job's head need not be told that it will
    leave. ``leaving``: it has been asked to leave. ``held``: why the scheduler will not start it, or not soon.
    ``ready``: the job could do without others for it.
    """

    name: str
    part: str
    running: bool
    node: str = ""
    lost_s: float | None = None
    drain: str = ""
    leaving: bool = False
    held: str = ""
    silent_s: float | None = None
    told: bool = False
    ready: bool = True
    announced: bool = True


@dataclass(frozen=True, slots=True)
class AllocationStep:
    """Nodes to request, by part; waiting requests to return, places to give up, running nodes to send away.

    ``avoid``: nodes that should not be requested again soon. ``announce``: running nodes of which the job's head should
    know that they will leave, or it may let their replacements go.
    """

    submit: Mapping[str, int]
    give_back: tuple[str, ...] = ()
    give_up: tuple[str, ...] = ()
    send_away: tuple[str, ...] = ()
    avoid: tuple[str, ...] = ()
    announce: tuple[str, ...] = ()


def decide(
    wish: Mapping[str, int],
    places: Sequence[RequestedNode],
    minimum: int,
    deadline_s: float = DEADLINE_S,
    rests: bool = False,
    scheduler: str = "SLURM",
    alike: bool = False,
) -> Decision[AllocationStep]:
    """Request missing nodes; return surplus requests that still wait. The job itself releases running nodes, at the
    end of a step.

    A node that has been lost for `PATIENCE_S` is given up at once, because the scheduler needs minutes to notice. A
    node that runs but never contacts the job is given up after ``deadline_s``, because the scheduler sees nothing wrong
    with it. Such a node is then avoided, or the scheduler would offer it again; but if no node has joined, the node
    need not be the cause. A node that goes out of service is replaced, and sent away as soon as ``minimum`` others run.
    While the job ``rests`` nothing is requested. ``scheduler``: the scheduler's name for people. ``alike``: a node that
    runs beyond what is wished of its part stands for one that another part lacks; whoever releases nodes of such a job
    does not know their parts.
    """
    gone = [p for p in places if _why_gone(p, deadline_s)]
    going = [p for p in places if p.running and p.drain and p not in gone]
    counted = [p for p in places if p not in gone and p not in going]
    heard = any(p.running and p.silent_s is None for p in places)
    submit, back = dict[str, int](), list[str]()
    beyond = sum(max(0, sum(p.running and p.part == part for p in counted) - count) for part, count in wish.items())
    stand_in = beyond if alike else 0
    for part, count in wish.items():
        mine = [p for p in counted if p.part == part]
        if (missing := count - len(mine)) > 0 and not rests:
            stood_for = min(stand_in, missing)
            stand_in -= stood_for
            submit |= {part: missing - stood_for} if missing > stood_for else {}
        back += [p.name for p in mine if not p.running][: max(0, len(mine) - count)]
    enough = sum(p.running and p.ready for p in counted) >= minimum
    away = tuple(p.name for p in going if enough and not (p.leaving or p.told))
    parts = [_why_gone(p, deadline_s) for p in gone]
    parts += [f"{p.node} goes out of service: {p.drain}" for p in going if not p.leaving]
    if submit:
        words = " and ".join(plural(count, f"{part} node") for part, count in submit.items())
        parts.append(f"asks {scheduler} for {words}, {sum(wish.values())} in all")
    if avoid := tuple(p.node for p in gone if _late(p, deadline_s) and heard):
        parts.append(f"{', '.join(avoid)} is avoided")
    if back:
        parts.append(f"gives {plural(len(back), 'node')} back that {scheduler} has not started yet")
    announce = tuple(p.name for p in going if not p.announced)
    step = AllocationStep(submit, tuple(back), tuple(p.name for p in gone), away, avoid, announce)
    return Decision(step, "; ".join(parts) or "nothing is missing")


def avoidable(avoided: Collection[str], serving: Collection[str], needed: int) -> tuple[str, ...]:
    """Nodes that the scheduler is told not to choose: all that are to be avoided, if ``needed`` others serve.

    ``serving``: nodes that get work; none where that is not known yet.
    """
    if serving and len(set(serving) - set(avoided)) < needed:
        return ()
    return tuple(sorted(avoided))


def _late(place: RequestedNode, deadline_s: float) -> bool:
    return place.running and place.silent_s is not None and place.silent_s >= deadline_s


def _why_gone(place: RequestedNode, deadline_s: float) -> str:
    """Why a place is given up, or ""."""
    if place.held:
        return f"{place.name} is given up: {place.held}"
    if not place.running:
        return ""
    if place.lost_s is not None and place.lost_s >= PATIENCE_S:
        return f"{place.node} has not been heard for {place.lost_s:.0f} s and is given up"
    if _late(place, deadline_s):
        ran = f"{place.name} has run on {place.node} for {place.silent_s:.0f} s"
        return f"{ran} without joining the job, limit {deadline_s:g} s, and is given up"
    return ""
