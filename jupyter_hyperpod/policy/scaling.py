"""Decides which job gets which nodes, by priorities, queues and capacity. Pure and deterministic.

The rules, in order:
1. A running job keeps its minimum where it is elastic, and all its nodes where it is not.
2. A queue's guaranteed nodes are its jobs' own, the highest priority first. Others borrow them while they are idle
   and give them back first, by shrinking; a job that cannot shrink is not ended for that. Free nodes go to those first
   that have fewer than they are guaranteed. A node out of service still counts towards the shares, since it may come
   back soon; but where a job has fewer than it is guaranteed meanwhile, borrowers give it theirs.
3. A waiting job starts when its minimum is free. Those whose minimum is guaranteed go first, then higher priority,
   among equals the earlier one. No job overtakes a job that waits for nodes, so small jobs do not starve a large one.
4. Elastic jobs of lower priority lend: they shrink, down to their minimum, for a waiting job of higher priority. An
   elastic trial lends to a waiting trial of the same sweep, too: many trials at once, before one on many nodes.
5. No other job takes a node that is in use. Free nodes bring jobs up to their target; lent nodes return this way.
   A job with a scale-up delay grows only onto nodes that have been free for that long; its minimum never waits.
6. A job gets an allowed size. After a loss it may hold a number between two sizes; it keeps those nodes.
7. Spare nodes never count towards a job's share. They stand by for the jobs that want spares, in the same order. A job
keeps the spare that it has, so that no spare is given twice; a job with fewer nodes than it wants has none. Only the
number of spares matters: after a loss, the spare works and the replacement stands by.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ..core.elastic import ElasticRange
from ..core.units import few, plural
from .decision import Decision


@dataclass(frozen=True, slots=True)
class ScalableNode:
    """A node: ``free`` is False while a job holds it or it is starting, ``up`` only while it is starting or ``away``.

    ``idle_s``: how long it has been free. ``avoid``: other nodes are taken first, because this one fails often.
    ``away``: it is out of service, and nobody knows until when.
    """

    name: str
    spare: bool
    free: bool
    up: bool = True
    idle_s: float = math.inf
    avoid: bool = False
    away: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """What a job wants and holds.

    ``minimum``: nodes that it needs to start and never lends; ``target``: the number its owner wants; ``commanded``:
    the last number commanded; ``order``: smaller means submitted earlier; ``held``: names of its nodes; ``allowed``:
    the sizes it may run on, None for all; ``sweep``: the sweep that it is a trial of; ``serves``: it is a deployment.
    """

    job_id: str
    priority: int
    order: float
    minimum: int
    target: int
    spares: int = 0
    running: bool = False
    commanded: int = 0
    held: tuple[str, ...] = ()
    allowed: ElasticRange | None = None
    scale_up_delay_s: float = 0.0
    queue: str = ""
    sweep: str = ""
    serves: bool = False

    @property
    def base(self) -> int:
        """Number of nodes it works on; the others are its spares, or it is about to release them."""
        return min(len(self.held), self.commanded)

    def fit(self, nodes: int) -> int:
        """The largest number up to `nodes` that it may run on."""
        return self.allowed.fit(nodes) if self.allowed else nodes


@dataclass(frozen=True, slots=True)
class Grant:
    """``start``: nodes to start the job on now; ``target``: nodes it should run on; ``possible``: False: never."""

    job_id: str
    start: tuple[str, ...]
    target: int
    possible: bool = True


def allot(
    claims: Sequence[Claim], machines: Sequence[ScalableNode], guarantees: Mapping[str, int] | None = None
) -> tuple[Decision[Grant], ...]:
    """Return one decision for each claim, highest priority first. ``guarantees``: nodes of every queue, by its name."""
    standby = sum(machine.spare for machine in machines)
    free = [machine for machine in machines if machine.free]
    starting = any(not machine.up for machine in machines)
    away = sum(machine.away and not machine.spare for machine in machines)
    return allot_free(claims, free, len(machines) - standby, standby, guarantees, starting, away)


def allot_free(
    claims: Sequence[Claim],
    machines: Sequence[ScalableNode],
    capacity: int,
    standby: int,
    guarantees: Mapping[str, int] | None = None,
    starting: bool = False,
    away: int = 0,
) -> tuple[Decision[Grant], ...]:
    """`allot` with only the free ``machines`` listed, of ``capacity`` in all, with ``standby`` spares.

    ``away``: how many of the others are out of service.
    """
    queues = guarantees or {}
    ordered = sorted(claims, key=_rank)
    free = sorted(machines, key=lambda m: (m.avoid, m.spare, _natural(m.name)))
    own = _own(ordered, capacity, queues)
    shares, waits = _shares(ordered, capacity, own, [machine.idle_s for machine in free])
    if away:
        _do_without(ordered, shares, own, away, len(free))
    names = [machine.name for machine in free]
    start = {claim.job_id: _take(names, _floor(claim) - claim.base) for claim in ordered if claim.running}
    for claim in ordered:  # nodes that are out of service count towards the shares: what is there may not do for all
        if claim.running:
            begun = start[claim.job_id]
            begun += _take(names, min(own[claim.job_id], shares[claim.job_id]) - _present(claim, begun))
    refused: dict[str, Decision[Grant]] = {}
    for claim in sorted(ordered, key=lambda claim: claim.running or own[claim.job_id] < claim.minimum):
        share = shares[claim.job_id]
        if not claim.running and (never := impossible(claim, capacity, standby, queues)):
            refused[claim.job_id] = Decision(Grant(claim.job_id, (), claim.target, possible=False), never)
        elif not claim.running and (not share or len(names) < claim.minimum):
            reason = waits.get(claim.job_id) or _waits_for_nodes(claim, starting)
            refused[claim.job_id] = Decision(Grant(claim.job_id, (), claim.target), reason)
            _take(names, share)  # kept for this job until its minimum is complete
        else:
            begun = start.setdefault(claim.job_id, [])
            present = _present(claim, begun)
            delay_s = claim.scale_up_delay_s if claim.running and share > own[claim.job_id] else 0.0
            if share > present:
                begun += _take(names, share - present, among={m.name for m in free if m.idle_s >= delay_s})
    has = {claim.job_id: _spares(claim, shares[claim.job_id], len(start.get(claim.job_id, ()))) for claim in ordered}
    left = standby - sum(has.values())
    decisions = []
    callers = [claim for claim in ordered if claim.base < min(own[claim.job_id], shares[claim.job_id])][:2]
    waiting = [claim for claim in ordered if not claim.running]
    senior = max((claim.priority for claim in waiting), default=None)
    sweeps = {claim.sweep for claim in waiting} - {""}
    for claim in ordered:
        extra: list[str] = []
        if claim.job_id not in refused:
            wanted = claim.spares if shares[claim.job_id] >= claim.target else 0
            extra = _take(names, min(wanted - has[claim.job_id], left), at_end=True)
            left -= len(extra)
        to = _borrower(claim, callers, senior, sweeps, own[claim.job_id])
        decision = refused.get(claim.job_id)
        decisions.append(decision or _granted(claim, shares[claim.job_id], start[claim.job_id], extra, to))
    return tuple(decisions)


def _take(names: list[str], count: int, at_end: bool = False, among: Collection[str] | None = None) -> list[str]:
    """Remove up to `count` names from the list and return them; only those that are `among` a collection."""
    if count <= 0:
        return []
    able = [name for name in names if among is None or name in among]
    count = min(count, len(able))
    taken = able[len(able) - count :] if at_end else able[:count]
    gone = set(taken)
    names[:] = [name for name in names if name not in gone]
    return taken


def _spares(claim: Claim, share: int, begun: int) -> int:
    """How many of the nodes that a job holds, or now gets, stand by as its spares."""
    if not claim.running or share < claim.target:
        return 0
    return min(claim.spares, max(0, len(claim.held) + begun - share))


def _present(claim: Claim, begun: Sequence[str]) -> int:
    """How many nodes it works on, with those that it gets now."""
    return max(claim.base, len(claim.held) - claim.spares) + len(begun)


def _floor(claim: Claim) -> int:
    return min(claim.minimum, claim.target)


def _rank(claim: Claim) -> tuple[int, float, str]:
    return (-claim.priority, claim.order, claim.job_id)


def _own(ordered: Sequence[Claim], capacity: int, guarantees: Mapping[str, int]) -> dict[str, int]:
    """How many nodes each job has from its queue's guarantee; the rest of its nodes is borrowed."""
    left = dict(guarantees)
    own = {}
    for claim in ordered:
        fits = claim.running or claim.minimum <= capacity
        own[claim.job_id] = claim.fit(min(left.get(claim.queue, 0), claim.target)) if fits else 0
        if claim.queue in left:
            left[claim.queue] -= own[claim.job_id]
    return own


def _shares(
    ordered: Sequence[Claim], capacity: int, own: Mapping[str, int], idle_s: Sequence[float]
) -> tuple[dict[str, int], dict[str, str]]:
    """How many nodes each job should have besides its spares, and why a waiting job waits."""
    shares = {claim.job_id: _floor(claim) if claim.running else 0 for claim in ordered}
    waits: dict[str, str] = {}
    blocked_by = ""
    for claim in sorted(ordered, key=lambda claim: own[claim.job_id] < claim.minimum):
        if claim.running or claim.minimum > capacity:
            continue
        if blocked_by:
            waits[claim.job_id] = f"waits behind {blocked_by}, which comes first"
            continue
        available = capacity - _reserved(claim, ordered, shares, own)
        if claim.minimum <= available:
            shares[claim.job_id] = claim.minimum
        else:
            blocked_by = claim.job_id
            short = claim.minimum - max(0, available)
            holders = [other.job_id for other in ordered if other.held and other is not claim]
            by = f", held by {few(holders)}" if holders else ""
            waits[claim.job_id] = f"waits for {_count(short)} more: needs {claim.minimum} of {capacity}{by}"
    for stage in ("guaranteed", "in use", "wanted"):
        left = capacity - sum(shares.values())
        for claim in ordered:
            share = shares[claim.job_id]
            if share and left > 0:
                wish = min(_ceiling(claim, stage, own[claim.job_id], idle_s), share + left)
                shares[claim.job_id] = max(share, wish if wish == claim.base else claim.fit(wish))
                left -= shares[claim.job_id] - share
    return shares, waits


def _do_without(ordered: Sequence[Claim], shares: dict[str, int], own: Mapping[str, int], away: int, free: int) -> None:
    """Lower the shares of jobs that borrow, the last job first, where others lack nodes that their queues guarantee.

    ``away`` nodes are out of service, and ``free`` others are to be given. A node that was lent does not return now.
    """
    running = [claim for claim in ordered if claim.running]
    least = {claim.job_id: max(own[claim.job_id], _floor(claim)) for claim in running}
    lent = {claim.job_id: max(0, min(shares[claim.job_id], claim.base) - least[claim.job_id]) for claim in running}
    idle = free
    free += sum(_leaving(claim) + max(0, claim.base - shares[claim.job_id]) for claim in running)
    missing = _missing(ordered, shares, own, free + min(away, sum(lent.values())))
    count, left = min(away, missing - free), max(0, idle - missing)
    for claim in reversed(running):
        if count > 0 and lent[claim.job_id]:
            now = min(shares[claim.job_id], claim.base)
            shares[claim.job_id] = max(least[claim.job_id], claim.fit(max(least[claim.job_id], now - count)))
            count -= now - shares[claim.job_id]
    for claim in running:
        before = max(least[claim.job_id], claim.commanded)
        if shares[claim.job_id] > before:
            shares[claim.job_id] = min(shares[claim.job_id], max(before, claim.fit(claim.base + left)))
            left -= shares[claim.job_id] - before


def _leaving(claim: Claim) -> int:
    """How many of the nodes that a job holds it is about to release."""
    spares = claim.spares if claim.commanded >= claim.target else 0
    return max(0, len(claim.held) - claim.base - spares)


def _missing(ordered: Sequence[Claim], shares: Mapping[str, int], own: Mapping[str, int], at_most: int) -> int:
    """How many nodes jobs lack of those that their queues guarantee, and can use if they get ``at_most`` in all."""
    missing = 0
    for claim in ordered:
        wanted = min(own[claim.job_id], shares[claim.job_id])
        present = _present(claim, ()) if claim.running else 0
        reached = claim.fit(min(wanted, present + at_most - missing))
        if reached > present and (claim.running or reached >= claim.minimum):
            missing += reached - present
    return missing


def _ceiling(claim: Claim, stage: str, own: int, idle_s: Sequence[float]) -> int:
    """How many nodes a job may get at a stage of sharing out."""
    if stage == "guaranteed":
        return min(claim.target, own)
    if stage == "in use":
        return min(claim.target, claim.base)
    if claim.running and claim.scale_up_delay_s:
        return min(claim.target, claim.base + sum(age_s >= claim.scale_up_delay_s for age_s in idle_s))
    return claim.target


def _reserved(claim: Claim, ordered: Sequence[Claim], shares: Mapping[str, int], own: Mapping[str, int]) -> int:
    """Nodes that `claim` cannot have: the minima and guaranteed nodes of all jobs.

    Unless its own minimum is guaranteed, also all nodes that running jobs of higher or equal priority want, but for
    trials of its own sweep.
    """
    guaranteed = own[claim.job_id] >= claim.minimum
    taken = 0
    for other in ordered:
        keeps = shares[other.job_id]
        if other.running:
            siblings = claim.sweep != "" and other.sweep == claim.sweep
            senior = other.priority >= claim.priority and not guaranteed and not siblings
            keeps = max(keeps, other.target if senior else own[other.job_id])
        taken += keeps
    return taken


def _borrower(claim: Claim, callers: Sequence[Claim], senior: int | None, sweeps: Collection[str], own: int) -> str:
    """The job or queue that gets the nodes of a shrinking job; "" where none waits for them.

    ``callers``: the first two jobs that get back what their queues are guaranteed. ``senior``: the highest priority of
    the jobs that wait, ``sweeps``: those of which a trial waits.
    """
    for other in callers:
        if other is not claim and claim.base > own:
            return f"queue {other.queue}, which is guaranteed them,"
    if senior is not None and senior > claim.priority:
        return "a job of higher priority"
    return "another trial of its sweep" if claim.sweep in sweeps else ""


def impossible(claim: Claim, capacity: int, spares: int, guarantees: Mapping[str, int]) -> str:
    """Why a job can never start on a cluster of this shape; "" where it can."""
    if claim.queue and claim.queue not in guarantees:
        known = f"its queues are {', '.join(sorted(guarantees))}" if guarantees else "it has none"
        return f"this cluster has no queue {claim.queue!r}; {known}: `cluster start --queue NAME=NODES` sets one up"
    if claim.minimum > capacity:
        held_back = f" (and {spares} held back as spare)" if spares else ""
        fewer = f"MIN:MAX where MIN is at most {capacity}, or start a larger cluster"
        how = (
            f"serve with --replicas {fewer}"
            if claim.serves
            else f"submit with --nodes {capacity}, with --elastic {fewer}"
        )
        return f"needs at least {_count(claim.minimum)}, this cluster has {capacity}{held_back}: {how}"
    return ""


def _waits_for_nodes(claim: Claim, starting: bool) -> str:
    if starting:
        return "waits for nodes that are starting"
    if claim.minimum == 1:
        return "waits until a node is free"
    return f"waits until {claim.minimum:,} nodes are free at once"


def _granted(claim: Claim, share: int, start: Sequence[str], extra: Sequence[str], to: str) -> Decision[Grant]:
    held = claim.base
    target = claim.target
    if claim.running and share < claim.target:
        target = share if share < held else min(claim.target, max(share, claim.commanded))
    names = (*start, *extra)
    if claim.running and target < claim.commanded and not to:
        reason = f"continues with {target}: no more are available, and its other nodes are spares"
    elif claim.running and target < claim.commanded:
        reason = f"lends {_count(claim.commanded - target)} to {to} and goes on with {target}"
    elif claim.running and target > claim.commanded:
        free = f" after {claim.scale_up_delay_s:g} s" if claim.scale_up_delay_s else ""
        reason = f"gets {_count(target - claim.commanded)} back{free} and goes on with {target}"
    elif not names:
        reason = f"keeps its {_count(held)}"
    else:
        fewer = f" ({held + len(start)} of {claim.target} asked for)" if held + len(start) < claim.target else ""
        spare = f", with {', '.join(extra)} as spare" if extra else ""
        verb = "takes" if claim.running else "starts on"
        reason = f"{verb} {', '.join(start)}{fewer}{spare}" if start else f"takes {', '.join(extra)} as spare"
    return Decision(Grant(claim.job_id, names, target), reason)


def _count(nodes: int) -> str:
    return plural(nodes, "node")


def _natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key under which node-10 comes after node-9."""
    return tuple((1, int(part), "") if part.isdecimal() else (0, 0, part) for part in re.split(r"(\d+)", name))
