"""Evaluates a function over data on all members together; the result is the same bits, whoever computes what.

The data is cut into batches in its order. A round shares the batches that nobody has among the members, and then all
members show each other what they have. After a loss the survivors keep their results, so only the lost share is
computed again. Who has the result and goes on gives it to members that were interrupted (`meet`), because they cannot
get it from those that are left otherwise.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from ...core.errors import SpecError, TrainingError
from ...policy.recovery import RecoveryPlan
from ..checkpoint.ended import SessionEnd
from ..comm.mesh import all_gather
from ..data.given import Given, given
from ..data.indexed import IndexedData, indexed, single
from ..data.order import mix
from ..program.walk import Walk
from ..worker.elastic_group import ElasticGroup
from ..worker.group_base import Regroup
from .parts import Parts
from .purity import seeded
from .step_record import finite

Pair = tuple[float, float]  # a sum and its weight
Result = dict[str, float]  # by name; "" for a function that returns one value
RESULTS = "results of session.evaluate()"  # what members give to newcomers under this name
_MAGIC = b"HPEVAL"
_CALL = struct.Struct(">6sHQ")  # no longer than the first bytes of any other exchange, so that a mistake is noticed
_PLACE = struct.Struct(">QQ?I")  # evaluations completed, steps applied, whether one goes on, bytes of the last result
APART = (
    "this member evaluates, and another one does something else: call session.evaluate() on every member, not only "
    "where session.is_main or session.rank is 0"
)
MORE = (
    "session {session} of this cell was over when this member came, and its code calls session.evaluate() there at a "
    "place where the others did not: it depends on more than what the session carries. Keep such values in the "
    "session, session.state.name = ..., or give the later session a cell of its own"
)
EARLIER = (
    "this member joined after step {step}, and the others have no result of this session.evaluate(): loop over epochs "
    "with `for epoch in session.epochs(n)`, which skips what is over"
)
VARIES = (
    "the function given to session.evaluate() returned another result for the same batch the second time: it may "
    "depend on its batch, the model and the seeded generators of torch, random and numpy alone, not on time"
)
FORMS = "return a number, a (sum, weight) pair, or a dict of them"


class Evaluations:
    """The evaluations of one session. ``results``: by the place of the call, for newcomers that run it later."""

    def __init__(self, parts: Parts, model: torch.nn.Module, exact: bool) -> None:
        """``exact``: executing a batch once more gives the same bits."""
        self._parts, self._group, self._model = parts, parts.group, model
        self.results: dict[str, Any] = {}
        self._done = 0  # completed by the members together
        self._exact = exact
        self._called: set[Any] = set()  # functions that have been called
        self._warned: set[str] = set()
        self._busy = False
        self._last: Result = {}
        self._given: Result | None = None  # of the present one, by a member that has it
        self._record: dict[str, Any] | None = None  # of the last one, where rank 0 journals it
        parts.carried.register({RESULTS: self.results})
        # elsewhere, a circle of references would only delay freeing memory; replicas of several ranks do not evaluate
        if isinstance(parts.group, ElasticGroup) and parts.group.replica == 1:
            parts.resync.on_formed = self.meet

    def run(
        self,
        place: str,
        aside: bool,
        function: Callable[[Any], Any],
        data: Any,
        micro_batch: int | None,
        name: str,
    ) -> float | dict[str, float]:
        """Evaluate, through as many generations as it takes. ``aside``: the cell is not where newcomers begin."""
        if self._group.replica > 1:
            raise TrainingError("session.evaluate() is not available with --replica: evaluate in a job of its own")
        if self._parts.carried.waits:
            return _shown(self._earlier(place))
        if (over := self._parts.resync.over) is not None:
            return _shown(_of_ended(over, place))
        source, size = _cut(data, micro_batch, self._parts.settings.micro_batch)
        work = _Work(self._parts, self._model, function, source, size)
        work.is_first = work.code not in self._called and not self._parts.carried.first_step
        self._called.add(work.code)
        self._given, self._busy = None, True
        try:
            result = self._through_generations(work, aside)
        finally:
            self._busy = False
            self._group.stand_aside(False)
        self._done += 1
        self._last = self.results[place] = result
        step = self._parts.state.applied
        values = {f"{name}.{one}" if one else name: finite(value) for one, value in result.items()}
        self._record = {"step": step, "values": values}
        self._journal()
        self._group.touch("user", step)
        return _shown(result)

    def _through_generations(self, work: _Work, aside: bool) -> Result:
        while True:
            try:
                self._group.stand_aside(aside)
                return self._round(work)
            except Regroup as call:
                self._parts.resync.regroup(call)
                if self._given is not None:
                    return self._given

    def _round(self, work: _Work) -> Result:
        """Compute what nobody has, and show it to all. Raises Regroup."""
        step = self._parts.state.applied
        self._group.touch("exchange", step)
        calls = self._gather(_CALL.pack(_MAGIC, work.size % (1 << 16), self._done))
        if len(set(calls)) > 1:
            raise TrainingError(APART)
        known = [_bits(shown) for shown in self._gather(work.held())]
        missing = [number for number in range(work.count) if not any(number in one for one in known)]
        rank, world = self._plan.rank, self._plan.world_size
        share = missing[rank * len(missing) // world : (rank + 1) * len(missing) // world]
        for place, number in enumerate(share):
            self._group.poll()
            self._group.touch("compute", step)
            twice = self._parts.comparison.members_join and (self._exact or work.is_first)
            if twice and place == mix(self._done) % len(share):
                self._compute_twice(work, number)
            else:
                work.compute(number)
        self._group.touch("exchange", step)
        found: dict[int, dict[str, Pair]] = {}
        for text in self._gather_texts(json.dumps(list(work.found.items())).encode()):
            found.update(dict(json.loads(text)))
        return work.reduced(found)

    def _compute_twice(self, work: _Work, number: int) -> None:
        """Raise TrainingError where the function changes what the program reads, or gives another result.

        What it keeps of a batch that it has seen, such as a cache, does not change when it sees that batch again. After
        the first call, what the program only prints is warned of: the training is right.
        """
        comparison, began = self._parts.comparison, self._look()
        work.compute(number)
        before, first = self._look(), work.found[number]
        try:
            comparison.look_at_containers(began.changed(before), before)
        except TrainingError as error:
            if work.is_first or comparison.decides(began.changed(before), before):
                raise
            self._warn(str(error))
        work.compute(number)
        after = self._look()
        if found := comparison.changed_by_evaluation(before, after, work.code, decides=not work.is_first):
            raise TrainingError(found)
        if not work.is_first and (found := comparison.changed_by_evaluation(before, after, work.code)):
            self._warn(found)
        if self._exact and str(work.found[number]) != str(first):
            raise TrainingError(VARIES)

    def _look(self) -> Walk:
        """Everything now. This member is at work before and after it, as whoever watches it is told."""
        self._group.touch("compute", self._parts.state.applied)
        walk = self._parts.comparison.look()
        self._group.touch("compute", self._parts.state.applied)
        return walk

    def _warn(self, sentence: str) -> None:
        """Warn once."""
        if sentence not in self._warned:
            self._warned.add(sentence)
            self._parts.comparison.warn(sentence)

    def meet(self, plan: RecoveryPlan) -> None:
        """A generation was formed: give the last result to members that were interrupted before they had it."""
        text = json.dumps(self._last).encode()
        own = _PLACE.pack(self._done, self._parts.state.applied, self._busy, len(text))
        shown = [_PLACE.unpack(one) for one in all_gather(self._group.exchange, plan.rank, plan.world_size, own)]
        newest = max(done for done, _, _, _ in shown)
        donor = next(rank for rank, (done, _, _, _) in enumerate(shown) if done == newest)
        lacking = [rank for rank, (done, _, busy, _) in enumerate(shown) if busy and done < newest]
        if plan.rank == donor and lacking:
            self._group.exchange([(rank, memoryview(text)) for rank in lacking], [])
        elif plan.rank in lacking:
            view = memoryview(bytearray(shown[donor][3]))
            self._group.exchange([], [(donor, view)])
            self._given = json.loads(bytes(view))
        elif self._done < newest:  # a newcomer
            self._done = newest
        self._journal()

    @property
    def _plan(self) -> RecoveryPlan:
        assert self._parts.resync.plan is not None
        return self._parts.resync.plan

    def _earlier(self, place: str) -> Result:
        """The result of a call that the other members have made before this one joined."""
        received = self._parts.carried.received(RESULTS)
        if received is None or place not in received:
            raise TrainingError(EARLIER.format(step=self._parts.carried.first_step))
        return dict(received[place])

    def _journal(self) -> None:
        """Journal the last result, if this is rank 0 and has not done so. Others may have to, if rank 0 is lost."""
        record = self._record
        if record is not None and self._group.rank == 0:
            if record["step"] == self._parts.state.applied:
                self._group.journal("metric.logged", record)
            self._record = None

    def _gather(self, own: bytes) -> list[bytes]:
        return all_gather(self._group.exchange, self._plan.rank, self._plan.world_size, own)

    def _gather_texts(self, own: bytes) -> list[bytes]:
        """Gather bytes of different lengths."""
        sizes = [int.from_bytes(size, "big") for size in self._gather(len(own).to_bytes(8, "big"))]
        shown = {peer: memoryview(bytearray(size)) for peer, size in enumerate(sizes) if peer != self._plan.rank}
        self._group.exchange([(peer, memoryview(own)) for peer in shown], list(shown.items()))
        return [bytes(shown[peer]) if peer in shown else own for peer in range(len(sizes))]


def _of_ended(end: SessionEnd, place: str) -> Result:
    """The result of a call in a session that was over when this member came."""
    if place not in end.results:
        raise TrainingError(MORE.format(session=end.session))
    return dict(end.results[place])


class _Work:
    """What one call evaluates, and the results of its batches that this member has computed."""

    def __init__(
        self, parts: Parts, model: torch.nn.Module, function: Callable[[Any], Any], data: IndexedData, size: int
    ) -> None:
        self._parts, self._model, self.function, self._data = parts, model, function, data
        self.size, self.is_first = size, True
        self.code = getattr(function, "__code__", type(function))
        self.count = math.ceil(len(data) / size)
        self.found: dict[int, dict[str, Pair]] = {}
        self._device = parts.gradients.parameters[0].device

    def held(self) -> bytes:
        """The set of batches computed here, as bits."""
        bits = sum(1 << number for number in self.found)
        return bits.to_bytes(self.count // 8 + 1, "big")

    def compute(self, number: int) -> None:
        """Evaluate one batch. Raises TrainingError where the function changes the model, or returns something else."""
        state = self._parts.state
        indices = range(number * self.size, min((number + 1) * self.size, len(self._data)))
        seed, before = mix(self._parts.settings.seed, state.applied, number, -2), state.versions()
        with _judging(self._model), seeded(seed, self._device):
            returned = self.function(self._data.batch(list(indices)))
        if state.versions() != before:
            raise TrainingError("the function given to session.evaluate() changed the model: change it between steps")
        self.found[number] = _read(returned, len(indices))

    def reduced(self, found: Mapping[int, Mapping[str, Pair]]) -> Result:
        """The weighted means over all batches, summed in their order."""
        names = list(found[0])
        for number, values in found.items():
            if list(values) != names:
                raise TrainingError(
                    f"the function given to session.evaluate() returned {_named(names)} for the first batch and "
                    f"{_named(list(values))} for batch {number + 1}; return the same names for every batch"
                )
        return {name: _mean([found[number][name] for number in range(self.count)]) for name in names}


@contextmanager
def _judging(model: torch.nn.Module) -> Iterator[None]:
    """No gradients, and every module in evaluation mode; afterwards each is in the mode that it had."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


def _cut(data: Any, micro_batch: int | None, usual: int) -> tuple[IndexedData, int]:
    """The data, and the samples per batch. Raises SpecError."""
    found: Given = given(data)
    loader = isinstance(data, torch.utils.data.DataLoader)
    size = micro_batch or (1 if found.whole else (data.batch_size or usual) if loader else usual)
    source = indexed(found.data, single if found.whole else found.collate)
    if size < 1 or len(source) < 1:
        raise SpecError(f"session.evaluate() got {len(source)} samples and micro_batch={size}; expected at least one")
    return source, size


def _read(returned: Any, samples: int) -> dict[str, Pair]:
    if isinstance(returned, Mapping):
        return {str(name): _pair(value, samples) for name, value in sorted(returned.items())}
    return {"": _pair(returned, samples)}


def _pair(value: Any, samples: int) -> Pair:
    """A sum and its weight. One number is the mean of the batch, so it weighs as many samples as that has."""
    if isinstance(value, tuple) and len(value) == 2:
        return _number(value[0]), _number(value[1])
    return _number(value) * samples, float(samples)


def _number(value: Any) -> float:
    if isinstance(value, str) or getattr(value, "size", None) is None and not isinstance(value, int | float):
        raise TrainingError(f"the function given to session.evaluate() returned a {type(value).__name__}; {FORMS}")
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise TrainingError(f"the function given to session.evaluate() returned several numbers; {FORMS}") from None


def _mean(pairs: list[Pair]) -> float:
    """Sums that are exact until their last rounding, so no order matters."""
    try:
        total, weight = (math.fsum(column) for column in zip(*pairs, strict=True))
    except (OverflowError, ValueError):
        return math.nan
    if weight == 0:
        raise TrainingError("the weights of a result of session.evaluate() add up to 0, so it has no mean")
    return total / weight


def _bits(shown: bytes) -> set[int]:
    number = int.from_bytes(shown, "big")
    return {place for place in range(number.bit_length()) if number >> place & 1}


def _named(names: list[str]) -> str:
    return ", ".join(names) if names != [""] else "one value"


def _shown(result: Result) -> float | dict[str, float]:
    return result[""] if list(result) == [""] else dict(result)
