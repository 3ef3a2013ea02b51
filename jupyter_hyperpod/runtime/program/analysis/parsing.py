"""The syntax trees of the person's files, read once, and the attributes that a file sets."""

from __future__ import annotations

import ast
from functools import lru_cache

from .namespaces import namespaces_in
from .syntax import KEPT_TREES, nodes_of


class _Plainer(ast.NodeTransformer):
    """Names are as objects have them: ``self.__x`` in a class ``A`` is ``self._A__x``."""

    def __init__(self, namespaces: frozenset[str]) -> None:
        self._namespaces = namespaces
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
        if node.id in self._namespaces and isinstance(node.ctx, ast.Load):
            return ast.copy_location(ast.Call(ast.copy_location(ast.Name("globals", ast.Load()), node), [], []), node)
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
    """The syntax tree of a file, where ``vars(x)`` is ``x.__dict__``, and a variable that holds ``globals()`` is that.

    It is shared: do not change it. Raises SyntaxError and ValueError.
    """
    tree = ast.parse(source)
    plain: ast.Module = _Plainer(namespaces_in(source, tree)).visit(tree)
    return plain


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
