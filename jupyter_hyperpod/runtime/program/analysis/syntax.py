"""The syntax trees of the person's files, read once, and the attributes that a file sets."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

KEPT_TREES = 32  # a session reads its files several times in the first steps
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
WRITES = frozenset("awx+")  # in the mode of a file that is opened


class _Plainer(ast.NodeTransformer):
    """Names are as objects have them: ``self.__x`` in a class ``A`` is ``self._A__x``."""

    def __init__(self) -> None:
        self._classes: list[str] = []

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        self._classes.append(node.name.lstrip("_"))
        self.generic_visit(node)
        self._classes.pop()
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        node.attr = self._mangled(node.attr)
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self._mangled(node.id)
        return node

    def _mangled(self, name: str) -> str:
        private = name.startswith("__") and not name.endswith("__")
        return f"_{self._classes[-1]}{name}" if private and self._classes and self._classes[-1] else name

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "vars" and len(node.args) == 1:
            return ast.copy_location(ast.Attribute(node.args[0], "__dict__", ast.Load()), node)
        return node


@lru_cache(maxsize=KEPT_TREES)
def parsed(source: str) -> ast.Module:
    """The syntax tree of a file, where ``vars(x)`` is ``x.__dict__``. It is shared: do not change it.

    Raises SyntaxError and ValueError.
    """
    tree: ast.Module = _Plainer().visit(ast.parse(source))
    return tree


@lru_cache(maxsize=KEPT_TREES)
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
    elif isinstance(node, ast.Assign) and isinstance(node.value, (ast.Subscript, ast.Attribute)):
        yield from ((target, node.value) for target in node.targets)


def requests_steps(node: ast.AST) -> bool:
    """Whether a node has the call that gives the steps of a session."""
    return any(isinstance(inner, ast.Call) and last_name(inner.func) == "steps" for inner in ast.walk(node))


def opens_to_write(call: ast.Call) -> bool:
    """Whether this is an ``open`` in whose mode is a letter for writing."""
    modes = [*call.args[0 if isinstance(call.func, ast.Attribute) else 1 :], *(k.value for k in call.keywords)]
    texts = [mode.value for mode in modes if isinstance(mode, ast.Constant) and isinstance(mode.value, str)]
    return last_name(call.func) == "open" and any(WRITES & set(text) for text in texts[:1])


def attributes_set(source: str) -> list[list[str]]:
    """The attributes that a file sets, as the names on the way: ``a.b.c = 1`` is [a, b, c]."""
    try:
        nodes = nodes_of(parsed(source))
    except SyntaxError:
        return []
    found = []
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names, inner = [node.attr], node.value
            while isinstance(inner, ast.Attribute):
                names, inner = [inner.attr, *names], inner.value
            if isinstance(inner, ast.Name) and inner.id != "self":
                found.append([inner.id, *names])
    return found
