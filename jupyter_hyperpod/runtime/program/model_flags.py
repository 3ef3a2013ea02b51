"""What the cell may change of the session's own model and data besides the training state.

These are frozen parameters, the modes of modules, and plain attributes that the file of the cell sets outside
constructors, such as ``model.temperature`` or ``data.epoch``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from operator import is_
from typing import Any

import torch

from ...core.errors import TrainingError
from ..comm.shards import is_shard
from .carried_paths import Tracer
from .copies.copier import Copier
from .copies.forms import Copy

DATA = "data"
REBUILT = (
    "the loop has replaced {name!r} of the model, which is another {kind} now, and a member that joins later builds "
    "the model as it was. {remedy}"
)
BUILD = (
    "Build all parts before the loop, and let forward() choose by an attribute, such as model.phase, which the loop "
    "may change"
)
CHANGE = "Change the values of the parameter in place: with torch.no_grad(): parameter.copy_(...)"


class ModelFlags:
    """Reads and sets the flags and attributes of ``model`` and ``data``; ``own`` are ids that are never copied."""

    def __init__(self, model: torch.nn.Module, data: Any, own: frozenset[int]) -> None:
        self._parameters = list(model.named_parameters())  # listed once: walking the modules at each step would cost
        self._modules = list(model.named_modules())
        self._parts: list[tuple[Mapping[str, Any], list[Any], str]] = []  # where parts are kept, the parts, and whose
        self._data = data
        self._copier = Copier(own)

    def copied(self, attributes: Collection[str], reads_gradients: bool = False) -> dict[str, Copy]:
        """Copies of the flags, of these attributes, and of the last gradients where the cell ``reads_gradients``."""
        return {
            "frozen": [name for name, parameter in self._parameters if not parameter.requires_grad],
            "evaluating": [name for name, module in self._modules if not module.training],
            "attributes": self._attributes(attributes) if attributes else {},
            "gradients": self._gradients() if reads_gradients else {},
        }

    def _gradients(self) -> dict[str, Copy]:
        shown = ((name, parameter.grad) for name, parameter in self._parameters)
        return {name: grad.detach().clone() for name, grad in shown if grad is not None and not is_shard(grad)}

    def refuse_rebuilt(self) -> None:
        """Raise TrainingError where a module or a parameter is another object than at the first call."""
        if not self._parts:
            sharded = any(is_shard(parameter) for _, parameter in self._parameters)  # they are replaced in each step
            for path, module in self._modules:
                for kept in (module._modules,) if sharded else (module._modules, module._parameters):
                    if kept:
                        self._parts.append((kept, list(kept.values()), path))
        for kept, before, path in self._parts:
            if len(kept) != len(before) or not all(map(is_, kept.values(), before)):
                raise TrainingError(_rebuilt(kept, before, path))

    def put_back(self, copies: Mapping[str, Copy]) -> None:
        """Set the flags and attributes to what the copies hold."""
        if not copies:
            return
        for name, parameter in self._parameters:
            parameter.requires_grad_(name not in copies["frozen"])
            if (grad := copies.get("gradients", {}).get(name)) is not None:
                parameter.grad = grad.to(parameter.device).clone()
        for name, module in self._modules:
            module.training = name not in copies["evaluating"]
        for place, holder in self._holders():
            self._copier.set_attributes(holder, copies["attributes"].get(place, {}))

    def _holders(self) -> Iterator[tuple[str, Any]]:
        for name, module in self._modules:
            yield f"model.{name}", module
        if hasattr(self._data, "__dict__"):
            yield DATA, self._data

    def _attributes(self, names: Collection[str]) -> dict[str, dict[str, Copy]]:
        return {place: found for place, holder in self._holders() if (found := self._of(holder, names))}

    def trace(self, tracer: Tracer, names: Collection[str]) -> None:
        """Note the attributes that are copied."""
        for _, holder in self._holders():
            tracer.attributes_of(holder, self._kept(holder, names))

    def _of(self, holder: Any, names: Collection[str]) -> dict[str, Copy]:
        return self._copier.attributes_of(holder, self._kept(holder, names))

    def _kept(self, holder: Any, names: Collection[str]) -> set[str]:
        return {name for name in names & vars(holder).keys() if not _is_activation(vars(holder)[name])}


def _rebuilt(kept: Mapping[str, Any], before: Sequence[Any], path: str) -> str:
    new = {name: part for name, part in kept.items() if part is not None and not any(part is one for one in before)}
    name, part = next(iter(new.items()), ("", None))  # none where parts were only removed or moved
    remedy = CHANGE if isinstance(part, torch.nn.Parameter) else BUILD
    kind = "module" if part is None else type(part).__name__
    return REBUILT.format(name=f"{path}.{name}".strip(".") or "a part", kind=kind, remedy=remedy)


def _is_activation(value: Any) -> bool:
    """Whether `value` is a result of the last forward pass that a module keeps."""
    return isinstance(value, torch.Tensor) and value.grad_fn is not None
