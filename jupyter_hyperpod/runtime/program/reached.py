"""Digests of what a loss function and the data set can reach besides the model's state: to name what differs.

It follows globals and closures of the person's own functions, and attributes of objects, of the model's modules and of
the data set.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Collection, Iterator
from typing import Any

import torch

from ...core.errors import TrainingError
from ..comm import state_codec
from .copies.copier import Copier
from .copies.forms import OBJECT, SKIPPED
from .copies.pandas_state import is_table
from .functions import names_of
from .own_files import is_own_file
from .value_kinds import State, Unfit, has_attributes, held_by

IMPURE = (
    "the loss function gave different gradients for the same micro-batch{cause}: it may depend only on its batch, the "
    "model and the seeded generators of torch, random and numpy, and it may not change the model. What a micro-batch "
    "leaves for the next step, such as a hidden state, goes into a lane: lanes = session.lanes(...)"
)
DEEPEST = 4
LARGEST = 100_000  # elements of a tensor or an array that is read
_WRITTEN_IN_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE: the others, such as list, hold no function of Python


def reached(sources: Collection[Any], own: Collection[int]) -> dict[str, str]:
    """A digest for each value, by a name that a person recognises."""
    found: dict[str, str] = {}
    copier = Copier(own)
    seen: set[int] = set()
    for source in sources:
        for name, value in _values(source, "", seen, DEEPEST):
            if (text := digest(value, copier)) is not None:
                found[name] = text
    return found


def reachable(sources: Collection[Any]) -> Iterator[tuple[str, Any]]:
    """Names and values that data sets can reach, by the functions of their classes, too."""
    seen: set[int] = set()
    for source in sources:
        yield from _values(source, "", seen, DEEPEST)
        kinds = {type(value) for value in (source, *getattr(source, "__dict__", {}).values())}
        for base in {base: None for kind in kinds for base in kind.__mro__ if base.__flags__ & _WRITTEN_IN_PYTHON}:
            for function in vars(base).values():
                if isinstance(function, types.FunctionType):
                    yield from _values(function, "", seen, DEEPEST)


def digest(value: Any, copier: Copier, left_out: Collection[str] = ()) -> str | None:
    """A short digest of a value, without these attributes of it; None for what has no content that can be read, such
    as a module or a large tensor.
    """
    try:
        if elements(value) > LARGEST:
            return None
        copy = copier.copied(value)
        if left_out and isinstance(copy, dict) and isinstance(parts := copy.get(OBJECT), dict):
            copy = copy | {OBJECT: {name: part for name, part in parts.items() if name not in left_out}}
        return None if copy is SKIPPED else state_codec.digest({"value": copy})[:16]
    except (Unfit, TrainingError, RuntimeError, TypeError, ValueError):
        return None


def elements(value: Any, deepest: int = 3) -> int:
    """About how many numbers a value holds, containers inside included; more than `LARGEST` where it has many parts."""
    if isinstance(value, torch.Tensor):
        return value.nelement()
    if state_codec.is_array(value):
        return int(value.size)
    if is_table(value):
        return int(value.size)
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, (list, tuple, set, frozenset)):
        return 1
    if len(value) > LARGEST or not deepest:
        return LARGEST + 1
    return sum(elements(item, deepest - 1) for item in value)


def _values(source: Any, path: str, seen: set[int], depth: int) -> Iterator[tuple[str, Any]]:
    """Names and values that `source` can reach."""
    if not depth or id(source) in seen or (path and _is_ours(source)):
        return
    seen.add(id(source))
    if isinstance(source, functools.partial):
        for part in (source.func, *source.args, *source.keywords.values()):
            yield from _values(part, path, seen, depth)
    elif isinstance(source, types.MethodType):
        yield from _values(source.__func__, path, seen, depth)
        yield from _values(source.__self__, path, seen, depth)
    elif isinstance(source, types.FunctionType):
        if is_own_file(source.__code__.co_filename):
            yield from _of_function(source, seen, depth)
    elif isinstance(source, torch.nn.Module):
        for name, module in source.named_modules():
            yield from _attributes(module, ".".join(filter(None, (path or "model", name))), seen, depth)
    elif has_attributes(source) or (path == "" and hasattr(source, "__dict__")):
        yield from _attributes(source, path or type(source).__name__, seen, depth)


def _is_ours(value: Any) -> bool:
    """Whether an object is this package's, which tells of its state by `state_dict`."""
    ours = type(value).__module__.partition(".")[0] == __name__.partition(".")[0]
    return ours and not isinstance(value, State)


def _of_function(function: types.FunctionType, seen: set[int], depth: int) -> Iterator[tuple[str, Any]]:
    names = {name: function.__globals__[name] for name in names_of(function.__code__) if name in function.__globals__}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # not bound yet
            continue
    for name, value in names.items():
        if not isinstance(value, (types.ModuleType, type)):
            yield name, value
            yield from _values(value, name, seen, depth - 1)


def _attributes(value: Any, path: str, seen: set[int], depth: int) -> Iterator[tuple[str, Any]]:
    for name, inner in held_by(value).items():
        if not (isinstance(value, torch.nn.Module) and (name.startswith("_") or name == "training")):
            yield f"{path}.{name}", inner
            if not isinstance(inner, torch.nn.Module):
                yield from _values(inner, f"{path}.{name}", seen, depth - 1)
