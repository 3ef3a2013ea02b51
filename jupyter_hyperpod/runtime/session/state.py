"""The training state: model, optimizer, scheduler, and the number of applied steps."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import torch
from torch.nn.modules.batchnorm import _NormBase

from ...core.errors import TrainingError
from ...core.units import few
from ...policy.guard import StepReading
from ...policy.recovery import RecoveryPlan
from ..comm import state_codec
from ..comm.shards import local, mesh_of
from ..data.sizes import BatchSizes
from ..micro_batch.lanes import LaneStore
from ..program.carried import Carried
from ..program.copies.copier import Copier
from .checksum import checksum
from .guard import StepGuard
from .loss_scaling import LossScaling
from .optimizer_state import OptimizerWatch, load_exactly
from .purity import fit_buffers
from .turns import (
    AnyOptimizer,
    RunStates,
    Turns,
    last_turn_of,
    load_scheduler,
    ones,
    state_of_scheduler,
    step_optimizer,
    step_with_rates,
)


class TrainingState:
    """The training state of one rank. ``step`` is None until a newcomer has the state; ``loss``: of the last step.

    ``step_guard`` judges steps before they are applied; its history is part of the state.
    ``carried``: what the cell keeps; ``lanes``: what micro-batches keep. ``mesh``: the ranks that share sharded
    parameters, None without sharding. ``sizes``: of the steps, None where they are constant.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: AnyOptimizer,
        scheduler: Any,
        parameters: Sequence[torch.nn.Parameter],
        step_guard: StepGuard,
        carried: Carried,
        lanes: LaneStore | None = None,
        runs: int = 1,
        scaling: LossScaling | None = None,
        metric: str | None = None,
        sizes: BatchSizes | None = None,
    ) -> None:
        self._model = model
        self.scaling = scaling or LossScaling()
        self._metric = metric  # what a ReduceLROnPlateau is stepped with, None for the loss
        self.optimizer = optimizer
        self._scheduler = scheduler
        self.watch = OptimizerWatch(optimizer)
        self._parameters = parameters
        # listed once: walking the modules at each step would cost
        self._buffers = [module._buffers for module in model.modules() if module._buffers]
        self._with_momentum = [module for module in model.modules() if isinstance(module, _NormBase)]
        self.step_guard = step_guard
        self.carried = carried
        self.lanes = lanes or LaneStore(0)
        self.sizes = sizes if sizes is not None and sizes.terms is not None else None
        self.mesh = mesh_of(parameters)
        self.step: int | None = None
        self._stepped = 0  # turns that were stepped here
        self._kept: dict[str, Any] | None = None
        self._sealed_settings: tuple[int, list[dict[str, Any]]] | None = None  # step, settings by parameter group
        self.loss = math.nan
        self._runs = runs
        self._states = RunStates(runs)
        self._losses: dict[int, float] = {}  # of the last runs, as many as a step has, by update
        self.metrics: dict[str, float] = {}  # of the last step
        self.stopped = False  # a member has made the last step the last one

    @property
    def applied(self) -> int:
        """Steps applied so far; 0 for a newcomer."""
        return self.step or 0

    def judge(self, reading: StepReading, plan: RecoveryPlan | None) -> tuple[str, str]:
        """Why the guard rejects the step, and why the optimizer is not stepped although it does not; empty if not.

        ``plan``: see `StepGuard.judge`. Raises TrainingError to stop the job.
        """
        rejected = self.step_guard.judge(self.scaling.to_judge(reading), plan)
        return rejected, "" if rejected else self.scaling.overflow(reading)

    def apply(self, reading: StepReading, skipped: bool = False) -> None:
        """Step the optimizer with the present gradients. No message can interrupt this.

        In a ``skipped`` step only the scheduler steps, because it follows the number of the step.
        """
        self._states.begin(self.applied, self._copy)
        if not skipped:
            optimizer = self.optimizer.turn(self.applied) if isinstance(self.optimizer, Turns) else self.optimizer
            self.watch.step(partial(self._step, optimizer, reading.loss), first=self._stepped < self._runs)
            self._stepped += 1
        self.scaling.update(reading)
        self._losses[reading.step] = reading.loss
        if self._scheduler is not None and reading.step % self._runs == 0:
            self._schedule(reading, skipped)
        self.step, self.loss, self.metrics = self.applied + 1, reading.loss, dict(reading.metrics)
        self.stopped = self.stopped or reading.stops
        self._losses = {step: kept for step, kept in self._losses.items() if step > self.step - self._runs}

    def _step(self, optimizer: torch.optim.Optimizer, loss: float) -> None:
        if self.sizes is None or self.sizes.has_constant_rates:
            step_optimizer(optimizer, loss)
        else:
            step_with_rates(optimizer, loss, self.sizes.factor(self.applied))

    def run_done(self) -> None:
        """An update is applied, with all that it leaves in buffers."""
        self._states.done(self._copy)

    def show(self, update: int) -> None:
        """Let the cell see the state after ``update``, which is the last one or one of the same step."""
        if (copy := self._states.to_show(update, self.applied)) is not None:
            self._load(Copier().copied(copy))  # the optimizer goes on with the tensors that it is given

    def _copy(self) -> dict[str, Any]:
        copy: dict[str, Any] = Copier().copied(self.as_dict())
        return copy

    def leave_own_gradients(self) -> None:
        """Of several optimizers, only parameters of the one whose turn it is keep their gradients."""
        if isinstance(self.optimizer, Turns):
            self.optimizer.leave_own(self.applied, self._parameters)

    def loss_of(self, update: int) -> float:
        """The loss of one of the last updates."""
        return self._losses.get(update, self.loss)

    def _schedule(self, reading: StepReading, skipped: bool) -> None:
        for scheduler in ones(self._scheduler):
            if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                scheduler.step(self._seen_by(scheduler, reading))
            elif not skipped:
                scheduler.step()
            else:
                with warnings.catch_warnings():  # it makes Python repeat warnings, so not in every step
                    warnings.simplefilter("ignore", UserWarning)  # stepping the scheduler first is intended here
                    scheduler.step()

    def _seen_by(self, scheduler: Any, reading: StepReading) -> float:
        """The metric of the step, or the loss of the last run of the scheduler's optimizer."""
        if self._metric is None:
            turn = last_turn_of(self.optimizer, scheduler.optimizer.param_groups)
            return self._losses[reading.step - self._runs + turn + 1]
        if self._metric not in reading.metrics:
            raise TrainingError(
                f"scheduler_metric is {self._metric!r}, and the loss function returned {_named(reading.metrics)}: "
                f"return it beside the loss, return loss, {{{self._metric!r}: value}}"
            )
        return reading.metrics[self._metric]

    def as_dict(self) -> dict[str, Any]:
        """Parameters, buffers, optimizer, scheduler and guard; the tensors are not copies."""
        state: dict[str, Any] = {"model": dict(self._model.state_dict()), "optimizer": self._optimizer_state()}
        if self._scheduler is not None:
            state["scheduler"] = state_of_scheduler(self._scheduler)
        if self.step_guard.guard is not None:
            state["guard"] = self.step_guard.as_dict()
        if self.lanes.kept:
            state["lanes"] = self.lanes.as_dict()
        if self.scaling.is_on:
            state["scaler"] = self.scaling.as_dict()
        if self.sizes is not None:
            state["batches"] = self.sizes.as_list(self.applied)
        return state

    def _optimizer_state(self) -> dict[str, Any]:
        """The optimizer's state, with the settings that it had between the steps: the cell sets those of the next."""
        state = self.optimizer.state_dict()
        if self._sealed_settings is not None and self._sealed_settings[0] == self.step:
            groups = zip(state["param_groups"], self._sealed_settings[1], strict=True)
            return state | {"param_groups": [group | settings for group, settings in groups]}
        return state

    def seal_settings(self, settings: list[dict[str, Any]]) -> None:
        """The cell is between two steps, and the optimizer has these settings."""
        self._sealed_settings = (self.applied, settings)

    def versions(self) -> int:
        """A number that changes when torch counts a write to a parameter or a buffer, or a buffer is replaced."""
        counted = self.writes() + sum(tensor._version for tensor in self.lanes.kept.values())
        buffers = (tensor for held in self._buffers for tensor in held.values() if tensor is not None)
        return counted + sum(tensor._version + id(tensor) for tensor in buffers)

    def writes(self) -> int:
        """How often torch has counted a write to a parameter."""
        return sum(parameter._version for parameter in self._parameters)

    def momenta(self) -> tuple[Any, ...]:
        """The momenta of running statistics."""
        return tuple(None if module.momentum is None else float(module.momentum) for module in self._with_momentum)

    @property
    def stepped(self) -> tuple[list[Any], list[Any]]:
        """The optimizers and the schedulers that a step may step."""
        return ones(self.optimizer), ones(self._scheduler) if self._scheduler is not None else []

    def settings(self, declared: bool = False) -> list[dict[str, Any]]:
        """The optimizer's settings, such as learning rates, by parameter group.

        ``declared``: only numbers and other plain values that the optimizer has a default for.
        """
        known = getattr(self.optimizer, "defaults", {})
        return [
            {
                name: value.clone() if isinstance(value, torch.Tensor) else value
                for name, value in group.items()
                if name != "params" and (not declared or (name in known and getattr(value, "ndim", 0) == 0))
            }
            for group in self.optimizer.param_groups
        ]

    def order(self) -> list[str]:
        """The names of the optimizer's parameters, in its order; "" for one that is not the model's."""
        names = {id(parameter): name for name, parameter in self._model.named_parameters()}
        return [names.get(id(parameter), "") for group in self.optimizer.param_groups for parameter in group["params"]]

    def tensors(self) -> dict[str, torch.Tensor]:
        """`trained` and the lanes."""
        return self.trained() | {f"lanes.{name}": value for name, value in self.lanes.kept.items()}

    def trained(self) -> dict[str, torch.Tensor]:
        """Parameters, persistent buffers and optimizer state by name, not copies; of shards, this rank's part."""
        whole = {k: t for k, t in self._model.state_dict(keep_vars=True).items() if isinstance(t, torch.Tensor)}
        found = {name: local(tensor) for name, tensor in whole.items()}
        names = {id(tensor): name for name, tensor in whole.items()}
        for parameter in (p for group in self.optimizer.param_groups for p in group["params"]):
            name = names.get(id(parameter), id(parameter))
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    found[f"{name}.{key}"] = local(value)
        return found

    def pack(self, carried: bool = False, on_device: bool = False) -> tuple[state_codec.Skeleton, list[torch.Tensor]]:
        """The skeleton and the tensors of `as_dict` and of the loss: see `state_codec`.

        With ``carried``, for a checkpoint, what the cell carries is in it; peers get that when they are at its step.
        ``on_device``: tensors stay on their device.
        """
        more: dict[str, Any] = {"carried": self.carried.at(self.applied)} if carried else {}
        if self._runs > 1:
            more |= {"losses": sorted(self._losses.items()), "runs": self._states.shared(self.applied)}
        last = {"loss": self.loss, "metrics": self.metrics, "stopped": self.stopped and not carried}
        return state_codec.pack(self.as_dict() | last | more, on_device)

    def unpack(self, skeleton: state_codec.Skeleton, tensors: Sequence[torch.Tensor], step: int) -> None:
        """Load what `pack` returned after ``step``. Raises TrainingError for other lanes than those of this session."""
        state = state_codec.unpack(skeleton, tensors, self.mesh)
        self._load(state)
        if "carried" in state:
            self.carried.load(state["carried"], step)
        self.step, self.loss, self.metrics = step, state["loss"], state.get("metrics", {})
        self.stopped = state.get("stopped", False)
        self._losses, self._states.copies = dict(state.get("losses", ())), list(state.get("runs", ()))

    def keep_for_later(self, needed: bool) -> None:
        """Copy the state: until its first step the cell runs what belongs to earlier ones, and must not change it."""
        if needed and self._kept is None:
            self._kept = self._copy()

    def undo(self) -> None:
        """Go back to the copy of `keep_for_later`, if there is one."""
        if self._kept is not None:
            coming = self.sizes.schedule if self.sizes is not None else ()
            self._load(self._kept)
            if self.sizes is not None:
                self.sizes.follow(coming, self.applied)  # the generation has said it since the copy was made
            self._kept = None

    def _load(self, state: dict[str, Any]) -> None:
        fit_buffers(self._model, state["model"])
        self._model.load_state_dict(state["model"])
        load_exactly(self.optimizer, state["optimizer"])
        if self._scheduler is not None:
            load_scheduler(self._scheduler, state["scheduler"])
        self.lanes.load(state.get("lanes", {}))
        self.scaling.load(state.get("scaler", {}))
        if self.sizes is not None and "batches" in state:
            self.sizes.load(state["batches"])
        if self.step_guard.guard is not None and "guard" in state:
            self.step_guard.load(state["guard"])

    def digest(self) -> str:
        """SHA-256 (hex) of this process's part of `as_dict`, without the guard, and of what the cell carries."""
        return state_codec.digest(self._parts())

    def fingerprint(self) -> str:
        """Equal where `digest` is, and five times as fast: what two members have built is compared by it."""
        skeleton, tensors = state_codec.pack(self._parts(), on_device=True, layouts=False)
        return f"{hashlib.sha256(state_codec.encode(skeleton)).hexdigest()[:16]}{checksum(tensors):016x}"

    def _parts(self) -> dict[str, Any]:
        parts = {part: value for part, value in self.as_dict().items() if part != "guard"}
        copies = self.carried.at(self.applied)["values"]
        return parts | ({"carried": copies} if copies else {})

    def parameter_bytes(self) -> int:
        """Bytes of the trained parameters."""
        return sum(p.numel() * p.element_size() for p in self._parameters)

    def expected_bytes(self) -> int:
        """Bytes of parameters and buffers, and for Adam-like optimizers of their two moments."""
        own = sum(t.numel() * t.element_size() for t in self._model.state_dict().values())
        return int(own) + (2 * self.parameter_bytes() if "betas" in self.optimizer.defaults else 0)


def _named(metrics: Collection[str]) -> str:
    return f"the metrics {few(sorted(metrics))}" if metrics else "no metrics"
