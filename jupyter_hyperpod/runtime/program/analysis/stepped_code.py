"""Tells whether applying a step may read what the cell changes between steps: then a gradient alone is not enough.

A newcomer that gets the reduced gradient of a step it has missed applies that before its cell has run what precedes the
step. A learning rate that a function of the cell computes from a variable, an optimizer of the cell's own class, or a
hook of it would read the values of an earlier step there, and draw what generators give that are not at that step.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch

from ..functions import names_of
from ..own_files import is_own_class, is_own_file
from .chance import DRAWS

PRODUCT = __name__.partition(".")[0]  # whose own hooks are not the cell's
_MOST, _LONG = 1000, 100  # objects that are looked at, and items of a container
_NOTHING = (int, float, complex, str, bytes, bool, type(None), torch.Tensor, torch.nn.Module, types.BuiltinFunctionType)


def reads_cell(optimizers: Collection[Any], schedulers: Collection[Any], changed: Collection[str]) -> bool:
    """Whether stepping them may run a function of the cell that mentions one of the names ``changed`` by its loops, or
    draws."""
    read = DRAWS.union(changed)
    return any(not _mentioned(function).isdisjoint(read) for function in _functions([*optimizers, *schedulers]))


def _functions(values: Iterable[Any]) -> Iterator[types.FunctionType]:
    """The cell's functions that calls of these values, or steps of optimizers and schedulers, may run."""
    waiting, seen = list(values), dict[int, Any]()
    while waiting and len(seen) < _MOST:
        value = waiting.pop()
        if isinstance(value, _NOTHING) or id(value) in seen:
            continue
        seen[id(value)] = value  # kept, so that no other object gets its id
        if isinstance(value, types.FunctionType):
            is_of_cell = _is_of_cell(value)
            if is_of_cell:
                yield value
            waiting += _named(value) if is_of_cell else [getattr(value, "__wrapped__", None)]  # by torch, a decorator
        else:
            waiting += _parts(value)


def _named(function: types.FunctionType) -> Iterator[Any]:
    """What a function of the cell may call: what its names, its closure and its arguments' defaults hold."""
    yield from (function.__globals__.get(name) for name in names_of(function.__code__))
    yield from (cell.cell_contents for cell in function.__closure__ or () if _is_bound(cell))
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()


def _parts(value: Any) -> Iterator[Any]:
    """What an object may run: the methods of its class, and what it holds, such as hooks."""
    if isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif isinstance(value, types.MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, types.ModuleType):
        if is_own_file(getattr(value, "__file__", None) or "<frozen"):
            yield from (one for one in vars(value).values() if isinstance(one, types.FunctionType))
    elif isinstance(value, type):
        if _is_of_cell(value):
            yield from (_code(one) for one in vars(value).values())
    elif isinstance(value, (list, tuple, dict)):
        if len(value) <= _LONG:
            yield from value.values() if isinstance(value, dict) else value
    elif isinstance(value, (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler)) or _is_of_cell(type(value)):
        yield from type(value).__mro__
        yield from (
            one for name, one in getattr(value, "__dict__", {}).items() if name not in ("state", "param_groups")
        )


def _code(attribute: Any) -> Any:
    """The function of a method, a property, or a static or class method."""
    return getattr(attribute, "fget", None) or getattr(attribute, "__func__", attribute)


def _mentioned(function: types.FunctionType) -> frozenset[str]:
    """Names of variables, attributes, and cells of the function's closure."""
    return names_of(function.__code__).union(function.__code__.co_freevars)


def _is_of_cell(value: types.FunctionType | type) -> bool:
    if (value.__module__ or "").partition(".")[0] == PRODUCT:
        return False
    return is_own_class(value) if isinstance(value, type) else is_own_file(value.__code__.co_filename)


def _is_bound(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
