"""hp.Session, a training loop whose result depends on code, data and seed, never on the cluster's history."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from types import TracebackType
from typing import Any

import torch

from ...core.errors import TrainingError
from ...policy.batching import leaves_of
from ...policy.guard import Guard
from ...policy.recovery import RecoveryPlan, ordinary
from ..checkpoint.manager import CheckpointManager, settings_of, shapes
from ..checkpoint.store import Checkpoint
from ..comm.mesh import PeerLost
from ..comm.reduction import Buffer, FinishedNodes
from ..comm.shards import check
from ..program.between import Between
from ..program.carried import Carried
from ..program.copies import State, own_ids
from ..program.frames import unfreezes
from ..program.reproducible import Reproducible
from ..protocol import facts
from ..worker.group_base import Regroup
from ..worker.main import current
from ..worker.replica_sync import Group, group_of
from .data import IndexedData, indexed, mix, sample_indices
from .gradients import Gradients
from .guard import StepGuard
from .injector import Injector
from .integrity import Audit, Integrity
from .purity import CUDA_WARNING, trained_parameters
from .resync import Resync
from .state import TrainingState
from .step_record import Commits, finite
from .stepping import refuse_sizes, refuse_unfit

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
        self._own_ids = own_ids(self, model, optimizer, scheduler, data, self.data)
        self.global_batch = global_batch
        self.micro_batch = micro_batch
        self.seed = seed
        self.max_grad_norm = max_grad_norm
        self.scheduler = scheduler
        refuse_sizes(global_batch, micro_batch, len(self.data))
        refuse_unfit(model, optimizer, scheduler)
        self.micro_batches = global_batch // micro_batch
        parameters = trained_parameters(model, optimizer, unfreezes())
        worker = current()
        # threads affect the arithmetic: a session outside a job uses as many as a rank does by default
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(worker.context.spec.threads if worker is not None else 1)
        self._group: Group = group_of(worker, self.micro_batches)
        check(parameters, self._group.replica, micro_batch)
        self._carried = Carried(self._own_ids, model, data)
        watch = StepGuard(guard, self._group)
        self._state = TrainingState(model, optimizer, scheduler, parameters, watch, self._carried)
        self._gradients = Gradients(model, parameters, self.micro_batches)
        self._commits = Commits(self._group, global_batch)
        self._gradients.check_finite = guard is not None and guard.non_finite != "ignore"
        self._integrity = Integrity(self._group, self._state, self._gradients, seed, audit)
        checkpoints = self._checkpoints = self._open_checkpoints(settings_of(checkpoint))
        self._between = Between(self._state, members_join=worker is not None)
        self._reproducible = Reproducible(self._group, self._state, self._gradients, data, self._own_ids)
        self._resync = Resync(
            self._group, self._state, self._gradients, self._commits, self._integrity, checkpoints, self._between
        )
        self._restored = False
        self._injector = Injector(self._group, parameters, optimizer)
        if (device := parameters[0].device).type != "cpu":
            self._group.journal("warning.raised", {"text": CUDA_WARNING.format(device=device)})
        self._planned = self._loop = self._passed = 0  # steps requested, loops begun, step of the last `_between_steps`
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
        self._planned, self._loop = self._planned + count, self._loop + 1
        self._open()
        self._between_steps()
        while self.step < self._planned and not self._carried.is_behind(self._loop):
            step, self._restored = Step(self, self.step + 1), False
            yield step
            if self.step < step.number and not self._restored:
                raise TrainingError(f"step {step.number} was not run: call step.run(loss_function) once in the loop")
            self._between_steps()
        self._state.keep_for_later(self._carried.is_behind(self._loop))

    def epochs(self, count: int) -> Iterator[int]:
        """Yield the numbers of ``count`` epochs, from 0. A newcomer begins in the epoch in which its peers are."""
        self._open()
        begin, self._planned, self._loop = self._carried.begin_epochs(self._planned, self._loop)
        for epoch in range(begin, count):
            self._carried.begin_epoch(epoch, self._planned, self._loop)
            self._state.keep_for_later(self._carried.waits)
            yield epoch

    @property
    def state(self) -> State:
        """A namespace for the run's own values, such as ``session.state.best``: newcomers and checkpoints get them."""
        return self._carried.values

    @property
    def loss(self) -> float:
        """The loss of the last step; NaN before the first one."""
        return self._state.loss

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which may be another process after a loss."""
        return self.rank == 0

    def register(self, **objects: Any) -> None:
        """Let objects travel with the training state: to members that join later, and into checkpoints.

        Call it before the first step, on every member. An object has ``state_dict()`` and ``load_state_dict()``, or is
        a random generator of torch, Python or numpy, a tensor, an array, a list, dict, set or deque, an `hp.State`, or
        an instance of a class of the program. Raises TrainingError for anything else, and after the first step.
        """
        if self._resync.plan is not None:
            raise TrainingError(
                "session.register() was called after the first step, so a member that joined before has not got "
                f"{', '.join(objects)}; call it before session.steps()"
            )
        self._carried.register(objects)

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
        step = self._passed = self._resync.restore(no_later_than)
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
            if isinstance(error, NameError):
                self._carried.explain(error)
            if kind is None and self._resync.plan is not None:
                self._carried.refuse_early_end(self._loop)
                self._between_steps()  # the cell may have left its loop
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
        self._between.begins()
        self._step_began_s = time.monotonic()
        self._integrity.seal()
        while self.step < number:
            try:
                if not self._gradients.finished.nodes:
                    self._group.leave_if_asked(self.step)
                self._compute(loss_function)
                result = self._reduce()
                compute = partial(self._execute, loss_function)
                self._reproducible.check(self._plan, self.step, self._carried, compute, loss_function)
                self._integrity.verify(self._plan, result, compute)
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
        gradients.apply_statistics(result, bool(skipped))
        gradients.finished.clear()
        if self._computed_s:
            self._group.show_pace(self.step, sum(self._computed_s) / len(self._computed_s))
            self._computed_s.clear()
        took_s = time.monotonic() - self._step_began_s
        self._commits.note(self.step, self.loss, plan, took_s, resync.redone, skipped)
        resync.plan, resync.redone = ordinary(plan, self.micro_batches), 0
        resync.step_done()
        self._between.applied(needed=resync.transfer.offers)
        self._group.touch("user", self.step)

    def _between_steps(self) -> None:
        """The cell is between two steps: copy what it carries, begin a checkpoint, and let newcomers join."""
        self._state.undo()
        while True:
            self._carried.enter(self.step, self._loop)
            self._carried.seal(self.step, self._loop)
            self._between.reached()
            try:
                if self._passed < self.step:
                    self._passed = self.step
                    self._checkpoints.step_done()
                    self._group.touch("user", self.step)
                self._group.regroup_if_due()
                return
            except Regroup as call:
                self._resync.regroup(call)
                self._integrity.renew()

    # ---- membership ---------------------------------------------------------------------------------------

    @property
    def _plan(self) -> RecoveryPlan:
        assert self._resync.plan is not None
        return self._resync.plan

    def _open(self) -> None:
        """The cell begins a loop: find what the loop carries and, once, join the other members."""
        self._carried.variables.find(members_join=current() is not None)
        if self._resync.plan is None:
            self._carried.seal(0, self._loop)
            self._join()
            self._carried.first_step = self._passed = self.step

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

    def _open_checkpoints(self, settings: Checkpoint | None) -> CheckpointManager:
        about = {
            "global_batch": self.global_batch,
            "micro_batch": self.micro_batch,
            "seed": self.seed,
            "replica": self._group.replica,
            "samples": len(self.data),
            "optimizer": type(self.optimizer).__name__,
            "scheduler": None if self.scheduler is None else type(self.scheduler).__name__,
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
