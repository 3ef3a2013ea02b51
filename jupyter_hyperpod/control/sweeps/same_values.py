"""Whether two values, or two definitions, are the same for a program that uses one in place of the other."""

from __future__ import annotations

import functools
import inspect
import sys
import types
from contextlib import suppress
from typing import Any

PLAIN = (bool, int, float, str, bytes, tuple, list, dict, set, types.NoneType)


def equal(one: Any, other: Any) -> bool:
    """Whether two values are the same for a program; False where that cannot be told."""
    with suppress(Exception):  # what a class of the person's compares with may raise anything
        same = type(one) is type(other)
        return same and (one is other or bool(one == other) or (one != one and other != other))
    return False


def alike(one: Any, other: Any) -> bool:
    """As `equal`, and also for what compares by identity: modules of torch, by their attributes, and partial calls."""
    if type(one) is not type(other):
        return False
    if equal(one, other):
        return True
    if isinstance(one, functools.partial):
        return alike([one.func, one.args, one.keywords], [other.func, other.args, other.keywords])
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, dict):
        return list(one) == list(other) and all(alike(value, other[key]) for key, value in one.items())
    return is_torch_module(one) and alike(vars(one), vars(other))


def is_torch_module(value: Any) -> bool:
    """Whether this is a module of torch that holds no tensor."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(value, torch.nn.Module):
        return False
    return not [*value.parameters(), *value.buffers()]


def is_definition(value: Any) -> bool:
    """Whether this is a class or a function."""
    return inspect.isclass(value) or inspect.isroutine(value)


def same_definition(one: Any, other: Any) -> bool:
    """Whether two functions, or two classes, come of the same text, as they do after a module was loaded again."""
    names = ("__module__", "__qualname__")
    if type(one) is not type(other) or any(getattr(one, name, one) != getattr(other, name, other) for name in names):
        return False
    if inspect.isfunction(one):
        return _same_function(one, other)
    if not inspect.isclass(one) or list(map(repr, one.__mro__)) != list(map(repr, other.__mro__)):
        return False
    parts, others = ({name: _function_in(value) for name, value in vars(kind).items()} for kind in (one, other))
    own = [name for name, value in parts.items() if inspect.isfunction(value) or not name.startswith("__")]
    return parts.keys() == others.keys() and all(_same_part(parts[name], others[name]) for name in own)


def _function_in(value: Any) -> Any:
    return getattr(value, "fget", None) or getattr(value, "__func__", value)


def _same_part(one: Any, other: Any) -> bool:
    if inspect.isfunction(one):
        return inspect.isfunction(other) and _same_function(one, other)
    if isinstance(one, PLAIN):
        return type(one) is type(other) and repr(one) == repr(other)
    return getattr(type(one), "__qualname__", "") == getattr(type(other), "__qualname__", "")


def _same_function(one: types.FunctionType, other: types.FunctionType) -> bool:
    if one.__code__ != other.__code__ or repr(one.__kwdefaults__) != repr(other.__kwdefaults__):
        return False
    if not alike(one.__defaults__, other.__defaults__) and repr(one.__defaults__) != repr(other.__defaults__):
        return False
    cells = [[cell.cell_contents for cell in function.__closure__ or ()] for function in (one, other)]
    around = zip(*cells, strict=True)  # equal code has as many
    return all(alike(first, second) or _same_name(first, second) for first, second in around) and (
        not hasattr(one, "__wrapped__") or same_definition(one.__wrapped__, getattr(other, "__wrapped__", None))
    )


def _same_name(one: Any, other: Any) -> bool:
    """Of a class around a method, and of a function that another wraps, which is compared by itself."""
    both = is_definition(one) and is_definition(other)
    return both and (one.__module__, one.__qualname__) == (other.__module__, other.__qualname__)
