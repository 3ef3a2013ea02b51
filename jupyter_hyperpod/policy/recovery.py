"""Plans the cheapest way back to training after a loss.

Rung 0 keeps the step's finished micro-batches, rung 1 brings a newcomer in from its peers, rung 4 loads a checkpoint
where no member has the training state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ..core.units import plural
from .batching import Node, assign, assign_missing, cover, holdings_of, leaves_of
from .decision import Decision
from .growth import Schedule
from .verdict import Statement

STATE_BYTES_PER_S = 1e9  # about the bandwidth of both memory and a 10 Gbit/s network

LEFT_ALONE = (
    "nobody is left that holds what the cells carry: newcomers that have a snapshot of the state alone begin again"
)

Saved = tuple[int, str]  # step and token of a durable checkpoint


@dataclass(frozen=True, slots=True)
class MemberState:
    """What a member holds when a generation forms.

    ``step``: steps applied to its state; None for a newcomer without state. ``nodes``: sums of finished
    micro-batches of step ``step + 1``. ``history``: the number of last steps whose reduced gradient it still has.
    ``digest``: of the state that its cell has built. ``checkpoints``: (step, token) of the durable checkpoints that a
    member without state could load. ``statement``: the checksums of its state, where they are checked.
    ``repeatable``: the number of last steps after which its cell has not changed the state. ``waiting``: the member is
    a newcomer, whose cell does not run what belongs to steps that it missed. ``aside``: its cell is in the middle of
    what follows a step, so it cannot give newcomers what belongs to a place between two steps. ``begun``: the
    micro-batches of step ``step + 1`` where the member has begun it and the global batch may change, else 0.
    ``partial``: its state is a snapshot that it took while others
    trained, without what their cells carry, so nobody can go on from it alone. ``unproven``: it joined later, and has
    not taken part in a step yet. ``joined``: the steps that were applied when it joined others that had trained.
    """

    step: int | None
    nodes: tuple[Node, ...] = ()
    history: int = 0
    digest: str = ""
    checkpoints: tuple[Saved, ...] = ()
    statement: Statement | None = None
    repeatable: int = 0
    waiting: bool = False
    aside: bool = False
    begun: int = 0
    partial: bool = False
    unproven: bool = False
    joined: int | None = None

    @property
    def complete(self) -> bool:
        """Whether others can go on from its state."""
        return self.step is not None and not self.partial


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """How the members of a generation reach the same step and share out the next one. Everything is by rank.

    First ``loaders`` load the durable checkpoint ``load``.
    ``replay`` are (rank, steps): these ranks get the reduced gradients of that many steps up to ``step`` from
    ``donors[0]``; ``fresh`` get the whole state, striped over ``donors``; then each computes its ``shares`` of step
    ``step + 1``, keeping what it ``held``. ``holdings`` are the sums that each has afterwards.

    `plan` decides all of that. The coordinator adds the generation, the ``rank`` that a copy is for, the members' names
    (``owners``), the names of those that have left at a step boundary (``parted``), and how long each member needs for
    a micro-batch, relative to the others (``paces``). ``ordinary``: nothing is to be recovered. ``joining`` are ranks
    whose cells wait for their first step. ``batches``: how the global batch goes on, where it may change. ``proving``
    are newcomers that are compared with the others before the first step that they take part in. ``joined``: as
    `MemberState`; () where all members were there from the first.
    """

    step: int
    donors: tuple[int, ...]
    replay: tuple[tuple[int, int], ...]
    fresh: tuple[int, ...]
    held: tuple[tuple[Node, ...], ...]
    shares: tuple[tuple[int, ...], ...]
    holdings: tuple[tuple[Node, ...], ...]
    load: Saved | None = None
    loaders: tuple[int, ...] = ()
    generation: int = 0
    rank: int = 0
    owners: tuple[str, ...] = ()
    parted: tuple[str, ...] = ()
    paces: tuple[float, ...] | None = None
    ordinary: bool = False
    joining: tuple[int, ...] = ()
    batches: Schedule = ()
    proving: tuple[int, ...] = ()
    joined: tuple[int | None, ...] = ()

    @property
    def world_size(self) -> int:
        """Members of the generation."""
        return len(self.shares)


def newest_step(reports: Sequence[MemberState]) -> int:
    """The steps applied to the state with which `plan` lets all members go on."""
    steps = [report.step for report in reports if report.step is not None and report.complete]
    return max(steps) if steps else max((saved[0] for saved in _loadable(reports)), default=0)


def _loadable(reports: Sequence[MemberState]) -> list[Saved]:
    """The durable checkpoints that may be loaded: those that members with a running cell see.

    The cell may have gone back to an early one. Newcomers do not know that; theirs count where nobody else is left.
    """
    running = [report for report in reports if not report.waiting] or reports
    return [saved for report in running for saved in report.checkpoints]


def begun(reports: Sequence[MemberState]) -> int:
    """The micro-batches with which members have begun the step that goes on; 0 where none has."""
    step = newest_step(reports)
    return max((report.begun for report in reports if report.step == step and report.complete), default=0)


def plan(reports: Sequence[MemberState], micro_batches: int) -> Decision[RecoveryPlan]:
    """Bring all members to the newest step any of them has applied.

    Where no member has state, load the newest checkpoint that any of them sees, or begin at step 1. Those that
    `left_alone` names are not among them.
    """
    if not any(report.complete for report in reports):
        return _load(reports, micro_batches) if _loadable(reports) else _begin(reports, micro_batches)
    newest = newest_step(reports)
    there = {rank: None for rank, report in enumerate(reports) if report.step == newest}  # a set in the order of ranks
    whole = [rank for rank in there if reports[rank].complete]
    donors = tuple([rank for rank in whole if not reports[rank].aside] or whole)
    donors = tuple(sorted(donors, key=lambda rank: (-reports[rank].history, rank)))
    behind = ((r, newest - report.step) for r, report in enumerate(reports) if report.step is not None)
    replay = tuple((r, steps) for r, steps in behind if 0 < steps <= _reach(reports[donors[0]], reports[r].waiting))
    known = {*there, *(r for r, _ in replay)}
    fresh = tuple(r for r in range(len(reports)) if r not in known)
    held = tuple(
        report.nodes if rank in there and report.begun in (0, micro_batches) else ()
        for rank, report in enumerate(reports)
    )
    shares = _among_the_settled(micro_batches, held, fresh)
    kept = micro_batches - sum(map(len, shares))
    parts = [f"step {newest + 1} goes on with {kept} of {micro_batches} micro-batches kept"]
    if replay:
        most = max(steps for _, steps in replay)
        gradients = "the reduced gradient" if most == 1 else f"the last {most} reduced gradients"
        parts.append(f"{gradients} for {plural(len(replay), 'member')} behind")
    if fresh:
        parts.append(f"the state for {plural(len(fresh), 'newcomer')} from {plural(len(donors), 'peer')}")
    holdings = holdings_of(held, shares, micro_batches)
    joining = tuple(sorted({rank for rank, report in enumerate(reports) if report.waiting} - {*whole}))
    unproven = tuple(rank for rank, report in enumerate(reports) if report.unproven)
    proving = unproven if len(unproven) < len(reports) else ()
    joined = tuple(newest if proving and report.unproven else report.joined for report in reports)
    joined = joined if any(step is not None for step in joined) else ()
    found = RecoveryPlan(
        newest, donors, replay, fresh, held, shares, holdings, joining=joining, proving=proving, joined=joined
    )
    return Decision(found, "; ".join(parts))


def left_alone(reports: Sequence[MemberState]) -> Decision[tuple[int, ...]]:
    """The ranks that have to begin again with a new process: they hold snapshots, and nobody holds a whole state."""
    if any(report.complete for report in reports):
        return Decision((), "")
    partial = tuple(rank for rank, report in enumerate(reports) if report.partial)
    return Decision(partial, LEFT_ALONE if partial else "")


def are_aside(reports: Sequence[MemberState], plan: RecoveryPlan) -> bool:
    """Whether the members' cells are not between two steps: nobody can give a newcomer what belongs to such a place."""
    if plan.load is not None:
        return any(report.aside for report in reports)
    return reports[plan.donors[0]].aside


def _reach(donor: MemberState, waiting: bool) -> int:
    """The number of steps that the donor's reduced gradients bring a member forward."""
    return min(donor.history, donor.repeatable) if waiting else donor.history


def ordinary(plan: RecoveryPlan, micro_batches: int) -> RecoveryPlan:
    """The plan of an undisturbed step: contiguous shares, nothing held beforehand."""
    if plan.ordinary and micro_batches == sum(map(len, plan.shares)):
        return plan
    shares = assign(micro_batches, plan.world_size, plan.paces)
    holdings = tuple(cover(((leaf, leaf + 1) for leaf in share), micro_batches) for share in shares)
    return replace(plan, shares=shares, holdings=holdings, replay=(), fresh=(), ordinary=True, proving=())


FIRST_PAIRS = 4  # in the first steps members compare what their own micro-batches have left
PAIRS_EVERY = (500, 511)  # the second one in odd steps, too


@dataclass(frozen=True, slots=True)
class NewcomerCheck:
    """Rank ``newcomer`` and rank ``peer``, which was there before, both compute one ``micro_batch``.

    ``is_pair``: none of them is new, see `pair_checks`.
    """

    newcomer: int
    peer: int
    micro_batch: int
    is_pair: bool = False


def newcomer_checks(plan: RecoveryPlan, step: int, runs: int = 1) -> tuple[NewcomerCheck, ...]:
    """Those of step ``step + 1``, of which the loop's step takes ``runs``; the same on every member.

    A newcomer is checked in the loop's first step that it takes part in, and 1, 4, 16, 64 and so on steps later. Nobody
    waits for it in a step that was interrupted, of which it computes nothing: the next one is its first.
    """
    ages = {rank: -1 if joined is None else joined for rank, joined in enumerate(plan.joined)}
    found: list[NewcomerCheck] = []
    for rank in (rank for rank, joined in ages.items() if joined >= 0):
        turns = step // runs - ages[rank] // runs
        peers = [peer for peer, joined in ages.items() if joined < ages[rank]]
        if peers and (turns == 0 or (turns > 0 and turns.bit_count() == 1 and turns.bit_length() % 2)):
            peer = peers[len(found) % len(peers)]
            leaves = leaves_of(plan.holdings[rank]) or (leaves_of(plan.holdings[peer]) if turns else frozenset())
            if leaves:
                found.append(NewcomerCheck(rank, peer, min(leaves)))
    return tuple(found)


def pair_checks(plan: RecoveryPlan, step: int, runs: int = 1, at_end: bool = False) -> tuple[NewcomerCheck, ...]:
    """Those of step ``step + 1`` in a job that nothing disturbs; the same on every member.

    What a program does differently in later steps, or for some samples alone, does not show in the first step. In
    turns of the loop that `has_pairs`, and ``at_end``, in the last one, each rank computes a micro-batch of the rank
    before it, not always the same one.
    """
    turn = step // runs + 1
    is_due = has_pairs(turn) or (at_end and turn >= FIRST_PAIRS)
    if not is_due or not plan.ordinary or plan.world_size < 2:
        return ()
    found = []
    for rank in range(plan.world_size):
        if leaves := sorted(leaves_of(plan.holdings[rank])):
            place = turn.bit_length() + turn // PAIRS_EVERY[0] + rank
            found.append(NewcomerCheck(rank, (rank + 1) % plan.world_size, leaves[place % len(leaves)], True))
    return tuple(found)


def has_pairs(turn: int) -> bool:
    """Whether members repeat each other's micro-batches in this turn of the loop, counted from 1.

    Programs do something else in each fifth, tenth or hundredth turn, or in odd ones. So turns of each kind are among
    these: further and further apart, and later also each 500th and 511th.
    """
    doubled = turn.bit_count() == 1 or (turn % 3 == 0 and (turn // 3).bit_count() == 1)  # 4, 6, 8, 12, 16, 24 …
    odd = (turn + 1).bit_count() == 1 or (turn % 3 == 1 and (turn // 3).bit_count() == 1)  # 7, 13, 15, 25, 31, 49 …
    digits = str(turn)
    rounded = digits[0] in "1235" and not digits[1:].strip("0")  # 5, 10, 20, 30, 50, 100 …
    return turn >= FIRST_PAIRS and (doubled or odd or rounded or any(turn % every == 0 for every in PAIRS_EVERY))


def _among_the_settled(
    micro_batches: int, held: Sequence[Sequence[Node]], fresh: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """Shares of a step. Of an interrupted step newcomers compute nothing, so that the others need not wait for them."""
    settled = sorted({*range(len(held))} - {*fresh})
    if not any(held):
        return assign_missing(micro_batches, held)
    found = dict(zip(settled, assign_missing(micro_batches, [held[rank] for rank in settled]), strict=True))
    return tuple(found.get(rank, ()) for rank in range(len(held)))


def at_once(vacancies: int, state_bytes: int, step_time_s: float | None) -> Decision[bool]:
    """Whether newcomers join at the next commit and get the state there, while the others wait.

    After a loss this restores full strength one step sooner. Where the pause would be longer than half a step, or no
    member is missing, a newcomer first loads a snapshot while the others train.
    """
    pause_s = state_bytes / STATE_BYTES_PER_S
    shown_s = max(0.01, pause_s)  # nothing is said to take no time at all
    if not vacancies:
        return Decision(False, "nobody is missing: newcomers load a snapshot while the others train")
    if step_time_s is None or pause_s <= step_time_s / 2:
        return Decision(
            True, f"a place is empty, and giving the state takes about {shown_s:.2f} s: it is given at once"
        )
    return Decision(
        False, f"giving the state would take about {shown_s:.2f} s: newcomers load a snapshot while the others train"
    )


def _load(reports: Sequence[MemberState], micro_batches: int) -> Decision[RecoveryPlan]:
    newest = max(_loadable(reports))
    loaders = tuple(rank for rank, report in enumerate(reports) if newest in report.checkpoints)
    fresh = tuple(rank for rank, report in enumerate(reports) if newest not in report.checkpoints)
    nobody: tuple[tuple[Node, ...], ...] = ((),) * len(reports)
    shares = assign_missing(micro_batches, nobody)
    by = plural(len(loaders), "member")
    blind = f", {len(fresh)} that cannot see it get the state from them" if fresh else ""
    reason = f"nobody holds the training state: the checkpoint of step {newest[0]} is loaded by {by}{blind}"
    holdings = holdings_of(nobody, shares, micro_batches)
    return Decision(RecoveryPlan(newest[0], loaders, (), fresh, nobody, shares, holdings, newest, loaders), reason)


def _begin(reports: Sequence[MemberState], micro_batches: int) -> Decision[RecoveryPlan]:
    nobody: tuple[tuple[Node, ...], ...] = ((),) * len(reports)
    shares = assign_missing(micro_batches, nobody)
    differing = tuple(rank for rank, report in enumerate(reports) if report.digest != reports[0].digest)
    reason = "all members start from the same state"
    if differing:
        reason = f"a different initial state was built by {plural(len(differing), 'member')}: all take that of rank 0"
    holdings = holdings_of(nobody, shares, micro_batches)
    return Decision(RecoveryPlan(0, (0,), (), differing, nobody, shares, holdings), reason)
