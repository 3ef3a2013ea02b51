"""Runs the joined cells of a notebook as a notebook runs cells: each says that it begins, and shows its last value.

The cells stay one program, run in one frame. Only calls are put between them: their names are among the builtins, so
the cells have no variable more. What is said goes into the output, where it stays between what was printed before and
after it.
"""

from __future__ import annotations

import ast
import builtins
import io
import os
import sys
import tokenize
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from ..storage.joined_cells import JoinedPart
from ..storage.output.output_relay import cell_mark, step_mark

_BEGIN, _SHOW = "__hyperpod_cell_begins__", "__hyperpod_cell_shows__"
_STREAMS = (1, 2)
_now = 0
_under_way: Callable[[], tuple[int, int]] | None = None
_places: dict[int, tuple[int, int]] = {}


def note(under_way: Callable[[], tuple[int, int]]) -> None:
    """In this process the session and the step are these. What is printed goes to where it goes now."""
    global _under_way
    _under_way = under_way
    _places.update({descriptor: _place(descriptor) for descriptor in _STREAMS})


def _place(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def number() -> int:
    """The code cell that runs; 0 where there is none, or only one cell."""
    return _now


def marked(
    tree: ast.Module, parts: Sequence[JoinedPart], between: Callable[[], None], show: Callable[[Any], None]
) -> ast.Module:
    """The program with calls where cells begin, but for the first, whose begin is said here and now.

    ``between`` is called when a cell ends and another follows, ``show`` with the last value of each, where the cell
    has one and no semicolon hides it.
    """

    def begin(number: int) -> None:
        between()
        _say(number)

    setattr(builtins, _BEGIN, begin)
    setattr(builtins, _SHOW, show)
    body = [node for node in tree.body if node.lineno < parts[0].begins]
    for place, part in enumerate(parts):
        own = [node for node in tree.body if part.begins <= node.lineno <= part.ends]
        if place:
            body.append(_call(_BEGIN, ast.Constant(part.cell), part.begins))
        if own and isinstance(last := own[-1], ast.Expr) and not ends_silently(part.source):
            own[-1] = ast.copy_location(ast.Expr(ast.copy_location(_called(_SHOW, last.value), last)), last)
        body += own
    _say(parts[0].cell)
    return ast.fix_missing_locations(ast.Module(body, tree.type_ignores))


def ended() -> None:
    """The last cell has ended."""
    _say(0)


def _called(name: str, argument: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), [argument], [])


def _call(name: str, argument: ast.expr, line: int) -> ast.Expr:
    place = {"lineno": line, "end_lineno": line, "col_offset": 0, "end_col_offset": 0}
    node = ast.Expr(_called(name, argument), **place)
    node.value.lineno = node.value.end_lineno = line
    node.value.col_offset = node.value.end_col_offset = 0
    return node


def ends_silently(source: str) -> bool:
    """Whether a semicolon ends the source, which hides its value in a notebook."""
    skipped = (tokenize.NEWLINE, tokenize.NL, tokenize.COMMENT, tokenize.ENDMARKER, tokenize.DEDENT)
    tokens = [token for token in tokenize.generate_tokens(io.StringIO(source).readline) if token.type not in skipped]
    return bool(tokens) and tokens[-1].string == ";"


def _say(number: int) -> None:
    global _now
    _now = number or _now
    if _under_way is None:
        return  # outside of a job
    step = _under_way()
    text = (step_mark(*step) if any(step) else "") + cell_mark(number)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    for descriptor in _STREAMS:
        with suppress(OSError):  # closed by the program
            if _place(descriptor) == _places[descriptor]:  # else the program has put a file in its place
                os.write(descriptor, text.encode())
