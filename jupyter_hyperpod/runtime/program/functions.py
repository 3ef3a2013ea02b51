"""Which functions a variable holds, for members that join later: they have those that their cells have defined.

A function travels by its place in the source where another name holds it, too, or by its name in a library.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable, Mapping
from functools import lru_cache, partial, reduce
from typing import Any

from .value_kinds import PLAIN

FUNCTION = "\0function"  # the key of a copy that stands for a function
LIBRARIES = ("torch", "numpy", "math")  # a copy names no function of others: it may come from a checkpoint
LONG = 100  # items of a container that is looked into
SWAPPED = (
    "line {line} gives {name} another function, and a member that joins later would go on with the first one: define "
    "both with `def` before the loop and choose by name, such as `{name} = second if session.step > 100 else first`, "
    "or choose in the function itself"
)


def held(value: Any) -> Any:
    """What tells the functions and classes in a value apart from others, in this process; None where it holds none.

    Functions are alike where their code is: a loop may define one anew in each turn.
    """
    if isinstance(value, types.FunctionType):
        return value.__code__
    if isinstance(value, (types.BuiltinFunctionType, type)):
        return value
    if isinstance(value, types.MethodType):
        return "method", held(value.__func__)
    if isinstance(value, partial):
        return "partial", held(value.func), _plain(value.args), _plain(sorted(value.keywords.items()))
    if isinstance(value, dict) and len(value) <= LONG:
        found = {key: inner for key, item in value.items() if (inner := held(item)) is not None}
        return found or None
    if isinstance(value, (list, tuple)) and len(value) <= LONG:
        parts = [held(item) for item in value]
        return parts if any(part is not None for part in parts) else None
    return None


def _plain(values: Any) -> str:
    return repr([item if isinstance(item, PLAIN) or isinstance(item, tuple) else type(item) for item in values])


def reference(value: Any, own: str, spaces: Iterable[Mapping[str, Any]]) -> list[Any] | None:
    """What names a function in other processes of the job: another name than ``own`` for it in ``spaces``, or None."""
    if isinstance(value, types.FunctionType):
        place = _place(value)
        for names in spaces:
            for name, other in names.items():
                if name != own and isinstance(other, types.FunctionType) and _place(other) == place:
                    return ["place", *place]
    module, name = getattr(value, "__module__", None) or "", getattr(value, "__qualname__", "")
    named = isinstance(value, (types.FunctionType, type)) and _is_of_library(module)
    return ["name", module, name] if named and _named(module, name) is value else None


def found(copy: list[Any], spaces: Iterable[Mapping[str, Any]]) -> Any:
    """The function that `reference` named. Raises LookupError where this process has none."""
    kind, *place = copy
    if kind == "place":
        for names in spaces:
            for other in names.values():
                if isinstance(other, types.FunctionType) and _place(other) == place:
                    return other
        raise LookupError(place)
    value = _named(*place) if _is_of_library(place[0]) else None
    if not isinstance(value, (types.FunctionType, type)) or not _is_of_library(value.__module__):
        raise LookupError(place)
    return value


def _is_of_library(module: str) -> bool:
    return module.partition(".")[0] in LIBRARIES


def _place(function: types.FunctionType) -> list[Any]:
    code = function.__code__
    columns = next(iter(code.co_positions()), (0, 0, 0, 0))
    return [code.co_filename, code.co_qualname, code.co_firstlineno, [*columns]]


def _named(module: str, name: str) -> Any:
    try:
        return reduce(getattr, name.split("."), sys.modules[module])
    except (KeyError, AttributeError):
        return None


@lru_cache(maxsize=4096)
def names_of(code: types.CodeType) -> frozenset[str]:
    """The names that a function and those inside it mention."""
    inner = (constant for constant in code.co_consts if isinstance(constant, types.CodeType))
    return frozenset(code.co_names).union(*map(names_of, inner))
