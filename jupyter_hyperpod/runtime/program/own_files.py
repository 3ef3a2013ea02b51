"""Which source files and classes are the person's own, neither of an installed package nor of Python itself."""

from __future__ import annotations

import ast
import sys

_FOREIGN = tuple(
    {folder for folder in (*sys.path, sys.prefix, sys.base_prefix) if "python3" in folder or "site-" in folder}
)


def is_own_file(path: str) -> bool:
    """Whether a source file is the person's own."""
    return not any(path.startswith(folder) for folder in _FOREIGN) and not path.startswith("<frozen")


def file_of(kind: type) -> str:
    """The file that a class is from; one that is nobody's where it has none."""
    return getattr(sys.modules.get(kind.__module__), "__file__", None) or "<frozen"


def is_own_class(kind: type) -> bool:
    """Whether a class is from a cell or from the person's own file."""
    return kind.__module__ == "__main__" or is_own_file(file_of(kind))


def own_class(name: str) -> type | None:
    """The person's own class of this name, such as ``__main__.Record``, or None."""
    parts = name.split(".")
    for place in range(len(parts) - 1, 0, -1):
        found: object = sys.modules.get(".".join(parts[:place]))
        for part in parts[place:] if found is not None else ():
            found = getattr(found, part, None)
        if isinstance(found, type):
            return found if is_own_class(found) else None
    return None


class _Plainer(ast.NodeTransformer):
    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "vars" and len(node.args) == 1:
            return ast.copy_location(ast.Attribute(node.args[0], "__dict__", ast.Load()), node)
        return node


def parsed(source: str) -> ast.Module:
    """The syntax tree of a file, where ``vars(x)`` is ``x.__dict__``. Raises SyntaxError and ValueError."""
    tree: ast.Module = _Plainer().visit(ast.parse(source))
    return tree
