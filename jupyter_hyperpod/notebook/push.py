"""Prepares a cell for its job: puts pushed values in front of it, while every line keeps its number."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.errors import SpecError
from ..core.options import near_matches
from ..storage.store import Store
from ..storage.values import encode_values, prelude


def listed(texts: Sequence[str]) -> list[str]:
    """The names in options such as ``a,b``."""
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]


def wanted_names(names: Sequence[str], source: str) -> tuple[str, ...]:
    """The names that come back, each once. Raises SpecError for one that the cell cannot bind."""
    bound = _bound(source)
    for name in names:
        if not name.isidentifier():
            raise SpecError(f"--pull {name!r} is not a variable's name; write for example --pull loss,history")
        if bound is not None and name not in bound:
            raise SpecError(f"--pull {name}: the cell binds no such variable{near_matches(name, sorted(bound))}")
    return tuple(dict.fromkeys(names))


def _bound(source: str) -> set[str] | None:
    """All names that the source binds anywhere; None where it may bind others, too."""
    found = set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.alias):
            found.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.Global):
            found.update(node.names)
        elif isinstance(node, ast.MatchAs | ast.MatchStar) and node.name:
            found.add(node.name)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("exec", "globals"):
            return None
    return None if "*" in found else found


def named_values(names: Sequence[str], namespace: Mapping[str, Any]) -> dict[str, Any]:
    """Return the notebook's values of `names`; raises SpecError for a name it does not have."""
    known = [name for name in namespace if not name.startswith("_")]
    for name in names:
        if not name.isidentifier():
            raise SpecError(f"--push {name!r} is not a variable's name; write for example --push a,b")
        if name not in namespace:
            raise SpecError(f"--push {name}: the notebook has no variable of that name{near_matches(name, known)}")
    return {name: namespace[name] for name in names}


def place(body: str, lines_above: int) -> str:
    """Return `body` moved down by the lines above it in its cell, so that tracebacks have the cell's line numbers."""
    return "\n" * max(lines_above, 1) + body


def with_values(source: str, values: Mapping[str, Any], store: Store) -> str:
    """Return `source` (its first line empty) with a prelude that defines `values`, on an existing line.

    The prelude follows a ``from __future__`` import, which must stay the first statement.
    """
    if not values:
        return source
    digest = store.prepare().put_cell(encode_values(values))
    statement = prelude(digest)
    futures = [
        node for node in ast.parse(source).body if isinstance(node, ast.ImportFrom) and node.module == "__future__"
    ]
    if not futures:
        return statement + source
    lines = source.split("\n")
    last = futures[-1].end_lineno or 1
    column = len(lines[last - 1].encode()[: futures[-1].end_col_offset].decode())
    lines[last - 1] = f"{lines[last - 1][:column]}; {statement}{lines[last - 1][column:]}"
    return "\n".join(lines)
