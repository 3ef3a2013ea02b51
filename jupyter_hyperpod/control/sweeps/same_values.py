"""Whether two values, or two definitions, are the same for a program that uses one in place of the other."""

from __future__ import annotations

import functools
import inspect
import sys
from contextlib import suppress
from typing import Any


def equal(one: Any, other: Any) -> bool:
    """Whether two values are the same for a program; False where that cannot be told."""
    with suppress(Exception):  # what a class of the person's compares with may raise anything
        same = type(one) is type(other)
        return same and (one is other or bool(one == other) or (one != one and other != other))
    return False


def alike(one: Any, other: Any) -> bool:
    """As `equal`, and also for what compares by identity: modules of torch, by their attributes, and partial calls."""
    if equal(one, other) or type(one) is not type(other):
        return type(one) is type(other)
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
