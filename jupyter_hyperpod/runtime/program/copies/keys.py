"""The keys of a dictionary as they travel: numbers and text, and the model's own parameters, buffers and modules."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any

import torch

from ..value_kinds import Unfit

OWN = "\0own"  # the first part of a key that names a part of the model


class Own(frozenset[int]):
    """Ids of the objects that the session carries already; parts of its ``model`` have names as well."""

    model: torch.nn.Module | None = None
    _names: dict[int, str]
    _groups: list[dict[str, Any]]  # they may be replaced, and no other object may get their ids

    def name_of(self, value: Any) -> str | None:
        """What names a part of the model on every member, None for another object."""
        if id(value) not in self or not isinstance(value, (torch.Tensor, torch.nn.Module)):
            return None
        name = self._names.get(id(value))
        if name is None or self._found(name) is not value:
            self._names = {id(part): name for name, part in self._parts()}
            name = self._names.get(id(value))
        return name

    def of_name(self, name: str) -> Any:
        """This member's part of the model. Raises Unfit."""
        if (found := self._found(name)) is None:
            raise Unfit("", None)
        return found

    def _parts(self) -> Iterator[tuple[str, Any]]:
        if self.model is not None:
            yield from ((f"module {name}", module) for name, module in self.model.named_modules())
            yield from ((f"buffer {name}", tensor) for name, tensor in self.model.named_buffers())
            yield from ((f"parameter {name}", tensor) for name, tensor in self.model.named_parameters())

    def _found(self, name: str) -> Any:
        kind, _, path = name.partition(" ")
        with suppress(AttributeError):
            if self.model is not None:
                return getattr(self.model, f"get_{'submodule' if kind == 'module' else kind}")(path)
        return None


def own_ids(session: Any, model: torch.nn.Module, *others: Any) -> Own:
    """The objects that travel as the session's own, or that every cell makes alike, such as the data.

    What an optimizer keeps of each group of parameters travels with the optimizer, whatever variable holds it. A list
    of samples is not among them: a cell may append to it, such as to a memory of what an agent has seen.
    """
    kept = [
        tensor
        for m in model.modules()
        for name, tensor in m._buffers.items()
        if name not in m._non_persistent_buffers_set
    ]
    found = [session, *model.modules(), *model.parameters(), *kept, *others]
    found = [value for value in found if value is not None and type(value) not in (list, dict, deque)]
    groups = [group for one in others if isinstance(one, torch.optim.Optimizer) for group in one.param_groups]
    own = Own(map(id, (*found, *groups)))
    own.model, own._names, own._groups = model, {}, groups
    return own


def key_of(key: Any, path: str, own: Collection[int]) -> Any:
    """A key of a dictionary as it travels. Raises Unfit."""
    if key is None or isinstance(key, (str, int, float)):
        return key
    if isinstance(key, tuple):
        return tuple(key_of(part, path, own) for part in key)
    if isinstance(own, Own) and (name := own.name_of(key)) is not None:
        return OWN, name
    raise Unfit(path, key)


def key_from(key: Any, own: Collection[int]) -> Any:
    """Inverse of `key_of`. Raises Unfit for a part that this member's model lacks."""
    if not isinstance(key, tuple):
        return key
    if len(key) == 2 and key[0] == OWN and isinstance(own, Own):
        return own.of_name(key[1])
    return tuple(key_from(part, own) for part in key)
