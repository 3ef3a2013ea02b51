"""The training state: model, optimizer, scheduler, and the number of applied steps."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch

from ..comm import state_codec
from ..comm.shards import local, mesh_of
from .guard import StepGuard


class TrainingState:
    """The training state of one rank. ``step`` is None until a newcomer has the state; ``loss``: of the last step.

    ``step_guard`` judges steps before they are applied; its history is part of the state. ``mesh``: the ranks that
    share sharded parameters, None without sharding.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        scheduler: Any,
        parameters: Sequence[torch.nn.Parameter],
        step_guard: StepGuard,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._parameters = parameters
        self.step_guard = step_guard
        self.mesh = mesh_of(parameters)
        self.step: int | None = None
        self.loss = math.nan

    @property
    def applied(self) -> int:
        """Steps applied so far; 0 for a newcomer."""
        return self.step or 0

    def apply(self, loss: float, skipped: bool = False) -> None:
        """Step the optimizer with the present gradients. No message can interrupt this.

        In a ``skipped`` step only the scheduler steps, because it follows the number of the step.
        """
        if not skipped:
            self._optimizer.step()
        if self._scheduler is not None:
            self._schedule(skipped)
        self.step, self.loss = self.applied + 1, loss

    def _schedule(self, skipped: bool) -> None:
        if not skipped:
            self._scheduler.step()
            return
        with warnings.catch_warnings():  # it makes Python repeat warnings, so not in every step
            warnings.simplefilter("ignore", UserWarning)  # stepping the scheduler first is intended here
            self._scheduler.step()

    def as_dict(self) -> dict[str, Any]:
        """Parameters, buffers, optimizer, scheduler and guard; the tensors are not copies."""
        state = {"model": dict(self._model.state_dict()), "optimizer": self._optimizer.state_dict()}
        if self._scheduler is not None:
            state["scheduler"] = self._scheduler.state_dict()
        if self.step_guard.guard is not None:
            state["guard"] = self.step_guard.as_dict()
        return state

    def tensors(self) -> dict[str, torch.Tensor]:
        """Parameters, persistent buffers and optimizer state by name, not copies; of shards, this rank's part."""
        whole = {k: t for k, t in self._model.state_dict(keep_vars=True).items() if isinstance(t, torch.Tensor)}
        found = {name: local(tensor) for name, tensor in whole.items()}
        names = {id(tensor): name for name, tensor in whole.items()}
        for parameter in (p for group in self._optimizer.param_groups for p in group["params"]):
            for key, value in self._optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    found[f"{names.get(id(parameter), id(parameter))}.{key}"] = local(value)
        return found

    def pack(self) -> tuple[state_codec.Skeleton, list[torch.Tensor]]:
        """The skeleton and the tensors of `as_dict` and of the loss, for a peer or a checkpoint; see `state_codec`."""
        return state_codec.pack(self.as_dict() | {"loss": self.loss})

    def unpack(self, skeleton: state_codec.Skeleton, tensors: Sequence[torch.Tensor], step: int) -> None:
        """Load what `pack` returned after ``step``."""
        state = state_codec.unpack(skeleton, tensors, self.mesh)
        self._model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        if self._scheduler is not None:
            self._scheduler.load_state_dict(state["scheduler"])
        if self.step_guard.guard is not None and "guard" in state:
            self.step_guard.load(state["guard"])
        self.step, self.loss = step, state["loss"]

    def digest(self) -> str:
        """SHA-256 (hex) of this process's part of `as_dict`, without the guard."""
        return state_codec.digest({part: value for part, value in self.as_dict().items() if part != "guard"})

    def parameter_bytes(self) -> int:
        """Bytes of the trained parameters."""
        return sum(p.numel() * p.element_size() for p in self._parameters)

    def expected_bytes(self) -> int:
        """Bytes of parameters and buffers, and for Adam-like optimizers of their two moments."""
        own = sum(t.numel() * t.element_size() for t in self._model.state_dict().values())
        return int(own) + (2 * self.parameter_bytes() if "betas" in self._optimizer.defaults else 0)
