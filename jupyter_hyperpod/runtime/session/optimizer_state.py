"""What a session needs of an optimizer's state: it is whole in ``state_dict()``, and comes back with the same bits."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ...core.errors import TrainingError
from ...core.units import few
from .turns import AnyOptimizer, ones

_OF_TORCH = ("state", "param_groups", "defaults", "step")  # in state_dict(), fixed, or wrapped by schedulers
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


def load_exactly(optimizer: AnyOptimizer, saved: Mapping[str, Any]) -> None:
    """Load a state dict; tensors keep their data type.

    torch converts floating-point parameters' state to the type of the parameter: 32-bit moments of bfloat16 weights
    would lose bits, and quantised ones their meaning.
    """
    optimizer.load_state_dict(dict(saved))
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for number, parameter in zip(numbers, held, strict=True):
        for name, value in saved.get("state", {}).get(number, {}).items():
            loaded = optimizer.state[parameter].get(name)
            if _has_other_type(loaded, value):
                optimizer.state[parameter][name] = value.detach().clone().to(loaded.device)


def _has_other_type(loaded: Any, saved: Any) -> bool:
    both = isinstance(loaded, torch.Tensor) and isinstance(saved, torch.Tensor)
    return both and loaded.dtype != saved.dtype


class OptimizerWatch:
    """Refuses an optimizer whose step changes what its ``state_dict()`` does not have, and added parameters."""

    def __init__(self, optimizer: AnyOptimizer) -> None:
        self._optimizer = optimizer
        self._held = self._parameters()

    def refuse_added(self) -> None:
        """Raise TrainingError where parameters were added or removed after the session was opened."""
        if self._parameters() != self._held:
            raise TrainingError(
                f"the optimizer held {len(self._held)} parameters when the session was opened, and holds others now: "
                "a member that joins later would not have them. Give all of them to the optimizer before hp.Session, "
                "and train some later by requires_grad_(False) and requires_grad_(True), or by a learning rate of 0"
            )

    def step(self, step: Callable[[], None], first: bool) -> None:
        """Step the optimizer by ``step``; if ``first`` raise TrainingError where it keeps state in attributes."""
        before = self._attributes() if first else {}
        step()
        if not first:
            return
        after = self._attributes()
        if changed := sorted(name for name in {*before, *after} if before.get(name) != after.get(name)):
            kind = changed[0][0]
            raise TrainingError(
                f"{kind}.step() changes {few([name for _, name in changed])}, which is not in its state_dict(), so a "
                "member that joins later would not have it: keep it in optimizer.state[parameter] or in "
                "optimizer.param_groups, or pass another optimizer"
            )

    def _parameters(self) -> list[int]:
        return [id(parameter) for group in self._optimizer.param_groups for parameter in group["params"]]

    def _attributes(self) -> dict[tuple[str, str], str]:
        """Digests of the optimizers' own attributes, by class and name; torch's classes keep only notes there."""
        found: dict[tuple[str, str], str] = {}
        for one in ones(self._optimizer):
            if not type(one).__module__.startswith("torch."):
                own = {name: value for name, value in vars(one).items() if name not in _known()}
                texts = {(type(one).__name__, name): _text(value) for name, value in own.items()}
                found |= {key: hashlib.sha256(text.encode()).hexdigest() for key, text in texts.items()}
        return found


def _known() -> set[str]:
    """Attributes of every optimizer of torch."""
    plain = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.0)
    return {*_OF_TORCH, *vars(plain), "_opt_called", "_need_device_dtype_check_for_fused"}


def _text(value: Any) -> str:
    """A text that differs where plain values, tensors or containers of them do; for other objects their class."""
    if isinstance(value, _PLAIN):
        return repr(value)
    if isinstance(value, torch.Tensor):
        return f"{value.dtype}{value.detach().cpu().tolist()}"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_text(key)}:{_text(held)}" for key, held in value.items()) + "}"
    if isinstance(value, (list, tuple, set, frozenset)):
        return "[" + ",".join(map(_text, value)) + "]"
    return type(value).__name__
