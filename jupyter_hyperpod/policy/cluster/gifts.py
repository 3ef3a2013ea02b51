"""Decides which jobs leave nodes to another one, where schedulers give nodes one by one. Pure.

Two jobs of which each has half the nodes that it needs would wait for each other for ever, and one that waits for nodes
which are not there would keep the others from those that are. A job whose nodes hold its state leaves none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ...core.units import plural
from ..decision import Decision

PATIENCE_S = 20.0  # a scheduler that has nodes has given them by then
YOUNGER_S = 300.0  # so long a job waits until one that comes before it, and can begin no better, makes room


@dataclass(frozen=True, slots=True)
class Gang:
    """A job that has fewer nodes than it ``needs`` to compute.

    ``kind``: jobs of one kind can use each other's nodes. ``begun``: it has computed already. ``missing``: how many
    nodes it lacks. ``holds``: nodes that it could leave: none where they hold its state. ``waits_s``: for how long no
    node has come; 0 where one is about to start. ``takes``: it only lacks nodes, and may be given some.
    """

    job_id: str
    kind: object
    begun: bool
    priority: int
    order: float
    needs: int
    missing: int
    holds: int
    waits_s: float
    takes: bool = True


@dataclass(frozen=True, slots=True)
class Gift:
    """So many nodes that one job leaves to another."""

    giver: str
    taker: str
    nodes: int


def gifts(gangs: Iterable[Gang]) -> list[Decision[Gift]]:
    """What each job leaves to others, so that some can compute: those first that have begun, are of a higher priority,
    or came earlier. Nothing is left to a job that still could not compute."""
    alike = defaultdict[object, list[Gang]](list)
    for gang in gangs:
        alike[gang.kind].append(gang)
    return [gift for some in alike.values() for gift in _among(sorted(some, key=_turn))]


def _turn(gang: Gang) -> tuple[bool, int, float]:
    return not gang.begun, -gang.priority, gang.order


def _among(gangs: Sequence[Gang]) -> Iterator[Decision[Gift]]:
    left = {gang.job_id: gang.holds if gang.waits_s >= PATIENCE_S else 0 for gang in gangs}
    settled = set[str]()  # these give, or get
    for at, taker in enumerate(gangs):
        if not taker.takes or taker.waits_s < PATIENCE_S or taker.job_id in settled:
            continue
        before = gangs[:at] if taker.waits_s >= YOUNGER_S else ()
        givers = [one for one in (*reversed(gangs[at + 1 :]), *reversed(before)) if left[one.job_id]]
        if sum(left[one.job_id] for one in givers) < taker.missing:
            continue
        missing, left[taker.job_id] = taker.missing, 0
        settled.add(taker.job_id)
        for giver in givers:
            if nodes := min(left[giver.job_id], missing):
                left[giver.job_id] -= nodes
                missing -= nodes
                settled.add(giver.job_id)
                yield Decision(Gift(giver.job_id, taker.job_id, nodes), _why(giver, taker, nodes))


def _why(giver: Gang, taker: Gang, nodes: int) -> str:
    has = giver.needs - giver.missing
    can = "go on" if taker.begun else "begin"
    return (
        f"leaves {plural(nodes, 'node')} to {taker.job_id}, which can {can} then; this job has {has} of the "
        f"{giver.needs} nodes that it needs"
    )
