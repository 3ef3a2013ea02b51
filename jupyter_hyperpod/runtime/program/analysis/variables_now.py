"""What variables of the functions that run hold at this moment, as far as a rule on source code needs it."""

from __future__ import annotations

import ast
import functools
import types
from collections.abc import Iterator
from typing import Any

import torch

from ..frames import callers
from ..own_files import is_own_class, is_own_file
from ..readings import SHOWS, shows
from ..value_kinds import NAMESPACES, PLAIN
from .scopes import base
from .syntax import last_name

_UNKNOWN = object()


def is_plain(name: str) -> bool:
    """Whether a variable holds a number or text."""
    return any(isinstance(value, PLAIN) for value in list(_values(name))[:1])


def is_bar(name: str) -> bool:
    """Whether a variable holds a progress bar."""
    return any(type(value).__module__.partition(".")[0] == "tqdm" for value in _values(name))


def is_ordered_by_address(name: str) -> bool:
    """Whether a variable holds a set of at least two objects that have no hash but that of their address."""
    sets = [value for value in _values(name) if isinstance(value, (set, frozenset)) and len(value) > 1]
    by_address: tuple[object, ...] = (object.__hash__, torch.Tensor.__hash__)
    return any(type(item).__hash__ in by_address for value in sets for item in value)


def is_foreign(expression: ast.AST) -> bool | None:
    """Whether an expression is an object of a library that may read what is set of it; None where no variable that can
    be seen leads there.
    """
    value = _object(expression)
    if value is _UNKNOWN:
        return None
    if isinstance(value, types.ModuleType):
        file = vars(value).get("__file__") or ""
        own = value.__name__ == "__main__" or is_own_file(file)
        return not own and not SHOWS.intersection(value.__name__.split("."))
    if isinstance(value, types.FunctionType):
        return not is_own_file(value.__code__.co_filename)
    if isinstance(value, (*PLAIN, *NAMESPACES.values(), list, tuple, set, dict)) or shows(value):
        return False
    return not is_own_class(value if isinstance(value, type) else type(value))


def is_own_function(name: str) -> bool | None:
    """Whether a call of what a variable holds runs code of the program, other than that of a function or a class under
    its own name, whose arguments the source shows; None where there is no such variable.
    """
    value = next(_values(name), _UNKNOWN)
    if value is _UNKNOWN:
        return None
    if isinstance(value, functools.partial):
        return True
    if isinstance(value, (types.FunctionType, types.MethodType)):
        code = value.__code__
        return value.__name__ != name and is_own_file(code.co_filename)
    return not isinstance(value, type) and callable(value) and is_own_class(type(value))


def _values(name: str) -> Iterator[Any]:
    for frame in callers():
        for names in (frame.f_locals, frame.f_globals):
            if name in names:
                yield names[name]


def _object(expression: ast.AST) -> Any:
    """The object to which ``a.b[0].c`` leads, without a call of the program's code."""
    if isinstance(expression, ast.Name):
        return next(_values(base(expression.id)), _UNKNOWN)
    if isinstance(expression, ast.Attribute):
        return _attribute(_object(expression.value), last_name(expression))
    if isinstance(expression, ast.Subscript) and isinstance(expression.slice, ast.Constant):
        holder, key = _object(expression.value), expression.slice.value
        if isinstance(holder, torch.nn.Module):
            return holder._modules.get(str(key), _UNKNOWN)
        if isinstance(holder, (list, tuple)) and isinstance(key, int) and -len(holder) <= key < len(holder):
            return holder[key]
        return holder.get(key, _UNKNOWN) if isinstance(holder, dict) else _UNKNOWN
    return _UNKNOWN


def _attribute(holder: Any, name: str) -> Any:
    held = getattr(holder, "__dict__", {})
    for names in (held, held.get("_modules", {}), held.get("_parameters", {}), held.get("_buffers", {})):
        if name in names:
            return names[name]
    return _UNKNOWN
