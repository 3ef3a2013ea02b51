"""What several rules ask of a syntax tree: its nodes, the names of what is called, parts of something, steps."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

from .known_functions import VIEWS, WRAPS

KEPT_TREES = 32  # a session reads its files several times in the first steps
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
OBJECT = ("self", "cls")  # what a method calls its own object
WRITES = frozenset("awx+")  # in the mode of a file that is opened


@lru_cache(maxsize=2 * KEPT_TREES)  # each file has two, as it is written and by scopes
def nodes_of(tree: ast.AST) -> tuple[ast.AST, ...]:
    """All nodes of a tree, as `ast.walk` gives them: that takes as long as parsing, and many rules need them."""
    return tuple(ast.walk(tree))


def last_name(function: ast.AST) -> str:
    """The name of what is called."""
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def parts_in(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """What a node binds to a part of something, and that: ``for group in groups``, ``group = groups[0]``."""
    if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
        yield node.target, node.iter
    elif isinstance(node, ast.Assign) and isinstance(node.value, (ast.Subscript, ast.Attribute, ast.Name)):
        yield from ((target, node.value) for target in node.targets)


def held_by(value: ast.AST) -> Iterator[ast.AST]:
    """The expressions whose parts a new container or a view holds: ``list(model.parameters())``, ``[a.weight]``."""
    if isinstance(value, ast.Call):
        function = last_name(value.func)
        if isinstance(value.func, ast.Attribute) and function in VIEWS:
            yield value.func.value
        elif function == "getattr":
            yield from value.args[:1]
        elif function in WRAPS:
            for argument in value.args:
                yield argument
                yield from held_by(argument)
    elif isinstance(value, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
        yield from (generator.iter for generator in value.generators)
    elif isinstance(value, (ast.List, ast.Tuple, ast.Set, ast.Dict)):
        items = value.values if isinstance(value, ast.Dict) else value.elts
        yield from (item for item in items if isinstance(item, (ast.Name, ast.Attribute, ast.Subscript)))


def requests_steps(node: ast.AST) -> bool:
    """Whether a node has the call that gives the steps of a session."""
    return any(isinstance(inner, ast.Call) and last_name(inner.func) == "steps" for inner in ast.walk(node))


def opens_to_write(call: ast.Call) -> bool:
    """Whether this is an ``open`` in whose mode is a letter for writing."""
    modes = [*call.args[0 if isinstance(call.func, ast.Attribute) else 1 :], *(k.value for k in call.keywords)]
    texts = [mode.value for mode in modes if isinstance(mode, ast.Constant) and isinstance(mode.value, str)]
    return last_name(call.func) == "open" and any(WRITES & set(text) for text in texts[:1])


def is_made(target: ast.AST) -> bool:
    """Whether a function makes or finds what is changed, ``part_of(model).add_(n)``: it may be any object."""
    inner: ast.AST = target
    while isinstance(inner, (ast.Attribute, ast.Subscript, ast.Starred, ast.Call)):
        if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name):
            return True
        inner = inner.func if isinstance(inner, ast.Call) else inner.value
    return not isinstance(inner, (ast.Name, ast.Tuple, ast.List))
