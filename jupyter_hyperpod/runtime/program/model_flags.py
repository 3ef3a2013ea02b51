"""What the cell may change of the session's own model and data besides the training state.

These are frozen parameters, the modes of modules, and plain attributes that the file of the cell sets outside
constructors, such as ``model.temperature`` or ``data.epoch``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch

from .carried_paths import Tracer
from .copies import Copier, Copy

DATA = "data"


class ModelFlags:
    """Reads and sets the flags and attributes of ``model`` and ``data``; ``own`` are ids that are never copied."""

    def __init__(self, model: torch.nn.Module, data: Any, own: frozenset[int]) -> None:
        self._parameters = list(model.named_parameters())  # listed once: walking the modules at each step would cost
        self._modules = list(model.named_modules())
        self._data = data
        self._copier = Copier(own)

    def copied(self, attributes: Collection[str]) -> dict[str, Copy]:
        """Copies of the flags, and of these attributes."""
        return {
            "frozen": [name for name, parameter in self._parameters if not parameter.requires_grad],
            "evaluating": [name for name, module in self._modules if not module.training],
            "attributes": self._attributes(attributes) if attributes else {},
        }

    def put_back(self, copies: Mapping[str, Copy]) -> None:
        """Set the flags and attributes to what the copies hold."""
        if not copies:
            return
        for name, parameter in self._parameters:
            parameter.requires_grad_(name not in copies["frozen"])
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


def _is_activation(value: Any) -> bool:
    """Whether `value` is a result of the last forward pass that a module keeps."""
    return isinstance(value, torch.Tensor) and value.grad_fn is not None
