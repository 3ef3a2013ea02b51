"""hp.Session, a training loop whose result depends on code, data and seed, never on the cluster's history."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

import torch

from ...core.errors import SpecError, TrainingError
from ...policy.growth import GrowBatch
from ...policy.guard import Guard
from ..checkpoint.manager import CheckpointManager, settings_of, shapes
from ..checkpoint.store import Checkpoint
from ..comm.shards import check
from ..data.batches import open_batches
from ..data.given import given
from ..data.sizes import BatchSizes
from ..micro_batch.lanes import CarriedLanes, LaneStore
from ..program.between import Between
from ..program.carried import Carried
from ..program.comparison import Comparison
from ..program.copies.keys import own_ids
from ..program.frames import unfreezes
from ..program.heap import Heap
from ..program.rehearsal import members_join
from ..program.reproducible import Reproducible
from ..program.value_kinds import State
from ..worker import open_session
from ..worker.main import current
from ..worker.replica_sync import group_of
from .clipping import GradientLimits
from .determinism import EXACT, Determinism
from .evaluation import Evaluations
from .execution import StepExecution
from .gradients import Gradients
from .guard import StepGuard
from .injector import Injector
from .integrity import Audit, Integrity
from .loop import Loop, Step
from .loss_scaling import LossScaling, refuse_scaler
from .parts import Parts, Settings
from .purity import trained_parameters
from .resync import Resync
from .state import TrainingState
from .step_record import Commits, finite
from .stepping import counted, refuse_growth, refuse_sizes, refuse_unfit
from .turns import kinds, named, ones, runs_of, several, together


class Session:
    """Trains ``model`` with ``optimizer`` on ``data``, on any number of members.

    ``global_batch`` samples per step are cut into ``global_batch / micro_batch`` micro-batches, fixed for the whole
    run. A list of optimizers has one run per step and entry: see `Step.run`. ``max_grad_norm`` and
    ``max_grad_value`` clip the gradient of the global batch (a parameter group with a key of that name by its own
    limit); ``scheduler``, one or a list, steps once per step, a ReduceLROnPlateau with the loss of the step or with
    ``scheduler_metric``, a metric that the loss function returns. A ``scaler`` scales losses and skips steps whose
    gradient overflows. ``extra`` is registered: see `register`. A ``guard`` judges every step before it is
    applied; without one, a loss that is not finite stops the job.
    ``audit="state"`` compares checksums of the training state and of the reduced gradient among all members before a
    step is applied, so that a flipped bit is found within one step; a number also executes micro-batches of a step
    again on another member, with that probability; None checks nothing. A replica of several ranks is judged by the
    checksums of all of them.
    ``order`` says which samples a step takes: "shuffled" (the default: another permutation in each epoch),
    "sequential", "lanes" (each sample of the global batch goes along its own stretch of the data, as truncated
    backpropagation through time needs it), or a sampler of torch, drawn for each epoch with generators seeded by
    (seed, epoch). ``data`` may be a DataLoader: its data set, sampler, ``collate_fn`` and ``drop_last`` are used.
    ``workers`` processes read and augment ahead, with the same result as none; a DataLoader brings its own number.
    ``collectives`` is "host", "gloo", "nccl" or "auto" (the default: see docs/devices.md): how members exchange
    gradients; None takes that of the job.
    ``determinism="best-effort"`` allows operators that may give different bits on the same CUDA device: runs are not
    repeatable then, and micro-batches are not executed again.
    ``grow`` lets the global batch follow the number of members: see `GrowBatch`. The result depends on when members
    join and leave then; without it never.
    ``checkpoint`` is a path (``shared://runs/x``) or an `hp.Checkpoint`: the session continues from the newest valid
    one there. Outside a job the session trains in this process alone, with the same results. Raises SpecError for
    settings that cannot be trained, TrainingError for a model whose state could depend on the number of members.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        data: Any,
        *,
        global_batch: int,
        micro_batch: int,
        seed: int = 0,
        max_grad_norm: float | None = None,
        max_grad_value: float | None = None,
        scheduler: Any = None,
        scheduler_metric: str | None = None,
        scaler: torch.amp.GradScaler | None = None,
        guard: Guard | None = None,
        audit: Audit = "state",
        checkpoint: str | Checkpoint | None = None,
        collectives: str | None = None,
        determinism: str = EXACT,
        order: str | Iterable[int] | None = None,
        workers: int | None = None,
        extra: Mapping[str, Any] | None = None,
        grow: GrowBatch | None = None,
    ) -> None:
        self.model, self.optimizer, self.scheduler, self.scaler = model, optimizer, scheduler, scaler
        self.global_batch, self.micro_batch, self.seed = global_batch, micro_batch, seed
        self.max_grad_norm, self.max_grad_value = max_grad_norm, max_grad_value
        turns, scheduler = several(optimizer), together(scheduler)
        limits = GradientLimits(max_grad_norm, max_grad_value)
        settings = Settings(seed, global_batch, micro_batch, limits, runs_of(turns))
        refuse_sizes(global_batch, micro_batch)
        sizes = self._sizes = BatchSizes(global_batch, micro_batch, grow)
        found = given(data, order, workers)
        refuse_unfit(model, turns, scheduler, scheduler_metric)
        limits.refuse_unfit(turns)
        parameters = trained_parameters(model, turns, unfreezes())
        refuse_scaler(scaler, parameters)
        self._determinism = Determinism(determinism, audit, parameters[0].device)
        worker = current()
        # threads affect the arithmetic: a session outside a job uses as many as a rank does by default
        self._threads_before = torch.get_num_threads()
        torch.set_num_threads(worker.context.spec.threads if worker is not None else 1)
        group = self._group = group_of(worker, settings.micro_batches, sizes.terms)
        group.collectives = collectives or group.collectives
        check(parameters, group.replica, micro_batch)
        refuse_growth(sizes.terms, found, turns, group.replica)
        batches = self._batches = open_batches(found, group, seed, sizes, micro_batch, parameters[0].device)
        own = own_ids(self, model, *ones(turns), *ones(scheduler), scaler, data, found.data)
        sources = {"model": model, "data": batches.reads} | named("optimizer", turns) | named("scheduler", scheduler)
        self._carried = Carried(own, sources)
        self._carried.data = batches
        watch = StepGuard(guard, group)
        lanes = LaneStore(settings.micro_batches)
        scaling = self._scaling = LossScaling(scaler, settings.runs)
        state = self._state = TrainingState(
            model, turns, scheduler, parameters, watch, self._carried, lanes, settings.runs, scaling,
            scheduler_metric, sizes,
        )  # fmt: skip
        self.micro_batches = count = settings.micro_batches
        gradients = self._gradients = Gradients(model, parameters, count, group, lanes, scaling, sizes.most)
        gradients.check_finite = guard is not None and guard.non_finite != "ignore" and not scaling.is_on
        commits = Commits(group, sizes)
        integrity = self._integrity = Integrity(group, state, gradients, seed, audit)
        checkpoints = self._checkpoints = self._open_checkpoints(settings_of(checkpoint))
        between = Between(state, members_join())
        comparison = Comparison(Heap(own, sources), sources, self._carried, members_join(), group.warn)
        self._resync = Resync(group, state, gradients, commits, integrity, checkpoints, between)
        parts = Parts(
            settings, sizes, batches, group, state, self._carried, gradients, commits, integrity, checkpoints, between,
            comparison, self._resync,
        )  # fmt: skip
        reproducible = Reproducible(group, state, gradients, comparison, settings.runs)
        self._execution = StepExecution(parts, self._determinism, reproducible, Injector(group, parameters, turns))
        self._evaluations = Evaluations(parts, model, self._determinism.exact)
        self._loop = Loop(parts, self._execution, turns, self._evaluations.results)
        if not isinstance(extra or {}, Mapping):
            raise SpecError(f"extra is a {type(extra).__name__}; expected a dictionary of objects by name")
        self.register(**(extra or {}))

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
        return self._state.applied // self._execution.runs

    @property
    def samples(self) -> int:
        """Samples taken by all steps so far."""
        return self._sizes.first(self.step)

    @property
    def batches(self) -> dict[int, int]:
        """The global batch of the steps so far, by the number of the first step that had it: see `GrowBatch`."""
        return self._sizes.listed(self.step)

    def steps(self, count: int | None = None) -> Iterator[Step]:
        """Yield the next ``count`` steps. A newcomer begins where its peers are. Raises SpecError without a count."""
        count = counted(count, "steps", 1000)
        return self._loop.steps(count)

    def count_turns(self, epochs_call: str) -> None:
        """The program's loops count the turns of the run, not their own. ``epochs_call``: how it writes `epochs`."""
        self._carried.variables.positions_travel = True
        self._carried.epochs_call = epochs_call

    def turns(self, count: int, until: Callable[[], int]) -> Iterator[Step]:
        """As `steps`, up to the step of the number ``until()``."""
        return self._loop.steps(count, until)

    def epochs(self, count: int | None = None) -> Iterator[int]:
        """Yield the numbers of ``count`` epochs, from 0. A newcomer begins in the epoch in which its peers are."""
        count = counted(count, "epochs", 10)
        return self._loop.epochs(count)

    @property
    def state(self) -> State:
        """A namespace for the run's own values, such as ``session.state.best``: newcomers and checkpoints get them."""
        return self._carried.values

    @property
    def loss(self) -> float:
        """The loss of the last step; NaN before the first one."""
        return self._state.loss

    @property
    def data_stalls(self) -> int:
        """Micro-batches of this process that its workers had not read yet when they were due."""
        return self._batches.stalls

    @property
    def data_waited_s(self) -> float:
        """Seconds that this process has waited for micro-batches that its workers read."""
        return self._batches.waited_s

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which may be another process after a loss."""
        return self.rank == 0

    @property
    def stopped(self) -> bool:
        """Whether `stop` has ended the loops: the same on all members after each step."""
        return self._state.stopped

    def stop(self, reason: str) -> None:
        """End the loops of all members after the next step. Any member may call it, also one alone.

        Use it for what only one member may see: a clock, a file, a signal. ``reason`` is journaled by the member that
        gives it. The code behind the loops runs on all members, as after a last step. In a loss function it ends the
        loops after the present step, or the next one. After the last step it does nothing.
        """
        if not self._gradients.stops and not self._state.stopped:
            self._gradients.stops = True
            step = f"step {self.step}" if self.step else "the beginning"
            text = f"rank {self.rank} asked after {step} that training stops: {reason}"
            self._group.journal("decision.made", {"policy": "session", "value": "stop", "reason": text})

    def register(self, **objects: Any) -> None:
        """Let objects travel with the training state: to members that join later, and into checkpoints.

        Call it before the first step, on every member. An object has ``state_dict()`` and ``load_state_dict()``, or is
        a random generator of torch, Python or numpy, a tensor, an array, a list, dict, set or deque, an `hp.State`, or
        an instance of a class of the program. Raises TrainingError for anything else, and after the first step.
        """
        if self._loop.has_begun:
            raise TrainingError(
                "session.register() was called after the first step, so a member that joined before has not got "
                f"{', '.join(objects)}; call it before session.steps()"
            )
        self._carried.register(objects)

    def leave_out(self, *objects: Any) -> None:
        """For integrations: these do not travel with registered objects that hold them. All members make them alike."""
        self._carried.leave_out(objects)

    def on_start(self, function: Callable[[], object]) -> None:
        """Call ``function()`` on each member when it begins to train: at once where it joins at a later step, too.

        `rank`, `step` and the registered state are those of the run then. It is for what each process needs for
        itself, such as a log file or a connection. Call it before the first step, on every member. Raises TrainingError
        after that, and in the first step where the function has changed the training state.
        """
        if self._loop.has_begun:
            raise TrainingError("session.on_start() was called after the first step; call it before session.steps()")
        self._loop.starts.append(function)

    def lanes(self, **first: torch.Tensor) -> CarriedLanes:
        """State that each micro-batch leaves for that of the same number in the next step: see `CarriedLanes`.

        ``lanes = session.lanes(h=torch.zeros(2, micro_batch, 64))`` says what every lane begins with. Call it once, on
        every member, before the first step. Raises TrainingError after it, and in a replica of several ranks.
        """
        if self._loop.has_begun:
            raise TrainingError("session.lanes() was called after the first step; call it before session.steps()")
        if self._sizes.terms is not None:
            raise TrainingError(
                "session.lanes() was called, and hp.Session(grow=...) changes the number of micro-batches, each of "
                "which has a lane: leave grow out"
            )
        if self._group.replica > 1:
            raise TrainingError(
                "session.lanes() was called in a replica of several ranks, which share each micro-batch, so a lane has "
                "no one owner: run without --replica"
            )
        self._state.lanes.declare(first)
        self._gradients.lay_out()
        return CarriedLanes(self._state.lanes)

    def evaluate(
        self, function: Callable[[Any], Any], data: Any, micro_batch: int | None = None, name: str = "eval"
    ) -> float | dict[str, float]:
        """Evaluate ``function(batch)`` over all of ``data``, shared among all members; return its weighted mean.

        Call it between steps, on every member. The data is cut in its order into batches of ``micro_batch`` samples (by
        default the session's, or a DataLoader's). The function runs without gradients and with the model in evaluation
        mode. It returns a number (the mean of its batch), a (sum, weight) pair, or a dict of them; then the result is a
        dict, too. The result is the same bits on every member, for any number of them, and is journaled as the metric
        ``name``. Raises TrainingError in a step and before the first one, and SpecError for data without an index.
        """
        place, aside = self._loop.call_of_evaluate()
        return self._evaluations.run(place, aside, function, data, micro_batch, name)

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
        update = self._resync.restore(None if no_later_than is None else no_later_than * self._execution.runs)
        self._integrity.seal()
        self._loop.restored(update)
        self._execution.goes_back()
        return self.step

    def digest(self) -> str:
        """SHA-256 (hex) of parameters, buffers, optimizer and scheduler state: for a replica, of this rank's part."""
        return self._state.digest()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if isinstance(error, NameError):
                worker = current()
                self._carried.explain(error, "this member" if worker is None else worker.context.node)
            if error is not None:
                self._loop.abandon()
                open_session.left_by(error)
            elif self._loop.has_begun:
                self._loop.end()
            self._checkpoints.leave()
        finally:
            self._batches.close()
            self._group.close()
            self._gradients.release()
            self._resync.transfer.release()
            self._scaling.release()
            self._state.watch.release()
            self._determinism.restore()
            torch.set_num_threads(self._threads_before)

    def _open_checkpoints(self, settings: Checkpoint | None) -> CheckpointManager:
        about = {
            "global_batch": self.global_batch,
            "micro_batch": self.micro_batch,
            "seed": self.seed,
            "replica": self._group.replica,
            "samples": self._batches.samples,
            "order": self._batches.name,
            "optimizer": kinds(several(self.optimizer)),
            "scheduler": kinds(together(self.scheduler)),
            "scaler": kinds(self.scaler) if self._scaling.is_on else None,
            "model": shapes(self.model.state_dict()),
        } | ({"grows": True} if self._sizes.terms is not None else {})
        return CheckpointManager(settings, self._group, self._state, about, self._state.expected_bytes())
