"""Lets processes that a cell spawns find the cell's functions and classes.

`multiprocessing` imports the file of ``__main__`` in each spawned process, and a cell has no file. So one is written
with what a spawned process may need, on the same lines: imports, functions, classes and constants. The rest of the cell
is not in it, and is not run once more.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...storage.store import write_private

PATH_KEY = "init_main_from_path"  # of the data with which a spawned process is prepared
_KEPT = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_cell: tuple[str, Path] | None = None


def begin(source: str, folder: Path) -> None:
    """The cell with this source runs; ``folder``: where its definitions may be written."""
    global _cell
    _cell = source, folder


def adapt(spawn: Any) -> None:
    """Change `multiprocessing.spawn`."""
    prepare = spawn.get_preparation_data

    def get_preparation_data(name: str) -> dict[str, Any]:
        data: dict[str, Any] = prepare(name)
        if _cell is not None and PATH_KEY in data:
            data[PATH_KEY] = str(_written(*_cell))
        return data

    spawn.get_preparation_data = get_preparation_data


def _written(source: str, folder: Path) -> Path:
    path = folder / f"spawned-{hashlib.sha256(source.encode()).hexdigest()[:12]}.py"
    if not path.exists():
        write_private(path, definitions(source).encode())
    return path


def definitions(source: str) -> str:
    """The imports, functions, classes and constants of a cell, on their lines; all other lines are empty."""
    lines = source.splitlines()
    kept = [""] * len(lines)
    for first, last in _places(ast.parse(source)):
        kept[first - 1 : last] = lines[first - 1 : last]
    return "\n".join(kept) + "\n"


def _places(tree: ast.Module) -> Iterator[tuple[int, int]]:
    """The first and the last line of each definition that has its lines to itself."""
    spans = [(_first_line(node), node.end_lineno or node.lineno, node) for node in tree.body]
    for index, (first, last, node) in enumerate(spans):
        alone = (index == 0 or spans[index - 1][1] < first) and (index + 1 == len(spans) or spans[index + 1][0] > last)
        if alone and (isinstance(node, _KEPT) or _is_constant(node)):
            yield first, last


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _is_constant(node: ast.stmt) -> bool:
    """Whether a statement gives a name a value that is written out."""
    if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
        return False
    try:
        ast.literal_eval(node.value)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True
