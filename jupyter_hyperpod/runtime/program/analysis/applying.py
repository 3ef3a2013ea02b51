"""Tells whether applying a step may read what the cell changes between steps: then a gradient alone is not enough.

A newcomer that gets the reduced gradient of a step it has missed applies that before its cell has run what precedes the
step. A learning rate that a function of the cell computes from a variable, an optimizer of the cell's own class, or a
hook of it would read the values of an earlier step there.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Collection, Iterator
from typing import Any

import torch

from ..functions import names_of
from ..own_files import is_own_file

PRODUCT = __name__.partition(".")[0]  # whose own hooks are not the cell's
_DEEPEST = 4


def reads_cell(optimizers: Collection[Any], schedulers: Collection[Any], changed: Collection[str]) -> bool:
    """Whether stepping them may run a function of the cell that mentions one of the names ``changed`` by its loops."""
    functions = [function for one in (*optimizers, *schedulers) for function in _functions(one, _DEEPEST)]
    return any(not _mentioned(function).isdisjoint(changed) for function in functions)


def _functions(value: Any, depth: int) -> Iterator[types.FunctionType]:
    """The Python functions that a call of ``value``, or a step of an optimizer or scheduler, may run."""
    if not depth:
        return
    if isinstance(value, functools.partial):
        yield from _functions(value.func, depth)
    elif isinstance(value, types.MethodType):
        yield from _functions(value.__func__, depth)
    elif isinstance(value, types.FunctionType):
        if not _is_of_cell(value):
            yield from _functions(getattr(value, "__wrapped__", None), depth - 1)  # by torch, or a decorator of it
            return
        yield value
        named = (value.__globals__.get(name) for name in names_of(value.__code__))
        cells = (cell.cell_contents for cell in value.__closure__ or () if _is_bound(cell))
        for inner in (*named, *cells):
            if isinstance(inner, types.FunctionType):
                yield from _functions(inner, depth - 1)
    elif not isinstance(value, (type, types.ModuleType, types.NoneType, torch.Tensor, torch.nn.Module)):
        yield from _of_object(value, depth)


def _of_object(value: Any, depth: int) -> Iterator[types.FunctionType]:
    """The methods of its class, and the functions that it holds, such as hooks and those of learning rates."""
    for method in (method for kind in type(value).__mro__ for method in vars(kind).values()):
        if isinstance(method, types.FunctionType):
            yield from _functions(method, depth)
    for held in list(getattr(value, "__dict__", {}).values()):
        inside = held.values() if isinstance(held, dict) else held if isinstance(held, (list, tuple)) else (held,)
        for one in list(inside):
            if callable(one) or hasattr(one, "base_lrs"):
                yield from _functions(one, depth - 1)


def _mentioned(function: types.FunctionType) -> frozenset[str]:
    """Names of variables, attributes, and cells of the function's closure."""
    return names_of(function.__code__).union(function.__code__.co_freevars)


def _is_of_cell(function: types.FunctionType) -> bool:
    return function.__module__.partition(".")[0] != PRODUCT and is_own_file(function.__code__.co_filename)


def _is_bound(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
