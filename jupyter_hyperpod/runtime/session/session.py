"""hp.Session, a training loop whose result depends on code, data and seed, never on the cluster's history."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any

import torch

from ...core.errors import SpecError, TrainingError
from ...policy.batching import assign, cover, leaves_of
from ...policy.guard import Guard
from ...policy.recovery import RecoveryPlan
from ..checkpoint.manager import CheckpointManager, shapes
from ..checkpoint.store import Checkpoint
from ..comm.mesh import PeerLost
from ..comm.reduction import Buffer, FinishedNodes
from ..comm.shards import check
from ..protocol import facts
from ..worker.group_base import Regroup
from ..worker.main import current, switched_on
from ..worker.replica_sync import Group, group_of
from .data import IndexedData, indexed, mix, sample_indices
from .gradients import Gradients
from .guard import StepGuard
from .injector import Injector
from .integrity import Audit, Integrity
from .purity import CUDA_WARNING, refuse_running_statistics, trained_parameters
from .resync import Resync
from .state import TrainingState
from .step_record import Commits, finite
from .stepping import refuse_optimizer, refuse_scheduler

LossFunction = Callable[[Any], torch.Tensor]


class Step:
    """One optimizer step. ``number`` counts from 1; ``index`` from 0."""

    def __init__(self, session: Session, number: int) -> None:
        self._session = session
        self.number = number

    @property
    def index(self) -> int:
        """The step counted from 0."""
        return self.number - 1

    def run(self, loss_function: LossFunction) -> float:
        """Compute this member's micro-batches, reduce, apply the optimizer; return the mean loss of the global batch.

        Raises TrainingError where the step was run already, where a loss is not finite (see `hp.Guard`), is scaled, or
        had its ``backward()`` called.

        ``loss_function(batch)`` returns the scalar mean loss of one micro-batch. It is called with the random
        generators seeded by (seed, step, micro-batch), so dropout does not depend on the member that computes it.
        """
        return self._session._run_step(self.number, loss_function)


class Session:
    """Trains ``model`` with ``optimizer`` on ``data``, on any number of members.

    ``global_batch`` samples per step are cut into ``global_batch / micro_batch`` micro-batches, fixed for the whole
    run. ``max_grad_norm`` clips the gradient of the global batch; ``scheduler`` steps once per step. A ``guard`` judges
    every step before it is applied; without one, a loss that is not finite stops the job.
    ``audit="state"`` compares checksums of the training state and of the reduced gradient among all members before a
    step is applied, so that a flipped bit is found within one step; a number also executes micro-batches of a step
    again on another member, with that probability; None checks nothing. A replica of several ranks is judged by the
    checksums of all of them.
    ``checkpoint`` is a path (``shared://runs/x``) or an `hp.Checkpoint`: the session continues from the newest valid
    one there. Outside a job the session trains in this process alone, with the same results. Raises SpecError for
    settings that cannot be trained, TrainingError for a model whose state could depend on the number of members.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        data: Any,
        *,
        global_batch: int,
        micro_batch: int,
        seed: int = 0,
        max_grad_norm: float | None = None,
        scheduler: Any = None,
        guard: Guard | None = None,
        audit: Audit = "state",
        checkpoint: str | Checkpoint | None = None,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.data: IndexedData = indexed(data)
        self.global_batch = global_batch
        self.micro_batch = micro_batch
        self.seed = seed
        self.max_grad_norm = max_grad_norm
        self.scheduler = scheduler
        _check(self)
        self.micro_batches = global_batch // micro_batch
        parameters = trained_parameters(model, optimizer)
        worker = current()
        # the number of threads affects the arithmetic, so a session outside a job uses as many as a rank does by
        # default
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(worker.context.spec.threads if worker is not None else 1)
        self._group: Group = group_of(worker, self.micro_batches)
        check(parameters, self._group.replica, micro_batch)
        self._state = TrainingState(model, optimizer, scheduler, parameters, StepGuard(guard, self._group))
        self._gradients = Gradients(model, parameters, self.micro_batches)
        self._commits = Commits(self._group, global_batch)
        self._gradients.check_finite = guard is not None and guard.non_finite != "ignore"
        self._integrity = Integrity(self._group, self._state, self._gradients, seed, audit)
        checkpoints = self._checkpoints = self._open_checkpoints(checkpoint)
        self._resync = Resync(self._group, self._state, self._gradients, self._commits, self._integrity, checkpoints)
        self._restored = False
        self._injector = Injector(self._group, parameters, optimizer)
        if (device := parameters[0].device).type != "cpu":
            self._group.journal("warning.raised", {"text": CUDA_WARNING.format(device=device)})
        self._planned = 0
        self._step_began_s = 0.0
        self._computed_s: list[float] = []  # times of this step's micro-batches

    # ---- what a person uses -------------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This process's number among those that train in the present generation."""
        group = self._group
        return max(-1, group.rank * group.replica + group.shard)

    @property
    def world_size(self) -> int:
        """Processes that train in the present generation; it may change at any step."""
        return self._group.world_size * self._group.replica

    @property
    def step(self) -> int:
        """Steps applied to the model so far."""
        return self._state.applied

    def steps(self, count: int) -> Iterator[Step]:
        """Yield the next ``count`` steps. A newcomer begins where its peers are."""
        self._planned += count
        if self._resync.plan is None:
            self._join()
        while self.step < self._planned:
            step, self._restored = Step(self, self.step + 1), False
            yield step
            if self.step < step.number and not self._restored:
                raise TrainingError(f"step {step.number} was not run: call step.run(loss_function) once in the loop")

    def log(self, **values: float) -> None:
        """Journal metrics of the step just run (only rank 0 writes them)."""
        if self.rank == 0:
            numbers = {name: float(value) for name, value in values.items()}
            self._group.journal(
                "metric.logged", {"step": self.step, "values": {k: finite(v) for k, v in numbers.items()}}
            )

    def restore(self, no_later_than: int | None = None) -> int:
        """Go back to the newest valid checkpoint (of step ``no_later_than`` or before); return its step.

        Every member must call it at the same step. Later steps are then repeated. Raises TrainingError
        where there is none.
        """
        step = self._resync.restore(no_later_than)
        self._integrity.seal()
        self._restored = True
        return step

    def digest(self) -> str:
        """SHA-256 (hex) of parameters, buffers, optimizer and scheduler state: for a replica, of this rank's part."""
        return self._state.digest()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if kind is None and self._resync.plan is not None:
                self._finish()
            self._checkpoints.leave()
        finally:
            self._group.close()
            self._gradients.release()
            self._resync.transfer.release()
            torch.set_num_threads(self._threads_before)

    # ---- one step -----------------------------------------------------------------------------------------

    def _run_step(self, number: int, loss_function: LossFunction) -> float:
        if self.step >= number:
            raise TrainingError(
                f"step {number} was run already: call step.run(loss_function) once in the loop. What belongs to one "
                "step goes into one loss function, for example the sum of two losses"
            )
        self._gradients.refuse_changes()
        self._step_began_s = time.monotonic()
        self._integrity.seal()
        while self.step < number:
            try:
                if not self._gradients.finished.nodes:
                    self._group.leave_if_asked(self.step)
                self._compute(loss_function)
                result = self._reduce()
                self._integrity.verify(self._plan, result, partial(self._execute, loss_function))
                self._finish_step(result)
            except Regroup as call:
                self._resync.regroup(call)
                self._integrity.renew()
        self._gradients.watch_changes()
        self._group.touch("user", self.step)
        return self._state.loss

    def _compute(self, loss_function: LossFunction) -> None:
        """Compute this member's micro-batches that are not finished."""
        plan, finished = self._plan, self._gradients.finished
        due = sorted(leaves_of(plan.holdings[plan.rank]))
        while missing := [leaf for leaf in due if not finished.holds(leaf)]:
            for leaf in missing:
                self._injector.inject_due(self.step + 1, plan.rank)
                self._group.next_leaf(leaf)
                self._group.touch("compute", self.step)
                began_s = time.monotonic()
                self._execute(loss_function, leaf)
                self._computed_s.append(time.monotonic() - began_s)

    def _execute(self, loss_function: LossFunction, leaf: int, aside: FinishedNodes | None = None) -> None:
        """Compute one micro-batch of the present step."""
        at = (self.seed, self.step, leaf)
        indices = sample_indices(*at, self.micro_batch, self.global_batch, len(self.data))
        mine, seed = self._group.part(indices), mix(*at, *self._group.place)
        self._gradients.compute(leaf, seed, partial(self._loss, loss_function, mine), aside)
        self._group.warm = True

    def _loss(self, loss_function: LossFunction, indices: list[int]) -> torch.Tensor:
        return self._injector.poison(loss_function(self.data.batch(indices)))  # type: ignore[no-any-return]

    def _reduce(self) -> Buffer:
        self._group.touch("exchange", self.step)
        try:
            return self._gradients.reduce(self._plan, self._group)
        except PeerLost as lost:
            self._group.lost(lost)

    def _finish_step(self, result: Buffer) -> None:
        """Apply the reduced gradient and commit the step."""
        gradients, plan, resync = self._gradients, self._plan, self._resync
        reading = self._group.agree(gradients.reading(result, self.step + 1))
        gradients.set_gradients(result)
        if self.max_grad_norm is not None:
            gradients.clip(result, self.max_grad_norm)
        gradients.keep(result)
        skipped = self._state.step_guard.judge(reading, plan)
        self._state.apply(reading.loss, skipped=bool(skipped))
        gradients.finished.clear()
        if self._computed_s:
            self._group.show_pace(self.step, sum(self._computed_s) / len(self._computed_s))
            self._computed_s.clear()
        took_s = time.monotonic() - self._step_began_s
        more = {"skipped": skipped} if skipped else {}
        self._commits.note(self.step, self._state.loss, plan, took_s, resync.redone, **more)
        resync.plan, resync.redone = _ordinary(plan, self.micro_batches), 0
        resync.step_done()
        self._checkpoints.step_done()
        self._group.touch("user", self.step)
        self._group.regroup_if_due()

    # ---- membership ---------------------------------------------------------------------------------------

    @property
    def _plan(self) -> RecoveryPlan:
        assert self._resync.plan is not None
        return self._resync.plan

    def _join(self) -> None:
        self._resync.join(
            facts.SessionOpened(
                total_steps=math.ceil(self._planned),  # `steps(epochs * samples / batch)` is a float
                global_batch=self.global_batch,
                micro_batch=self.micro_batch,
                micro_batches=self.micro_batches,
                parameters=sum(p.numel() for p in self._gradients.parameters),
                state_bytes=self._state.expected_bytes(),
                checkpoint=self._checkpoints.public,
            )
        )

    def _open_checkpoints(self, checkpoint: str | Checkpoint | None) -> CheckpointManager:
        settings = Checkpoint(checkpoint) if isinstance(checkpoint, str) else checkpoint
        if settings is None and not switched_on("peers"):
            raise SpecError(
                "the component peers is switched off, so newcomers get their state through a durable checkpoint; "
                "give the session a path: hp.Session(..., checkpoint='shared://runs/x')"
            )
        about = {
            "global_batch": self.global_batch,
            "micro_batch": self.micro_batch,
            "seed": self.seed,
            "replica": self._group.replica,
            "samples": len(self.data),
            "optimizer": type(self.optimizer).__name__,
            "scheduler": type(self.scheduler).__name__ if self.scheduler is not None else None,
            "model": shapes(self.model.state_dict()),
        }
        return CheckpointManager(settings, self._group, self._state, about, self._state.expected_bytes())

    def _finish(self) -> None:
        """Stay until every member has reached the end, and help members that fell behind."""
        digest = self.digest()
        while True:
            try:
                self._checkpoints.finish()
                self._group.finish(self.step, digest)
                return
            except Regroup as call:
                self._resync.regroup(call)


def _ordinary(plan: RecoveryPlan, micro_batches: int) -> RecoveryPlan:
    """The plan of an undisturbed step: contiguous shares, nothing held beforehand."""
    if plan.ordinary:
        return plan
    shares = assign(micro_batches, plan.world_size, plan.paces)
    holdings = tuple(cover(((leaf, leaf + 1) for leaf in share), micro_batches) for share in shares)
    return replace(plan, shares=shares, holdings=holdings, replay=(), fresh=(), ordinary=True)


def _check(session: Session) -> None:
    batch, micro = session.global_batch, session.micro_batch
    if micro < 1 or batch < micro or batch % micro:
        raise SpecError(
            f"global_batch is {batch} and micro_batch {micro}; expected a multiple of micro_batch, at least one"
        )
    if len(session.data) < 1:
        raise SpecError("data is empty")
    refuse_running_statistics(session.model)
    refuse_optimizer(session.optimizer)
    refuse_scheduler(session.scheduler, session.optimizer)
