"""Clips the reduced gradient: by value, and by the norm of all parameters or of one parameter group."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...core.errors import SpecError
from ..comm.shards import local
from .turns import AnyOptimizer, ones

NORM, VALUE = "max_grad_norm", "max_grad_value"


@dataclass(frozen=True)
class GradientLimits:
    """What the session was given for all parameters; None does not clip.

    A parameter group may have a limit of its own under the same name: ``{"params": ..., "max_grad_norm": 0.5}``. It is
    clipped by itself then, and the others together.
    """

    norm: float | None = None
    value: float | None = None

    def refuse_unfit(self, optimizer: AnyOptimizer) -> None:
        """Raise SpecError for limits with which nothing could be trained."""
        for name, limit in ((NORM, self.norm), (VALUE, self.value)):
            _refuse(limit, name)
            for place, group in enumerate(_groups(optimizer, name)):
                _refuse(group.get(name), f"{name} of parameter group {place}")

    def clip(self, parameters: Sequence[torch.nn.Parameter], optimizer: AnyOptimizer) -> bool:
        """Clip the present gradients, first by value and then by norm; False where there is no limit at all."""
        self.refuse_unfit(optimizer)
        own = {name: [group for group in _groups(optimizer, name) if name in group] for name in (NORM, VALUE)}
        if self.norm is None and self.value is None and not any(own.values()):
            return False
        for limit, group in self._parts(self.value, VALUE, parameters, own[VALUE]):
            for gradient in (local(parameter.grad) for parameter in group if parameter.grad is not None):
                gradient.clamp_(-limit, limit)
        for limit, group in self._parts(self.norm, NORM, parameters, own[NORM]):
            torch.nn.utils.clip_grad_norm_(group, limit)
        return True

    @staticmethod
    def _parts(
        limit: float | None, name: str, parameters: Sequence[torch.nn.Parameter], own: Sequence[dict[str, Any]]
    ) -> list[tuple[float, list[torch.nn.Parameter]]]:
        """GradientLimits, and the parameters that are clipped together by each."""
        apart = {id(parameter) for group in own for parameter in group["params"]}
        parts = [(limit, [parameter for parameter in parameters if id(parameter) not in apart])]
        parts += [(group[name], group["params"]) for group in own]
        return [(limit, group) for limit, group in parts if limit is not None and group]


def _groups(optimizer: AnyOptimizer, name: str) -> list[dict[str, Any]]:
    """Groups whose ``name`` is meant for the session: an optimizer that has a setting of that name clips itself."""
    return [group for one in ones(optimizer) if name not in getattr(one, "defaults", {}) for group in one.param_groups]


def _refuse(limit: Any, name: str) -> None:
    numeric = isinstance(limit, (int, float)) and not isinstance(limit, bool)
    if limit is not None and not (numeric and limit > 0 and not math.isnan(limit)):
        raise SpecError(f"{name} is {limit!r}; expected a number above 0, or None, which does not clip")
