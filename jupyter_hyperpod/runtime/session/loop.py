"""The loop of a session's steps and epochs: what happens before, between and after the steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch

from ...core.errors import TrainingError
from ..checkpoint import ended
from ..checkpoint.ended import SessionEnd
from ..comm import state_codec
from ..program import rehearsal
from ..program.analysis.members import depends_on_members
from ..program.frames import bind_target
from ..program.late import SHARE_AT_END
from ..protocol import facts
from ..worker import open_session
from ..worker.elastic_group import ElasticGroup
from ..worker.group_base import Regroup
from .checksum import checksum
from .execution import LossFunction, StepExecution
from .parts import Parts
from .turns import refuse_other

TWICE = (
    "step {number} was run already: call step.run(loss_function) once in the loop. What belongs to one step goes into "
    "one loss function, for example the sum of two losses. Where a step has several updates, give hp.Session a list "
    "with one optimizer per update: hp.Session(model, [optimizer, optimizer], data)"
)
RAN = (
    "step {number} was run {runs} times already, once for each optimizer in the list of hp.Session; list an optimizer "
    "again for a further update per step"
)

ENDLESS = 100_000
LONG = 16  # steps of a loop, outside of epochs, whose last one is compared
CHANGED_BEHIND = "was changed by the cell between its last step and the end of its block"
STARTED = (
    "the function {name} that session.on_start() was given has changed the training state: it is called on each member "
    "when that joins, so members would train on different weights. Change them before the loop, or after step.run()"
)
GOES_ON = (
    "session.stop() has ended the loops of this session, and the cell begins further ones, which have no steps: loop "
    "with `for epoch in session.epochs(n)`, or `while not session.stopped`"
)


class Step:
    """One optimizer step, or one of each of several optimizers. ``number`` counts from 1; ``index`` from 0."""

    def __init__(self, execution: StepExecution, number: int, optimizer: Any = None) -> None:
        self._execution = execution
        self._optimizer = optimizer
        self._ran = 0  # how often `run` has returned
        self.number = number

    @property
    def index(self) -> int:
        """The step counted from 0."""
        return self.number - 1

    def run(self, loss_function: LossFunction, optimizer: torch.optim.Optimizer | None = None) -> float:
        """Compute this member's micro-batches, reduce, apply the optimizer; return the mean loss of the global batch.

        Raises TrainingError where the step was run already, where a loss is not finite (see `hp.Guard`), is scaled, or
        had its ``backward()`` called.

        ``loss_function(batch)`` returns the scalar mean loss of one micro-batch, or ``loss_sum, weight``: the gradient
        and the loss of the step are then those of sum(loss_sum) / sum(weight) over the global batch. A micro-batch of
        weight 0 does not count. A last value ``{"accuracy": accuracy}`` holds metrics: see `metrics`. It is called with
        the random generators seeded by (seed, step, micro-batch), so dropout does not depend on the member that
        computes it.

        Where the session has a list of optimizers, the first call of a step runs the first of them, and so on, all on
        the same samples; ``optimizer`` may say which one is meant, and another one than that is refused.
        """
        runs = self._execution.runs
        if self._ran == runs:
            raise TrainingError((TWICE if runs == 1 else RAN).format(number=self.number, runs=runs))
        refuse_other(self._optimizer, self._ran, optimizer)
        with self._execution.inside():
            loss = self._execution.run((self.number - 1) * runs + self._ran + 1, loss_function)
        self._ran += 1
        return loss

    def missing(self) -> str:
        """A sentence: the loop has gone on without all runs of this step."""
        if (runs := self._execution.runs) == 1:
            return f"step {self.number} was not run: call step.run(loss_function) once in the loop"
        return (
            f"step {self.number} was run {self._ran} of {runs} times: hp.Session has {runs} optimizers in its list, so "
            "call step.run(loss_function, optimizer=...) once for each of them, in that order"
        )

    @property
    def metrics(self) -> dict[str, float]:
        """What the loss function returned beside the loss, reduced as the loss is, by name.

        Raises TrainingError before `run`.
        """
        return self._execution.metrics(self.number)


class Loop:
    """Where the cell is: ``planned`` steps requested, loops begun, and the step at which it last was between two."""

    def __init__(
        self, parts: Parts, execution: StepExecution, optimizer: Any, results: Mapping[str, Any] | None = None
    ) -> None:
        """``results``: of the session's evaluations."""
        self._parts = parts
        self._results = {} if results is None else results
        self._group = parts.group
        self._state = parts.state
        self._carried = parts.carried
        self._execution = execution
        self._runs = execution.runs
        self._optimizer = optimizer
        self._planned = self._loop = self._passed = self._sealed_versions = self._ends_at = 0
        self._restored = False
        self._inside = self._is_last_epoch = False  # the cell is in the body of a loop of steps; in the last of epochs
        self._loops = self._calls = 0  # of steps in this epoch; of `evaluate` since the cell was between two steps
        self._over = False
        self.starts: list[Callable[[], object]] = []  # called once this member has joined
        self._empty = 0  # loops of steps begun after `Session.stop`
        if parts.comparison.members_join and self._group.replica == 1:
            parts.resync.on_newcomers = self._carry_more
            parts.checkpoints.on_copy = self._show_late  # elsewhere, the reference back would delay freeing memory

    def _carry_more(self) -> None:
        """Newcomers come: carry what has changed since the cell was looked at last."""
        self._parts.comparison.late.carry(at_once=True)
        self._carried.seal_more(inside=self._execution.is_inside)

    def _carry_at_end(self) -> None:
        """A loop of steps ends, which may be the last one: carry what has changed, where that is due."""
        comparison = self._parts.comparison
        if comparison.members_join and self._group.replica == 1 and comparison.late.is_due(SHARE_AT_END):
            self._carry_more()

    def _show_late(self) -> None:
        """A checkpoint is made: show in it what the program has changed. In a step, nobody could compare that."""
        if not self._execution.is_inside:
            late = self._parts.comparison.late
            late.carry(at_once=True)
            self._carried.seal_more(late.shown(late.look()))

    def steps(self, count: int, until: Callable[[], int] | None = None) -> Iterator[Step]:
        """Yield the next ``count`` steps, or those up to ``until()``. A newcomer begins where its peers are."""
        self._planned, self._loop, self._loops = self._planned + count, self._loop + 1, self._loops + 1
        self._open()
        self._refuse_endless()
        self._between_steps()
        self._start()
        has_turned = False
        while self._goes_on(until):
            step, self._restored = self._next(), False
            self._execution.at_end = step.number >= self._ends_at and (count >= LONG or self._is_last_epoch)
            self._inside = has_turned = True
            try:
                yield step
            except GeneratorExit:
                self._inside, self._calls = False, 0
                if not self._over:  # else an iterator that was kept is collected long after the session
                    self._leave(step.number)
                raise
            self._inside = False
            if self._state.applied < step.number * self._runs and not self._restored:
                raise TrainingError(step.missing())
            self._between_steps()
        self._carry_at_end()
        if until is None and (number := self._last_turn(has_turned or not count)):
            bind_target(Step(self._execution, number, self._optimizer))
        self._state.keep_for_later(self._carried.is_behind(self._loop))

    def _last_turn(self, has_turned: bool) -> int:
        """The number of the step with which the others ended a loop that was over when this member came, or 0."""
        if not self._is_passed and (has_turned or self._carried.is_behind(self._loop)):
            return 0
        return self._carried.left_with if self._carried.is_left(self._loop) else self._state.applied // self._runs

    def _refuse_endless(self) -> None:
        over = self._parts.resync.over
        self._empty += self._state.stopped or over is not None
        if self._empty == 2 and self._group.rank == 0:
            self._group.warn(GOES_ON)
        if self._empty > ENDLESS:
            raise TrainingError(GOES_ON if over is None else ended.other_end(over, []))

    def _goes_on(self, until: Callable[[], int] | None) -> bool:
        self._ends_at = self._planned if until is None else until()
        ends = self._is_passed or self._state.stopped or self._state.applied // self._runs >= self._ends_at
        return not ends and not self._carried.is_elsewhere(self._loop)

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the numbers of ``count`` epochs, from 0. A newcomer begins in the epoch in which its peers are."""
        self._open()
        begin, self._planned, self._loop = self._carried.begin_epochs(self._planned, self._loop)
        for epoch in range(begin, count):
            self._loops = self._calls = 0
            self._is_last_epoch = epoch == count - 1
            self._carried.begin_epoch(epoch, self._planned, self._loop)
            self._state.keep_for_later(self._carried.waits)
            yield epoch
            if self._state.stopped and not self._carried.waits:
                return

    def call_of_evaluate(self) -> tuple[str, bool]:
        """The place of a call of `Session.evaluate`, the same on all members, and whether no newcomer begins here.

        A newcomer begins between two steps, and so in what precedes the step in the body of the loop. Raises
        TrainingError where members cannot evaluate together.
        """
        if self._over or not self.has_begun or self._execution.is_inside:
            where = "after the session" if self._over else "in a step" if self.has_begun else "before the first step"
            raise TrainingError(
                f"session.evaluate() was called {where}, where the members do not wait for each other; call it between "
                "steps: in the loop over session.steps() or session.epochs(), or after it inside the session. A job "
                "that only evaluates has `for _ in session.steps(0): pass` before it"
            )
        place = " ".join(map(str, (*self._carried.epoch, self._loops, self._calls)))
        self._calls += 1
        return place, not self._inside or self._restored or self._passed != self._state.applied

    @property
    def has_begun(self) -> bool:
        """Whether the members have met."""
        return self._parts.resync.plan is not None or self._is_passed

    @property
    def _is_passed(self) -> bool:
        """Whether this session was over when this member came."""
        return self._parts.resync.over is not None

    def restored(self, step: int) -> None:
        """The cell went back to a checkpoint of this update."""
        self._passed, self._restored = step, True

    def _next(self) -> Step:
        number = self._state.applied // self._runs + 1
        self._state.show((number - 1) * self._runs)
        self._group.begin_step(self._state.applied + 1)
        return Step(self._execution, number, self._optimizer)

    def abandon(self) -> None:
        """The cell leaves the session by an error."""
        self._over = True

    def end(self) -> None:
        """The cell leaves the session: stay until every member has reached the end, and help those behind."""
        self._over = True
        self._state.show(self._state.applied)
        early = self._carried.early_end(self._loop)
        if (end := self._parts.resync.over) is not None:
            self._end_like_others(end, early)
            return
        if early:
            raise TrainingError(early)
        self._state.undo()
        self._meet(in_loop=False)
        digest = self._state.digest()
        rehearsal.end(self._state)
        while True:
            try:
                self._parts.checkpoints.finish()
                self._group.finish(self._state.applied, digest)
                open_session.ended()
                self._keep_end(digest)
                return
            except Regroup as call:
                self._parts.resync.regroup(call)

    def _end_like_others(self, end: SessionEnd, early: str) -> None:
        """This member came when the session was over: raise TrainingError where its cell has not come to that end.

        ``while not session.stopped`` begins fewer loops on such a member. It gets here what the last one left.
        """
        if early:
            self._carried.enter_last(self._state.applied)
        self._state.undo()
        late = self._parts.comparison.late
        names = late.lacking(late.look(), end.late) if end.late else []
        if names or self._state.digest() != end.digest:
            raise TrainingError(early or ended.other_end(end, names))
        open_session.ended()

    def _keep_end(self, digest: str) -> None:
        """Hold the end of this session for members that join in a later one of the cell."""
        if isinstance(self._group, ElasticGroup):
            state = self._state
            late = self._parts.comparison.late
            shown = late.shown(late.look()) if self._parts.comparison.members_join else {}
            end = SessionEnd(0, state.applied, digest, state.stopped, dict(self._results), shown)
            if state.versions() != self._sealed_versions:  # a newcomer would make the change once more
                end.why = CHANGED_BEHIND
            ended.keep(end, *state.pack(carried=True), self._group.replica)

    def _between_steps(self) -> None:
        """The cell is between two steps: copy what it carries, begin a checkpoint, and let newcomers join."""
        self._state.undo()
        self._calls = 0
        self._seal()
        self._meet(in_loop=True)

    def _leave(self, turn: int) -> None:
        """The cell leaves its loop by ``break``: a member that joins from now on begins behind the loop.

        What the cell carries is copied at once, because the newcomer runs all that follows.
        """
        self._carried.leave(self._loop, turn)
        self._state.show(self._state.applied)
        with suppress(Exception):  # the loop may end by an error, which is the one to be shown
            self._seal()
            self._carry_at_end()

    def _seal(self) -> None:
        step = self._state.applied
        self._carried.enter(step, self._loop)
        if shown := self._carried.unproven:
            self._carried.unproven = {}
            self._parts.comparison.late.refuse_lacking(shown, step)
        if rehearsal.members_join():
            self._carried.refuse_rebuilt()
        self._parts.comparison.between(self._parts.resync.transfer.offers)
        self._carried.seal(step, self._loop)
        self._sealed_versions = self._state.versions()
        self._parts.between.reached()
        rehearsal.between(self._state, self._show_late)

    def _meet(self, in_loop: bool) -> None:
        """Begin a checkpoint, and let newcomers join, as often as the members change.

        Behind its loop the cell has done more than what was copied at the end of the loop; newcomers do that, too.
        """
        while True:
            try:
                if self._passed < (step := self._state.applied):
                    self._passed = step
                    self._parts.checkpoints.step_done()
                    self._group.touch("user", step)
                self._group.regroup_if_due()
                return
            except Regroup as call:
                self._parts.resync.regroup(call)
                self._parts.integrity.renew()
                if in_loop or self._carried.waits:
                    self._seal()

    def _open(self) -> None:
        """The cell begins a loop: find what the loop carries and, once, join the other members."""
        self._carried.variables.find(rehearsal.members_join())
        if not self.has_begun:
            self._parts.comparison.between()
            self._carried.seal(0, self._loop)
            says = rehearsal.members_join() and self._group.rank == 0 and self._group.replica == 1
            if says and (warning := depends_on_members()):
                self._group.warn(warning)
            self._join()
            self._state.watch.refuse_own_steps()
            rehearsal.join(self._state)
            self._carried.first_step = self._passed = self._state.applied

    def _start(self) -> None:
        """Call what `Session.on_start` was given: the registered state is there now."""
        functions, self.starts = self.starts, []
        for function in functions:
            before = self._contents()
            function()
            self._carried.seal(self._state.applied, self._loop)
            if self._contents() != before:
                raise TrainingError(STARTED.format(name=getattr(function, "__name__", repr(function))))
        if functions:
            self._parts.comparison.between()

    def _contents(self) -> tuple[bytes, int]:
        skeleton, tensors = self._state.pack(carried=True)
        return state_codec.encode(skeleton), checksum(tensors)

    def _join(self) -> None:
        parts, settings = self._parts, self._parts.settings
        open_session.begin()
        if self._group.newcomer:
            parts.comparison.late.read_source()
        parts.resync.join(
            facts.SessionOpened(
                total_steps=math.ceil(self._planned) * self._runs,  # `steps(epochs * samples / batch)` is a float
                global_batch=settings.global_batch,
                micro_batch=settings.micro_batch,
                micro_batches=settings.micro_batches,
                parameters=sum(p.numel() for p in parts.gradients.parameters),
                state_bytes=self._state.expected_bytes(),
                checkpoint=parts.checkpoints.public,
                growth=parts.sizes.terms,
            )
        )
