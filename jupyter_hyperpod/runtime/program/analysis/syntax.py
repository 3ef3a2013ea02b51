"""The syntax trees of the person's files, read once, and the attributes that a file sets."""

from __future__ import annotations

import ast
from functools import lru_cache

KEPT_TREES = 32  # a session reads its files several times in the first steps


class _Plainer(ast.NodeTransformer):
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
