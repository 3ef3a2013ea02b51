"""One step of a session: computes this member's micro-batches, reduces them with all members, applies the result."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

from ...core.errors import HyperpodError, TrainingError
from ...policy.batching import leaves_of
from ...policy.recovery import RecoveryPlan, ordinary
from ..comm.mesh import PeerLost, all_gather
from ..comm.reduction import Buffer, FinishedNodes, read_flags
from ..data.order import mix
from ..micro_batch.returned import loss_in, with_loss
from ..program.reproducible import Reproducible
from ..worker.group_base import Regroup
from .determinism import Determinism
from .injector import Injector
from .parts import Parts

LossFunction = Callable[[Any], Any]
OTHER_SAMPLES = (
    "rank {ranks} read other samples for step {step} than rank 0: a stream or a sampler may depend on its own code, "
    "set_epoch(epoch) and the generators of torch, Python and numpy, which are seeded, but not on the process, the "
    "rank, time, or what the cell changes on some members only"
)
RAISED = (
    "a micro-batch of step {step} raised {error}, and the cell has caught it and runs the step once more: only the "
    "member that computes this micro-batch would do so, and on another number of nodes it would be another run. Decide "
    "in the loss function, for its batch: catch the error there, and return another loss"
)


class StepExecution:
    """Runs the steps of one session, on the session's ``parts``."""

    def __init__(self, parts: Parts, determinism: Determinism, reproducible: Reproducible, injector: Injector) -> None:
        self._parts = parts
        self._group = parts.group
        self._state = parts.state
        self._gradients = parts.gradients
        self._determinism = determinism
        self._reproducible = reproducible
        self._injector = injector
        self.is_inside = False  # whether a step runs
        self.at_end = False  # the next step is the last one of the loop
        self._raised = ""  # what the loss function has raised
        self._began_s = 0.0
        self._computed_s: list[float] = []  # times of this step's micro-batches
        self._exchanged_s = self._waited_s = 0.0  # in this step's exchange of gradients, and for others in it

    @contextmanager
    def inside(self) -> Iterator[None]:
        """A step runs."""
        self.is_inside = True
        try:
            yield
        finally:
            self.is_inside = False

    def run(self, number: int, loss_function: LossFunction) -> float:
        """Run update ``number``, through as many generations as it takes; return its loss. See `Step.run`.

        A member that joined in the middle of a step has the updates of the first runs already.
        """
        parts, state = self._parts, self._state
        if state.applied >= number:
            state.show(number)
            return state.loss_of(number)
        if self._raised:
            raise TrainingError(RAISED.format(error=self._raised, step=number))
        self._gradients.refuse_changes()
        state.watch.refuse_added()
        parts.between.begins()
        parts.comparison.begins()
        self._began_s = time.monotonic()
        parts.integrity.seal()
        self._reproducible.begins(state.applied)
        while state.applied < number:
            try:
                if not self._gradients.finished.nodes:
                    self._group.leave_if_asked(state.applied)
                self._prove()
                self._compute(loss_function)
                compute = partial(self._execute, loss_function)
                if self._determinism.exact:
                    self._reproducible.compute_ahead(self._plan, state.applied, compute)
                result = self._reduce()
                self._compare_samples()
                if self._determinism.exact:
                    self._reproducible.check(self._plan, state.applied, parts.carried, compute, loss_function)
                    self._compare(compute, loss_function, pairs=False)
                parts.integrity.verify(self._plan, result, compute, parts.between.writes, self.at_end)
                # from states that are alike; of what is not finite nothing is applied, and the guard says more
                if self._determinism.exact and read_flags(float(result.meta[-1]))[0]:
                    self._compare(compute, loss_function, pairs=True)
                self._finish(result)
            except Regroup as call:
                self._reproducible.interrupted()
                parts.resync.regroup(call)
                parts.integrity.renew()
        self._raised = ""  # by what forms a generation, if by anything
        state.keep_for_later(parts.carried.waits)  # what the cell does after this step is in the state already
        self._gradients.watch_changes()
        parts.comparison.ends()
        self._group.touch("user", state.applied)
        state.show(number)
        return state.loss_of(number)

    @property
    def runs(self) -> int:
        """Runs per step."""
        return self._parts.settings.runs

    @property
    def _index(self) -> int:
        """The number of the loop's step, from 0: all its runs get the same samples."""
        return self._state.applied // self.runs

    def metrics(self, number: int) -> dict[str, float]:
        """The metrics of the last run, which belongs to step ``number``. See `Step.metrics`."""
        if (last := -(-self._state.applied // self.runs)) != number:
            raise TrainingError(
                f"the metrics of step {number} are read where step {last} is the last one: read "
                "step.metrics after step.run(loss_function), in the same turn of the loop"
            )
        return dict(self._state.metrics)

    @property
    def _plan(self) -> RecoveryPlan:
        assert self._parts.resync.plan is not None
        return self._parts.resync.plan

    def _prove(self) -> None:
        """Compare newcomers with the others, before their first step. Raises TrainingError, on all members."""
        plan, parts = self._plan, self._parts
        if plan.proving and self._determinism.exact:
            self._reproducible.prove(plan, self._state.applied)
            parts.resync.plan = replace(plan, proving=())

    def _compute(self, loss_function: LossFunction) -> None:
        """Compute this member's micro-batches that are not finished."""
        self._gradients.begin(self._parts.sizes.begin(self._index))
        plan, finished = self._plan, self._gradients.finished
        due = sorted(leaves_of(plan.holdings[plan.rank]))
        following = ordinary(plan, self._parts.sizes.count(self._index + 1)).holdings[plan.rank]
        waiting = [leaf for leaf in due if not finished.holds(leaf)]
        self._parts.batches.begin(self._index, waiting, sorted(leaves_of(following)))
        while missing := [leaf for leaf in due if not finished.holds(leaf)]:
            for leaf in missing:
                self._injector.inject_due(self._state.applied + 1, plan.rank)
                self._group.next_leaf(leaf)
                self._group.touch("compute", self._state.applied)
                began_s = time.monotonic()
                self._execute(loss_function, leaf)
                self._reproducible.computed(plan, self._state.applied, leaf, self.at_end)
                self._computed_s.append(time.monotonic() - began_s)

    def _execute(self, loss_function: LossFunction, leaf: int, aside: FinishedNodes | None = None) -> None:
        """Compute one micro-batch of the present step."""
        step = self._state.applied
        seed = mix(self._parts.settings.seed, step, leaf, *self._group.place)
        with self._noting_errors():
            batch = self._parts.batches.of(self._index, leaf, again=aside is not None)
            with self._determinism.explained():
                self._gradients.compute(leaf, seed, partial(self._loss, loss_function, batch), aside)
        self._group.warm = True

    @contextmanager
    def _noting_errors(self) -> Iterator[None]:
        """Note what the person's code raises: the cell may catch it. A refusal is the same on each member."""
        try:
            yield
        except (HyperpodError, Regroup):
            raise
        except Exception as error:
            self._raised = type(error).__name__
            raise

    def goes_back(self) -> None:
        """The cell goes back to a checkpoint, together with all other members."""
        self._raised = ""

    def _loss(self, loss_function: LossFunction, batch: Any) -> Any:
        self._reproducible.called()
        returned = loss_function(batch)
        return with_loss(returned, self._injector.poison(loss_in(returned)))

    def _compare(self, compute: Callable[[int, FinishedNodes], None], loss_function: LossFunction, pairs: bool) -> None:
        """Compare micro-batches that two members have computed. Raises TrainingError, Regroup."""
        plan, at_end = self._plan, self._parts.integrity.at_end
        for leaf, done in self._reproducible.compare(plan, self._state.applied, compute, loss_function, pairs, at_end):
            self._parts.integrity.judge(plan, done, (leaf, leaf + 1), compute)

    def _reduce(self) -> Buffer:
        self._group.touch("exchange", self._state.applied)
        self._group.renew_keys()
        began_s, waited_s = time.monotonic(), self._group.waited_s
        try:
            result = self._gradients.reduce(self._plan, self._group)
        except PeerLost as lost:
            self._group.lost(lost)
        self._waited_s = self._group.waited_s - waited_s
        self._exchanged_s = time.monotonic() - began_s - self._waited_s
        return result

    def _compare_samples(self) -> None:
        """Raise TrainingError where members have read other samples than rank 0. Raises Regroup."""
        plan, mark = self._plan, self._parts.batches.mark(self._index)
        if mark is None or plan.world_size == 1:
            return
        marks = all_gather(self._group.exchange, plan.rank, plan.world_size, mark.to_bytes(8, "big"))
        if others := [str(rank) for rank, other in enumerate(marks) if other != marks[0]]:
            raise TrainingError(OTHER_SAMPLES.format(step=self._state.applied + 1, ranks=", ".join(others)))

    def _finish(self, result: Buffer) -> None:
        """Apply the reduced gradient and commit the step."""
        parts, gradients, plan = self._parts, self._gradients, self._plan
        settings, resync, index = parts.settings, parts.resync, self._index
        gradients.set_gradients(result)
        self._state.leave_own_gradients()
        gradients.unscale(result)
        reading = self._group.agree(gradients.reading(result, self._state.applied + 1))
        gradients.clip(result, settings.limits, self._state.optimizer)
        gradients.keep(result)
        rejected, overflow = self._state.judge(reading, plan)
        skipped = rejected or overflow
        parts.comparison.applies()
        self._state.apply(reading, skipped=bool(skipped))
        parts.comparison.applied()
        gradients.apply_left(result, bool(rejected))
        self._state.run_done()
        gradients.finished.clear()
        computed_s = sum(self._computed_s)
        if self._computed_s:
            self._group.show_pace(self._state.applied, computed_s / len(self._computed_s))
            self._computed_s.clear()
        self._group.show_times(computed_s, self._exchanged_s, self._waited_s)
        took_s = time.monotonic() - self._began_s
        parts.commits.note(self._state.applied, index, self._state.loss, plan, took_s, resync.redone, skipped)
        resync.plan, resync.redone = ordinary(plan, parts.sizes.count(self._index)), 0
        resync.step_done()
        parts.between.applied(needed=resync.transfer.offers)
        self._group.touch("user", self._state.applied)
