"""Detects silent data corruption by checksums: taken when a step begins, and compared before it is applied.

`Integrity.seal` takes checksums of the training state. `Integrity.verify` takes them again after the reduction, and
compares them, and the gradient's checksum, with those of all members, so that a difference is found before anything is
applied. With a rate, another member executes some micro-batches again. `policy.verdict` decides which member was wrong,
from the reports of all members to the coordinator.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import numpy as np
import torch

from ...core.errors import SpecError, TrainingError
from ...core.units import few
from ...policy import verdict
from ...policy.batching import Node
from ...policy.recovery import RecoveryPlan
from ..comm.mesh import all_gather
from ..comm.reduction import Buffer, FinishedNodes
from ..data.order import mix
from ..program.between import plain_settings
from ..program.cell_checks import (
    UNKNOWN_WRITES,
    number_of,
    refuse_other_order,
    refuse_other_settings,
    refuse_other_writes,
)
from ..worker.replica_sync import Group
from .checksum import ChecksummedTensors, Words, checksum, fold
from .gradients import Gradients
from .state import TrainingState

Compute = Callable[[int, FinishedNodes], None]
Audit = str | float | None
# checksums of the state when the step began, the state now, the reduced gradient, the optimizer's settings; writes; end
_NUMBERS = struct.Struct(">6Q")
_CHECKSUM = struct.Struct(">Q")
_ALL_BITS = (1 << 64) - 1
NOT_REPEATABLE = (
    "step {step}: executed once more, micro-batches of rank {one} and of rank {other} gave other gradients, where "
    "hardware fails on one member. The likely cause is the program, not a node: a loss function must depend on its "
    "batch, the model and seeded generators alone; no node is fenced and nothing starts again"
)
UNAUDITED = (
    "step {step}: rank {rank} computed a wrong gradient, and nothing of it is applied: {reason}. With audit='state', "
    "the default, the job goes on without that member"
)
FROZEN = "requires_grad"  # listed with the tensors where members have frozen different parameters
_DRAW_RANGE = 1 << 64


def rate_of(audit: Audit) -> float | None:
    """Probability of a re-execution per step, None where nothing is checked. Raises SpecError for anything else."""
    if audit is None:
        return None
    if audit == "state":
        return 0.0
    if isinstance(audit, (int, float)) and not isinstance(audit, bool) and 0 < audit <= 1:
        return float(audit)
    raise SpecError(
        f"audit is {audit!r}; expected None, 'state' or the probability (above 0, at most 1) that a micro-batch of a "
        "step is executed again"
    )


class StateChecksums:
    """Checksums of the training state at one moment of step ``step + 1``."""

    def __init__(self, step: int, tensors: dict[str, torch.Tensor], before: StateChecksums | None) -> None:
        self.step = step
        self.names = list(tensors)
        watched = before.watched if before is not None else ChecksummedTensors([])
        self.watched: ChecksummedTensors = watched.of(list(tensors.values()))
        self.versions = self._versions()
        self.numbers = self.watched.checksums()

    def again(self) -> Words:
        """Checksums of the same memory now; a tensor that the program has written to meanwhile is read again."""
        numbers = self.watched.checksums()
        for place, (before, now) in enumerate(zip(self.versions, self._versions(), strict=True)):
            if before != now:
                self.numbers[place] = numbers[place]
        return numbers

    def _versions(self) -> list[int]:
        """Versions of the tensors: torch counts its own writes, a flipped bit is not counted."""
        return [tensor._version for tensor in self.watched.tensors]


class Integrity:
    """The checks of one session. Where ``audit`` is None nothing is checked, and `judge` accuses no member."""

    def __init__(self, group: Group, state: TrainingState, gradients: Gradients, seed: int, audit: Audit) -> None:
        self._group = group
        self._state = state
        self._gradients = gradients
        self._seed = seed
        self._rate = rate_of(audit)
        self._sealed: StateChecksums | None = None
        self._settings: tuple[list[dict[str, Any]], int] | None = None  # of the last step, and their number
        self._doubted: dict[str, int] = {}  # differing reduced gradients of this step, by member
        self._evidence: dict[str, Any] = {}
        self.at_end = False  # for all members this step is the last one of their loop
        self._results: WeakKeyDictionary[Buffer, ChecksummedTensors] = WeakKeyDictionary()

    def seal(self) -> None:
        """Take the state as correct from here on: a step begins, or this member has just loaded a peer's state."""
        if self._rate is None:
            return
        self._sealed = StateChecksums(self._state.applied, self._state.tensors(), self._sealed)
        self._doubted, self._evidence = {}, {}

    def renew(self) -> None:
        """A generation was formed: seal the state if it has changed."""
        if self._sealed is not None and self._sealed.step != self._state.applied:
            self.seal()

    def verify(
        self, plan: RecoveryPlan, result: Buffer, compute: Compute, writes: int | None = None, at_end: bool = False
    ) -> None:
        """Compare with all members; ``compute(leaf, nodes)`` executes a micro-batch of this step.

        ``writes``: of the cell to parameters since the last step, None where they are not known. ``at_end``: this
        step is the last one of this member's loop. Raises Regroup where something is wrong (in a job of a single
        process: TrainingError), and TrainingError where executions of the same micro-batches differ and no member can
        be proven wrong, or the cell has done other things on some members.
        """
        if self._rate is None or self._sealed is None:
            return
        self._evidence, self.at_end = {}, False
        now = self._sealed.again()
        frozen = self._frozen()
        states = ((fold(words) + frozen) & _ALL_BITS for words in (self._sealed.numbers, now))
        numbers = (*states, fold(self._watched_of(result).checksums()))
        shown = self._compared(plan, numbers, writes, at_end)
        differ = len(set(shown)) > 1 or any(sealed != state for sealed, state, _ in shown)
        if differ or any(gradient != shown[0][2] for gradient in self._doubted.values()):
            self._alarm(plan, now, shown)
        if (leaf := drawn(self._seed, self._state.applied, self._rate, self._gradients.micro_batches)) is not None:
            self._execute_again(plan, leaf, compute)

    def _compared(
        self, plan: RecoveryPlan, numbers: Iterable[int], writes: int | None, at_end: bool
    ) -> list[tuple[int, int, int]]:
        """The checksums of all members, by rank. Raises Regroup, and TrainingError: see `verify`."""
        step, settings = self._state.applied + 1, plain_settings(self._state.settings(declared=True))
        if self._settings is None or self._settings[0] != settings:
            self._settings = settings, number_of(settings)
        own = self._group.combined((*numbers, self._settings[1]))
        counted = UNKNOWN_WRITES if writes is None or self._group.replica > 1 else writes & _ALL_BITS
        members = [_NUMBERS.unpack(octets) for octets in self._gather(plan, _NUMBERS.pack(*own, counted, at_end))]
        self.at_end = all(member[5] for member in members)
        if any(sealed != state for sealed, state, *_ in members):
            return [member[:3] for member in members]
        if len({state for _, state, *_ in members}) > 1:  # an optimizer may compute a setting from the weights
            refuse_other_order(step, self._state.order(), partial(self._gather, plan))
            refuse_other_writes(step, [member[4] for member in members])
        else:
            refuse_other_settings(
                step, [member[3] for member in members], settings, partial(self._gather, plan), plan.joined
            )
        return [member[:3] for member in members]

    def statement(self) -> verdict.Statement | None:
        """This member's statement for the coordinator when a generation forms.

        It checks once more, because newcomers may get its state now, and a corrupt state must not be passed on.
        """
        sealed = self._sealed
        if sealed is None or sealed.step != self._state.step:
            return None
        found = {"sealed": f"{fold(sealed.numbers):016x}", "state": f"{fold(sealed.again()):016x}"}
        if self._group.replica > 1:  # the numbers of its ranks are combined in the report
            return verdict.Statement(step=sealed.step, **(self._evidence | found))
        return verdict.Statement(step=sealed.step, **(found | self._evidence))

    def check_unchanged(self, plan: RecoveryPlan | None) -> None:
        """Check the state before giving it away in mid-step. Raises Regroup where it changed since it was sealed."""
        sealed = self._sealed
        if sealed is None or plan is None or sealed.step != self._state.step:
            return
        now = sealed.again()
        if places := np.flatnonzero(now != sealed.numbers).tolist():
            own = {plan.owners[plan.rank]: few([sealed.names[place] for place in places])}
            numbers = {"sealed": f"{fold(sealed.numbers):016x}", "state": f"{fold(now):016x}"}
            self._accuse(plan, numbers | {"tensors": own})

    def _watched_of(self, result: Buffer) -> ChecksummedTensors:
        """The tensors of a reduced gradient; the same few buffers come again and again."""
        if (watched := self._results.get(result)) is None:
            watched = self._results[result] = ChecksummedTensors(result.flats)
        return watched

    def _frozen(self) -> int:
        """The set of frozen parameters, as a part of the state's checksum; ranks of a replica only report tensors."""
        return fold(self._gradients.frozen()) if self._group.replica == 1 else 0

    def _gather(self, plan: RecoveryPlan, own: bytes) -> list[bytes]:
        """Gather the bytes of every member, by rank; all have the same length."""
        return all_gather(self._group.exchange, plan.rank, plan.world_size, own)

    def _differing(self, plan: RecoveryPlan, now: Words, shown: Sequence[tuple[int, int, int]]) -> dict[str, str]:
        """The differing tensors, by member: from the member's own earlier state, or from most of the intact members."""
        assert self._sealed is not None
        frozen = np.array([self._frozen()], np.uint64).tobytes()
        own = self._sealed.numbers.tobytes() + frozen + now.tobytes() + frozen
        tables = [np.frombuffer(t, np.int64) for t in self._gather(plan, own)]
        before, after = zip(*(np.split(table, 2) for table in tables), strict=True)
        intact = [rank for rank, (sealed, state, _) in enumerate(shown) if sealed == state]
        common = Counter(shown[rank][1] for rank in intact).most_common(1)
        model = next((rank for rank in intact if shown[rank][1] == common[0][0]), None)
        names = [*self._sealed.names, FROZEN]
        found = {}
        for rank, owner in enumerate(plan.owners):
            other = before[rank] if rank not in intact or model is None else after[model]
            if places := np.flatnonzero(after[rank] != other).tolist():
                found[owner] = few([names[place] for place in places])
        return found

    def _alarm(self, plan: RecoveryPlan, now: Words, shown: Sequence[tuple[int, int, int]]) -> NoReturn:
        """Report an error, and leave the step to a generation without the faulty member. Raises Regroup."""
        sealed, state, gradient = shown[plan.rank]
        frozen = self._frozen()
        own = {"sealed": sealed - frozen, "state": state - frozen, "frozen": frozen}
        evidence: dict[str, Any] = {name: f"{number & _ALL_BITS:016x}" for name, number in own.items()}
        if len({(own, later) for own, later, _ in shown}) == 1 and sealed == state:
            evidence["gradient"] = f"{self._doubted.get(plan.owners[plan.rank], gradient):016x}"
            if self._doubted:
                evidence["again"] = f"{gradient:016x}"
            self._doubted = {owner: numbers[2] for owner, numbers in zip(plan.owners, shown, strict=True)}
        self._evidence = evidence  # set before the exchange in the next line, after which other members may accuse
        evidence["tensors"] = {}
        for named in self._group.gather(self._differing(plan, now, shown)):
            evidence["tensors"] = named | evidence["tensors"]
        self._accuse(plan, evidence)

    def _accuse(self, plan: RecoveryPlan, evidence: dict[str, Any]) -> NoReturn:
        self._evidence = evidence
        own = verdict.Statement(plan.owners[plan.rank], f"rank {plan.rank}", self._state.applied, **evidence)
        found = verdict.judge([own]).reason
        self._group.accuse(found or f"members differ in step {self._state.applied + 1}")

    def judge(self, plan: RecoveryPlan, executions: Sequence[tuple[int, str]], node: Node, compute: Compute) -> None:
        """Judge executions of the micro-batches ``node``, by (rank, checksum), that differ. Raises as `verify`.

        Without checksums of the state no member is accused: the job stops.
        """
        self._evidence = {}
        found, step = verdict.of_executions([checksum for _, checksum in executions]), self._state.applied + 1
        if found.value is None:
            raise TrainingError(f"step {step}: {found.reason}")
        wrong = executions[found.value][0]
        self._refuse_program(plan, wrong, node, compute)
        if self._rate is None:
            raise TrainingError(UNAUDITED.format(step=step, rank=wrong, reason=found.reason))
        self._accuse(plan, {"executions": tuple((plan.owners[rank], checksum) for rank, checksum in executions)})

    def _execute_again(self, plan: RecoveryPlan, leaf: int, compute: Compute) -> None:
        """Let another member compute the sum that holds ``leaf``, and compare."""
        owner, node = next((r, n) for r, nodes in enumerate(plan.holdings) for n in nodes if n[0] <= leaf < n[1])
        draw = mix(self._seed, self._state.applied, leaf)
        done: list[tuple[int, str]] = []
        while (rank := verdict.next_execution(done, owner, plan.world_size, draw)) is not None:
            own = 0
            if rank == plan.rank:
                own = self._sum_of(node, compute) if done else checksum(self._gradients.finished.nodes[node].flats)
            shown = self._gather(plan, _CHECKSUM.pack(*self._group.combined([own])))
            done.append((rank, shown[rank].hex()))
        if len({checksum for _, checksum in done}) > 1:
            self.judge(plan, done, node, compute)

    def _refuse_program(self, plan: RecoveryPlan, accused: int, node: Node, compute: Compute) -> None:
        """Raise TrainingError where a member that is not accused gets another sum, too, when it executes one again."""
        control = control_of(plan.holdings, accused, node)
        if control is None:
            return
        rank, other = control
        own = [0, 0]
        if rank == plan.rank:
            own = [checksum(self._gradients.finished.nodes[other].flats), self._sum_of(other, compute)]
        shown = self._gather(plan, b"".join(_CHECKSUM.pack(*self._group.combined([number])) for number in own))
        if shown[rank][: _CHECKSUM.size] != shown[rank][_CHECKSUM.size :]:
            raise TrainingError(NOT_REPEATABLE.format(step=self._state.applied + 1, one=accused, other=rank))

    def _sum_of(self, node: Node, compute: Compute) -> int:
        """Checksum of the sum of micro-batches ``node``, computed aside."""
        self._group.gather(None)  # the ranks of a replica compute it together or not at all
        nodes = self._gradients.separate_nodes()
        try:
            for leaf in range(*node):
                self._group.touch("compute", self._state.applied)
                compute(leaf, nodes)
            self._group.touch("exchange", self._state.applied)
            return checksum(nodes.nodes[node].flats)
        finally:
            nodes.clear()


def control_of(holdings: Sequence[Sequence[Node]], accused: int, node: Node) -> tuple[int, Node] | None:
    """Whose sum of micro-batches shows whether the program can be repeated: of another rank where there is one."""
    firsts = [(rank, min(nodes)) for rank, nodes in enumerate(holdings) if nodes]
    others = sorted((rank == accused, first, rank) for rank, first in firsts if first != node)
    return (others[0][2], others[0][1]) if others else None


def drawn(seed: int, step: int, rate: float, micro_batches: int) -> int | None:
    """The micro-batch of step ``step + 1`` to execute again, or None; equal on every member."""
    draw = mix(seed, step, -1)
    return mix(draw) % micro_batches if draw < rate * _DRAW_RANGE else None
