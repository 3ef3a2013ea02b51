"""Notices that the cell has changed what reading the data depends on: forked readers have it as it was."""

from __future__ import annotations

from collections import deque
from operator import is_
from typing import Any

import torch

from ..program.copies.copier import Copier
from ..program.reached import digest, elements, reachable
from ..program.value_kinds import PLAIN

FEW = 1000  # numbers of a container that is compared by its content


CONSTANTS = (str, bytes, int, float, complex, bool, type(None))


class Watch:
    """What the data set, the classes of its parts and their functions reach, as cheap marks that change with it."""

    def __init__(self, *sources: Any) -> None:
        self._sources = sources
        self._copier = Copier()
        self._seen: dict[str, Any] | None = None

    def changed(self) -> list[str]:
        """Names of what has changed since the last call; none in the first."""
        before = self._seen
        known = before or {}
        self._seen = {name: self._mark(value, known.get(name)) for name, value in reachable(self._sources)}
        self._seen["the data"] = [tuple(map(id, s)) for s in self._sources if isinstance(s, (list, deque))]
        if before is None:
            return []
        return sorted(name for name in {*before, *self._seen} if before.get(name) != self._seen.get(name))

    def _mark(self, value: Any, before: Any) -> Any:
        if isinstance(value, PLAIN):
            return value
        if isinstance(value, torch.Tensor):
            return id(value), value._version
        if isinstance(value, (list, dict)):
            if len(value) > FEW:
                return id(value), len(value)
            if _has_same_parts(value, before):
                return before
            if _holds_constants(value):
                return value.copy()
        if isinstance(value, torch.nn.Module) or elements(value) > FEW:
            return id(value)
        if isinstance(value, (list, tuple)) and all(isinstance(item, torch.Tensor) for item in value):
            return [(id(item), item._version) for item in value]
        return digest(value, self._copier) or id(value)


def _has_same_parts(value: list[Any] | dict[Any, Any], before: Any) -> bool:
    """Whether ``before``, a copy of a container of constants, has the same objects, which costs next to nothing."""
    if type(value) is not type(before) or len(value) != len(before):
        return False
    if isinstance(value, dict) and isinstance(before, dict) and not all(map(is_, value.values(), before.values())):
        return False
    return all(map(is_, value, before))


def _holds_constants(value: list[Any] | dict[Any, Any]) -> bool:
    """Whether nothing changes in a container unless it gets other parts."""
    parts = value.values() if isinstance(value, dict) else value
    return all(
        isinstance(part, CONSTANTS) or (type(part) is tuple and all(isinstance(inner, CONSTANTS) for inner in part))
        for part in parts
    )
