"""Looks in the first steps for what makes a program impossible to repeat, and names the variable.

In the first step ranks 0 and 1 compute one micro-batch once more; rank 0 twice, if that has changed anything. Later the
members compare what their cells carry, and a member that was there before computes a micro-batch of each newcomer. A
difference is an error of the program: hardware that fails in the first steps of a run is rare. A program that depends
on more than its batch, the model and the seeded generators differs at once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...core.errors import TrainingError
from ...core.units import few
from ...policy.recovery import NewcomerCheck, RecoveryPlan, newcomer_checks, pair_checks
from ..comm.mesh import all_gather
from ..comm.reduction import FinishedNodes
from ..protocol import facts
from ..session.checksum import ChecksummedTensors, checksum
from ..session.gradients import Gradients
from ..session.state import TrainingState
from ..worker.replica_sync import Group
from .between import plain_settings
from .carried import Carried
from .comparison import Comparison
from .late import advice
from .reached import IMPURE, reached
from .walk import Walk

COMPARED_STEPS = 2
EARLY_TIMES = 3  # in a row
Compute = Callable[[int, FinishedNodes], None]
Executions = tuple[int, list[tuple[int, str]]]  # of a micro-batch: rank and checksum of the gradient, in order
INSTEAD = (
    'Compute it from step.number, or return it, return loss, {{"name": value}}, and read step.metrics["name"], which '
    "is that of the whole step"
)
DECIDES = (
    "{names} holds what each member's own share of the data has left there, and the training depends on it: on another "
    "number of nodes it would be another run. " + INSTEAD
)
ALONE = (
    "the training depends on {names}, which steps fill, and which is not part of the state that is given on. A member "
    "that joins later, or begins again after a fault, has only what its own share has left there, and may decide "
    "otherwise. " + INSTEAD
)
LATE = (
    "members hold different values of {names} after step {step}: a member has joined, and has only what its own share "
    "has left there. The training depends on it, so from here on the run may be another one than on one node, and it "
    "stops where members come to different states. " + INSTEAD
)
OWN_VALUES = (
    "members carry different values after step {step}: {names}. A member that joins later gets those of one member, so "
    "change them on every member alike, not only where session.rank is 0"
)
INSIDE = (
    "{member} joined in step {next}, when the others had begun it, and does not have what the program has changed "
    "before: {names}. If the loss function sets this, set it in the loop instead, in front of "
    "step.run(loss_function), from step.number. {advice}"
)
EARLY = (
    "{newcomers} joined in step {next}, when the others had begun it, and may lack what that has set: {names}. "
    "Newcomers begin again, and join between two steps"
)
LACKS = "{member} joined after step {step} and does not have what the program has changed before: {names}. {advice}"
DIFFERS = (
    "rank {newcomer} joined after step {joined}, and computes another gradient than rank {peer} for the same "
    "micro-batch of step {step}{cause}. Something that the loss function or the data set reads is different there, "
    "such as results that were kept from earlier steps. Compute it anew from the model, the batch and step.number, or "
    "keep its values in the session, session.state.name = ..."
)
APART = (
    "rank {one} and rank {other} compute different gradients for the same micro-batch of step {step}{cause}. Something "
    "that the loss function or the data set reads is different on each member, so on another number of nodes this "
    "would be another run. Compute it anew from the model, the batch and step.number, or keep it in a lane: "
    "session.lanes(...)"
)
UNLIKE = (
    " (if nothing in the program explains it, the processors of these nodes differ: write "
    "hp.Session(determinism='best-effort'))"
)
AGAIN = 2  # times that both members of a pair repeat what differs: a program may be right by chance
VARYING = (
    "step {step}: {times} executions of the same micro-batch{cause} gave {kinds} different gradients, where a device "
    "that fails spoils one. The loss function and the data set may depend only on the batch, the model and the seeded "
    "generators of torch, random and numpy; so on another number of nodes this would be another run. What a "
    "micro-batch leaves for the next step goes into a lane: lanes = session.lanes(...)"
)


class Reproducible:
    """The checks of one session's first steps. ``comparison`` sees what the cell can reach."""

    def __init__(
        self, group: Group, state: TrainingState, gradients: Gradients, comparison: Comparison, runs: int = 1
    ) -> None:
        self._group = group
        self._state = state
        self._gradients = gradients
        self._comparison = comparison
        self._runs = runs
        self._called = self._interrupted = False  # in this turn of the loop: the loss function; by a new generation
        self._has_warned = self._is_said_alone = False
        self._look = False  # at what is kept, when the next step begins: a member has joined
        self._kept: dict[str, str] | None = None
        self._early = 0  # times in a row that newcomers came in the middle of a turn
        self._first: dict[int, int] = {}  # by step: checksum of micro-batch 0's gradient, where this member computed it
        self._ahead: dict[NewcomerCheck, int] = {}  # checksums of this step that are known before it is reduced
        self._fills = False  # a micro-batch that was computed once more in this step has changed something

    def begins(self, step: int) -> None:
        """Step ``step + 1`` begins."""
        self._ahead, self._fills = {}, False
        if self._look:
            self._look, self._kept = False, self._comparison.kept()
        if step % self._runs == 0:
            self._called = self._interrupted = False

    def called(self) -> None:
        """The loss function is called."""
        self._called = True

    def interrupted(self) -> None:
        """A generation was formed in the middle of a step."""
        self._interrupted = True
        self._ahead = {}

    def computed(self, plan: RecoveryPlan, step: int, leaf: int, at_end: bool) -> None:
        """A micro-batch of step ``step + 1`` was computed for the first time; ``at_end``: of this member's last one."""
        if (node := self._gradients.finished.nodes.get((leaf, leaf + 1))) is None:
            return
        if step < self._runs and leaf == 0:
            self._first = {step: checksum(node.flats)}
        for check in self._checks(plan, step, at_end):
            if (plan.rank, leaf) == (check.newcomer, check.micro_batch):
                self._ahead[check] = checksum(node.flats)

    def compute_ahead(self, plan: RecoveryPlan, step: int, compute: Compute) -> None:
        """Compute what `compare` needs of this member, while newcomers still compute their share.

        It comes after this member's own share, so caches that its steps fill are full.
        """
        due = [check for check in self._checks(plan, step) if plan.rank == check.peer and check not in self._ahead]
        if due:
            before = self._comparison.look()
            self._ahead |= {check: self._checked(plan.rank, check, compute) for check in due}
            self._fills = self._comparison.filled(before)

    def _checks(self, plan: RecoveryPlan, step: int, at_end: bool = False) -> tuple[NewcomerCheck, ...]:
        if self._group.replica > 1:
            return ()
        return newcomer_checks(plan, step, self._runs) or pair_checks(plan, step, self._runs, at_end)

    def check(
        self, plan: RecoveryPlan, step: int, carried: Carried, compute: Compute, loss_function: Callable[..., Any]
    ) -> None:
        """Check step ``step + 1``, which is reduced and not applied yet. Raises TrainingError, on all members.

        ``compute(leaf, nodes)`` computes a micro-batch.
        """
        if self._group.replica > 1:
            return
        since = [step - joined for joined in plan.joined if joined is not None]
        if self._runs in since:
            self._compare_late(plan, step)
        self._look = self._look or 0 in since
        if step > max(COMPARED_STEPS, self._runs):
            return
        if step == COMPARED_STEPS and self._runs == 1:
            self._carry_once(plan)
        if step < self._runs:  # each run of the first step has a loss function of its own
            self._execute_again(plan, step, compute, (loss_function, self._comparison.data))
        elif plan.world_size == 1:
            self._warn_alone()
        else:
            inside = {tuple(one) for part in self._gather(plan, [*self._comparison.set_inside()]) for one in part}
            self._compare(plan, step, carried.variables.digests(inside) | carried.paths.digests())

    def prove(self, plan: RecoveryPlan, step: int) -> None:
        """Compare what the program has changed with what newcomers have, before step ``step + 1``.

        Raises TrainingError, on all members, where one of them lacks something: it would compute something else.
        In a step that was interrupted, newcomers begin again instead (raises Regroup): the others may have what the
        loss function has set there.
        """
        if self._group.replica > 1:
            return
        called = self._gather(plan, self._called)
        trained = set(range(plan.world_size)) - set(plan.proving)
        first = min(trained, key=lambda rank: (not called[rank], rank))
        others = plan.proving if plan.rank == first else (first,) if plan.rank in plan.proving else ()
        late = self._comparison.late
        now = late.look() if others else Walk()
        tables = self._gather(plan, late.shown(now) if others else None)
        compare = late.differing if plan.rank == first else late.lacking  # only a newcomer puts values back
        lacks = {name: None for other in others for name in compare(now, tables[other])}
        found = self._gather(plan, {"lacks": list(lacks), "early": self._may_miss(plan, called)})
        again = [part["early"] for rank, part in enumerate(found) if rank in trained and part["early"] is not None]
        self._early += 1
        if again and max(times for times, _ in again) < EARLY_TIMES:
            missed = [*(part["lacks"] for part in found), *(set_there for _, set_there in again)]
            if lacking := dict.fromkeys(name for names in missed for name in names):
                who = ", ".join(f"rank {rank}" for rank in plan.proving)
                text = EARLY.format(newcomers=who, next=step + 1, names=few(list(lacking)))
                self._group.again(facts.NewcomersEarly(plan.generation, plan.proving, self._runs, text))
        self._early = 0
        for rank, part in enumerate(found):
            if part["lacks"]:
                newcomer = f"rank {rank if rank in plan.proving else plan.proving[0]}"
                sentence, names, then = INSIDE if again else LACKS, few(part["lacks"]), advice(part["lacks"])
                raise TrainingError(
                    sentence.format(member=newcomer, step=step, next=step + 1, names=names, advice=then)
                )

    def _may_miss(self, plan: RecoveryPlan, called: Sequence[bool]) -> tuple[int, list[str]] | None:
        """How often in a row newcomers came in the middle of a step, and what they may miss besides what differs.

        ``called``: by rank, whether it has called the loss function there. None where the step was not interrupted.
        """
        if plan.rank in plan.proving or not self._interrupted:
            return None
        is_set = any(called) and not all(called[rank] for rank in plan.proving)
        return self._early, self._comparison.late.may_miss(is_set)

    def compare(
        self, plan: RecoveryPlan, step: int, compute: Compute, loss_function: Callable[..., Any], pairs: bool,
        at_end: bool = False,
    ) -> list[Executions]:  # fmt: skip
        """Compare what newcomers compute in step ``step + 1`` with what others compute of the same micro-batches; or,
        ``pairs``, what members compute that were there before, ``at_end`` also in the last step.

        Where one of the two gets another gradient when it computes that once more, its executions are returned, which
        are a matter for `Integrity`. Raises TrainingError, on all members, where both get the same again.
        """
        checks = [check for check in self._checks(plan, step, at_end) if check.is_pair is pairs]
        if not checks:
            return []
        takes_part = any(plan.rank in (check.newcomer, check.peer) and check not in self._ahead for check in checks)
        before = self._comparison.look() if takes_part else None
        shown = self._gather(plan, [self._checked(plan.rank, check, compute) for check in checks])
        first = {check: (shown[check.newcomer][i], shown[check.peer][i]) for i, check in enumerate(checks)}
        found = [check for check, (newcomer, peer) in first.items() if newcomer != peer]
        mark = self._comparison.look() if found else Walk()
        turns = range(AGAIN if pairs else 1) if found else ()
        again = [self._gather(plan, [self._checked(plan.rank, c, compute, again=True) for c in found]) for _ in turns]
        doubted = []
        for place, check in enumerate(found):
            repeated = [(shown[check.newcomer][place], shown[check.peer][place]) for shown in again]
            if all(pair == first[check] for pair in repeated):
                raise TrainingError(self._difference(plan, step, check, (loss_function, self._comparison.data)))
            numbers = [number for pair in (first[check], *repeated) for number in pair]
            if pairs and Counter(numbers).most_common(1)[0][1] < len(numbers) - 1:
                raise TrainingError(self._varying(plan, step, numbers, mark))
            ranks = (check.newcomer, check.peer) * (1 + len(turns))
            done = [(rank, str(number)) for rank, number in zip(ranks, numbers, strict=True)]
            doubted.append((check.micro_batch, done))
        if before is not None:
            self._fills = self._comparison.filled(before) or self._fills
        if pairs:
            self._refuse_counting(plan, checks, compute)
        return doubted

    def _refuse_counting(self, plan: RecoveryPlan, checks: Sequence[NewcomerCheck], compute: Compute) -> None:
        """Raise TrainingError, on all members, where each execution of a micro-batch changes what training reads."""
        found: list[str] = []
        leaf = next((check.micro_batch for check in checks if plan.rank in (check.peer, check.newcomer)), None)
        if self._fills and leaf is not None:
            walks = [(self._sum(compute, leaf), self._comparison.look())[1] for _ in range(2)]
            found = self._comparison.counted(*walks, late=True)
        if sentence := next((one for part in self._gather(plan, found) for one in part), ""):
            raise TrainingError(sentence)

    def _checked(self, rank: int, check: NewcomerCheck, compute: Compute, again: bool = False) -> int:
        """The checksum of a micro-batch's gradient, as this rank has it in the step or computes it; else 0."""
        if rank not in (check.newcomer, check.peer):
            return 0
        node = self._gradients.finished.nodes.get((check.micro_batch, check.micro_batch + 1))
        if not again and (node is not None or check in self._ahead):
            return self._ahead[check] if node is None else checksum(node.flats)
        return self._sum(compute, check.micro_batch)

    def _difference(self, plan: RecoveryPlan, step: int, check: NewcomerCheck, sources: Any) -> str:
        held = self._gather(plan, self._reached(sources) if plan.rank in (check.newcomer, check.peer) else {})
        names = _differing([held[check.newcomer], held[check.peer]])
        cause = f", because of {few([self._comparison.named(name) for name in names])}" if names else ""
        newcomer, peer = check.newcomer, check.peer
        if check.is_pair:
            return APART.format(one=newcomer, other=peer, step=step + 1, cause=cause or UNLIKE)
        return DIFFERS.format(newcomer=newcomer, joined=plan.joined[newcomer], peer=peer, step=step + 1, cause=cause)

    def _varying(self, plan: RecoveryPlan, step: int, numbers: Sequence[int], mark: Walk) -> str:
        seen = self._comparison.names(mark, self._comparison.look(), early=False)
        names = list(dict.fromkeys(name for part in self._gather(plan, seen) for name in part))
        cause = f", which change {few(names)}" if names else ""
        return VARYING.format(step=step + 1, times=len(numbers), kinds=len(set(numbers)), cause=cause)

    def _compare(self, plan: RecoveryPlan, step: int, carried: Mapping[str, str]) -> None:
        tables = self._gather(plan, dict(carried))
        common = set(tables[0]).intersection(*tables)
        tables = [{name: text for name, text in table.items() if name in common} for table in tables]
        if names := [name for name in _differing(tables) if self._comparison.matters(name.partition(" (")[0])]:
            raise TrainingError(OWN_VALUES.format(step=step, names=few(names)))
        names = _differing(self._gather(plan, self._comparison.left()))  # all members, whoever has warned before
        if deciding := [name for name in names if name in self._comparison.late.deciding]:
            raise TrainingError(DECIDES.format(names=few(deciding)))
        if names and plan.rank == 0 and not self._has_warned:
            self._has_warned = True
            self._comparison.warn_of_left(names)

    def _carry_once(self, plan: RecoveryPlan) -> None:
        """Carry what the loss function has set in the first step alone, where all members have the same."""
        tables = self._gather(plan, self._comparison.once())
        differing = _differing(tables)
        self._comparison.carry_once([path for path in tables[plan.rank] if path not in differing])

    def _compare_late(self, plan: RecoveryPlan, step: int) -> None:
        """Compare what the training depends on by what the oldest member knows: a newcomer has seen other steps.

        It is only said: what a job has computed alone is right, and the comparison of states ends it where it has to.
        """
        tables, self._kept = self._gather(plan, self._kept), None
        joined = [-1 if step is None else step for step in plan.joined]
        known = tables[joined.index(min(joined))]
        if known is None or None in tables or plan.rank or self._has_warned:
            return
        if names := _differing([{name: table.get(name, "") for name in known} for table in tables]):
            self._has_warned = True
            self._comparison.warn(LATE.format(names=few(names), step=step))

    def _warn_alone(self) -> None:
        """There is nobody to compare with, so it can only be said what a second member would show."""
        if self._is_said_alone or not self._comparison.members_join:
            return
        if names := list(self._comparison.kept()):
            self._is_said_alone = True
            self._comparison.warn(ALONE.format(names=few(names)))

    def _execute_again(self, plan: RecoveryPlan, step: int, compute: Compute, sources: Any) -> None:
        times = 2 if plan.rank == 0 else 1 if plan.rank == 1 else 0
        held, walks = ([self._reached(sources)], [self._comparison.look()]) if times else ([], [])
        sums = [self._first[step]] if step in self._first else []
        counted: list[str] = []
        settings = plain_settings(self._state.settings()) if times else []
        for turn in range(times):
            if turn and not self._comparison.counted(*walks):
                break  # a second time shows what goes on changing, not what was only filled, such as a cache
            sums.append(self._sum(compute, 0))
            held.append(self._reached(sources))
            walks.append(self._comparison.look())
            counted = self._comparison.counted(*walks[1:]) if turn else []
        if times:
            counted += self._comparison.settings_inside(settings, plain_settings(self._state.settings()))
        shown = self._gather(plan, {"sums": sums, "counted": counted})
        if len({number for part in shown for number in part["sums"]}) == 1:
            if found := next((part["counted"] for part in shown if part["counted"]), None):
                raise TrainingError(found[0])
            return
        if refused := self._comparison.refused():
            raise TrainingError(refused)
        changed = {name for one, other in zip(held, held[1:], strict=False) for name in _differing([one, other])}
        seen = self._comparison.names(walks[0], walks[-1]) if walks and not changed else []
        found = self._gather(plan, {"changed": sorted(changed), "held": held[-1] if held else {}, "seen": seen})
        names = sorted({name for part in found for name in part["changed"]})
        names = names or _differing([part["held"] for part in found[:2]])
        names = [self._comparison.named(name) for name in names] or found[0]["seen"]
        cause = f", because of {few(names)}" if names else ""
        raise TrainingError(IMPURE.format(cause=cause))

    def _reached(self, sources: Any) -> dict[str, str]:
        tensors = self._state.tensors()
        numbers = zip(tensors, ChecksummedTensors(list(tensors.values())).checksums(), strict=True)
        return reached(sources, self._comparison.own) | {f"the model's {name}": str(number) for name, number in numbers}

    def _sum(self, compute: Compute, leaf: int) -> int:
        nodes = self._gradients.separate_nodes()
        try:
            self._group.touch("compute", self._state.applied)
            compute(leaf, nodes)
            return checksum(next(iter(nodes.nodes.values())).flats)
        finally:
            nodes.clear()

    def _gather(self, plan: RecoveryPlan, value: Any) -> list[Any]:
        """The JSON value of every member, by rank."""
        self._group.touch("exchange", self._state.applied)
        own = json.dumps(value).encode()
        show = self._group.exchange
        sizes = all_gather(show, plan.rank, plan.world_size, len(own).to_bytes(8, "big"))
        most = max(int.from_bytes(size, "big") for size in sizes)
        return [json.loads(text) for text in all_gather(show, plan.rank, plan.world_size, own.ljust(most))]


def _differing(tables: Sequence[Mapping[str, str]]) -> list[str]:
    """Names that not all tables have with the same digest."""
    return sorted({name for table in tables for name in table if len({t.get(name) for t in tables}) > 1})
