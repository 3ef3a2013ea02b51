"""Makes a cell of a function: its source, what it uses from its module, and a call with the values of a trial.

No function travels as bytes: what runs on the nodes is text, which can be read, compared and run again.
"""

from __future__ import annotations

import ast
import builtins
import dis
import inspect
import linecache
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from typing import Any

from ...core.errors import SpecError
from ...core.options import near_matches
from ...policy.sweeps.space import Space
from . import present_values
from .changed_values import ChangedValues
from .plan import RESULT
from .same_values import same_definition

_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")


def cell_of(function: Callable[..., Any], space: Space) -> str:
    """The cell that calls the function with a value for each name of the space, and keeps what it returns.

    Raises SpecError where the function cannot be told from its source, or takes other arguments.
    """
    if not inspect.isfunction(function) or function.__name__ == "<lambda>":
        raise SpecError(f"{function!r:.80} is not a function with a name; write `def train(lr): ...` and give `train`")
    _check_arguments(function, space)
    gathered = _Gathered(function, space)
    gathered.add(function)
    gathered.changed.check()
    values = [f"{name} = None" for name in space]
    call = f"{RESULT} = {function.__name__}({', '.join(f'{name}={name}' for name in space)})"
    parts = [*gathered.imports, *gathered.constants, "", *gathered.definitions, *values, call]
    return "\n".join(parts) + "\n"


def _check_arguments(function: types.FunctionType, space: Space) -> None:
    known = inspect.signature(function).parameters
    free = any(one.kind is inspect.Parameter.VAR_KEYWORD for one in known.values())
    for name in space:
        if name not in known and not free:
            raise SpecError(f"{function.__name__} takes no {name}{near_matches(name, list(known))}")
    needed = [
        name
        for name, one in known.items()
        if one.default is inspect.Parameter.empty
        and one.kind not in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    ]
    if missing := [name for name in needed if name not in space]:
        raise SpecError(f"{function.__name__} needs {missing[0]}, which is neither in the space nor has a default")


class _Gathered:
    """The lines that have to stand before the call."""

    def __init__(self, function: types.FunctionType, space: Space) -> None:
        self._first, self._space = function, space
        self._seen: set[str] = set()
        self.changed = ChangedValues(function.__name__, function.__module__)
        self.imports: list[str] = []
        self.constants: list[str] = []
        self.definitions: list[str] = []

    def add(self, thing: Any) -> None:
        """Add the source of a function or a class, after that of what it uses."""
        self._seen.add(thing.__name__)
        self._check_name(thing.__name__)
        source = present_values.with_present_values(thing, self._source(thing))
        names = dict(_names(thing, source))
        self.changed.add(source, names)
        for name, owner in names.items():
            if name not in self._seen and name in owner:
                self._add_used(name, owner[name])
        self.definitions.append(f"{source}\n")

    def _source(self, thing: Any) -> str:
        if getattr(getattr(thing, "__code__", None), "co_freevars", ()):
            names = ", ".join(thing.__code__.co_freevars)
            raise SpecError(
                f"{thing.__name__} uses {names} of the function around it; define it at the top level, or pass them"
            )
        try:
            source = _class_in_a_cell(thing) or textwrap.dedent(inspect.getsource(thing)).rstrip()
            top = ast.parse(source).body[0]
        except (OSError, TypeError, SyntaxError):
            in_a_cell = inspect.isclass(thing) and thing.__module__ == "__main__"
            remedy = (
                "give it a method, or write it in a file"
                if in_a_cell
                else "write it in a file or in a cell of a notebook"
            )
            raise SpecError(f"the source of {thing.__name__} cannot be found; {remedy}") from None
        if hasattr(thing, "__wrapped__") and not getattr(top, "decorator_list", []):
            raise SpecError(
                f"{thing.__name__} was wrapped in another function here, which its source does not say; write that as "
                f"a decorator above it"
            )
        return source

    def _add_used(self, name: str, value: Any) -> None:
        self._seen.add(name)
        self._check_name(name)
        own = getattr(value, "__module__", None) == self._first.__module__
        if inspect.ismodule(value):
            self.imports.append(f"import {value.__name__}" + ("" if value.__name__ == name else f" as {name}"))
        elif own and (inspect.isfunction(value) or inspect.isclass(value)):
            if value.__name__ != name:
                raise SpecError(f"{self._first.__name__} uses {value.__name__} as {name}; use it under its own name")
            self.add(value)
        elif (literal := present_values.literal(value)) is not None:
            self.constants.append(f"{name} = {literal}")
        elif _importable(value):
            renamed = "" if value.__name__ == name else f" as {name}"
            self.imports.append(f"from {_public_module(value)} import {value.__name__}{renamed}")
        else:
            raise SpecError(
                f"{self._first.__name__} uses {name}, a {type(value).__name__} that exists only here; make it inside "
                "the function, or read it from a file under shared://"
            )

    def _check_name(self, name: str) -> None:
        if name in (*self._space, RESULT):
            raise SpecError(
                f"{name} is a name of the sweep and of something that the function uses; rename one of them"
            )


def _class_in_a_cell(thing: Any) -> str:
    """The source of a class that a cell of a notebook defines: its methods know the cell, the class has no file."""
    for name, one in vars(thing).items() if inspect.isclass(thing) and thing.__module__ == "__main__" else ():
        method = inspect.unwrap(getattr(one, "fget", None) or getattr(one, "__func__", one))
        if not inspect.isfunction(method) or method.__qualname__ != f"{thing.__qualname__}.{name}":
            continue
        lines = [line.rstrip("\n") for line in linecache.getlines(method.__code__.co_filename)]
        for node in ast.parse("\n".join(lines)).body:
            first = min([one.lineno for one in getattr(node, "decorator_list", [])], default=node.lineno)
            last = node.end_lineno or node.lineno
            if isinstance(node, ast.ClassDef) and first <= method.__code__.co_firstlineno <= last:
                return "\n".join(lines[first - 1 : last])
    return ""


def _names(thing: Any, source: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The global names that a function or a class uses, each with the module's namespace."""
    functions = [one for one in map(inspect.unwrap, _functions_of(thing)) if one.__module__ == thing.__module__]
    owner = functions[0].__globals__ if functions else vars(sys.modules.get(thing.__module__, builtins))
    for name in _loaded(compile(source, "<source>", "exec", dont_inherit=True)):
        if not hasattr(builtins, name) or name in owner:
            yield name, owner


def _functions_of(thing: Any) -> Iterator[Any]:
    for one in [thing] if inspect.isfunction(thing) else vars(thing).values():
        found = getattr(one, "fget", None) or getattr(one, "__func__", one)
        if inspect.isfunction(found):
            yield found


def _loaded(code: types.CodeType) -> Iterator[str]:
    """The names that code takes from around it; not those that a class or a module itself has bound before."""
    stored = set[str]()
    for instruction in dis.get_instructions(code):
        name = str(instruction.argval)
        if instruction.opname == "STORE_NAME":
            stored.add(name)
        elif instruction.opname in _LOADS and name not in stored:
            yield name
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _loaded(constant)


def _importable(value: Any) -> bool:
    module, name = getattr(value, "__module__", None), getattr(value, "__name__", "")
    known = isinstance(module, str) and module != "__main__" and name.isidentifier() and callable(value)
    found = getattr(sys.modules.get(_public_module(value)), name, None) if known else None
    return known and (found is value or same_definition(found, value))


def _public_module(value: Any) -> str:
    """The module to import it from: of ``pathlib._local``, where Python 3.13 defines it, the one that people name."""
    module: str = value.__module__
    parent, _, last = module.rpartition(".")
    public = getattr(sys.modules.get(parent), value.__name__, None) if last.startswith("_") else None
    return parent if public is value else module
