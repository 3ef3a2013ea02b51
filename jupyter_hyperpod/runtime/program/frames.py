"""The frames of the person's own code on the stack, and namespaces that can be set: locals and closure cells."""

from __future__ import annotations

import ast
import ctypes
import linecache
import sys
from collections.abc import Collection, Iterator, MutableMapping
from types import FrameType, FunctionType
from typing import Any

from .analysis.parsing import parsed
from .analysis.syntax import nodes_of
from .own_files import THIS_PACKAGE, is_own_file

LOOP, LOSS = "<training loop>", "<loss of a micro-batch>"  # code of a cell that an integration has compiled anew
_NAME = __name__.partition(".")[0]


class Locals(MutableMapping[str, Any]):
    """A function's variables, or a module's."""

    def __init__(self, frame: FrameType) -> None:
        self._frame = frame

    def __getitem__(self, name: str) -> Any:
        return self._frame.f_locals[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._frame.f_locals[name] = value  # read anew each time: only what was just read is written back
        if sys.version_info < (3, 13):  # from then on f_locals writes through (PEP 667)
            ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(self._frame), ctypes.c_int(0))

    def __delitem__(self, name: str) -> None:
        raise NotImplementedError

    def __iter__(self) -> Iterator[str]:
        return iter(self._frame.f_locals)

    def __len__(self) -> int:
        return len(self._frame.f_locals)

    def holder(self, name: str) -> int:
        """The id of the frame."""
        return id(self._frame)


class Cells(MutableMapping[str, Any]):
    """What a function's closure holds."""

    def __init__(self, function: FunctionType) -> None:
        self._cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))

    def __getitem__(self, name: str) -> Any:
        try:
            return self._cells[name].cell_contents
        except ValueError as error:  # not bound yet
            raise KeyError(name) from error

    def __setitem__(self, name: str, value: Any) -> None:
        self._cells[name].cell_contents = value

    def __delitem__(self, name: str) -> None:
        raise NotImplementedError

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._cells if self.get(name, self) is not self)

    def __len__(self) -> int:
        return len(list(iter(self)))

    def holder(self, name: str) -> int:
        """The id of the cell of this name."""
        return id(self._cells[name])


def opens_block(frame: FrameType) -> bool:
    """Whether the frame is at the head of a ``with`` statement: what that opens ends in the same turn of a loop."""
    blocks = (node for node in _nodes(frame) if isinstance(node, (ast.With, ast.AsyncWith)))
    heads = (item.context_expr for block in blocks for item in block.items)
    return any(_has_line(head, frame.f_lineno) for head in heads)


def bind_target(value: Any) -> None:
    """Bind the variable of the program's innermost loop, ``for step in ...``, as a turn of it would."""
    for frame in callers()[:1]:
        loops = [n for n in _nodes(frame) if isinstance(n, ast.For) and _draws_steps(n.iter, frame.f_lineno)]
        for loop in sorted(loops, key=lambda loop: loop.lineno)[-1:]:
            if isinstance(loop.target, ast.Name):
                is_module = frame.f_locals is frame.f_globals
                names: MutableMapping[str, Any] = frame.f_globals if is_module else Locals(frame)
                names[loop.target.id] = value


def _draws_steps(head: ast.expr, line: int) -> bool:
    """Whether a loop over ``head`` draws the steps that are drawn in this line, and not a comprehension in its body."""
    names = (node.attr for node in ast.walk(head) if isinstance(node, ast.Attribute))
    return _has_line(head, line) and (isinstance(head, ast.Name) or not {"steps", "turns"}.isdisjoint(names))


def _has_line(node: ast.expr, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _nodes(frame: FrameType) -> tuple[ast.AST, ...]:
    """The syntax tree of the frame's file; nothing where that is no Python."""
    try:
        return nodes_of(parsed("".join(linecache.getlines(frame.f_code.co_filename, frame.f_globals))))
    except SyntaxError:
        return ()


def callers() -> list[FrameType]:
    """The frames of the person's own code, the innermost one first, without those of this package and of libraries."""
    return [frame for frame in _frames() if is_own_file(frame.f_code.co_filename) and not _is_ours(frame)]


def is_ours(file: str) -> bool:
    """Whether a source file is this package's."""
    return file.startswith(THIS_PACKAGE)


def running() -> dict[int, FrameType]:
    """The innermost frame that runs each code, by the id of the code."""
    found: dict[int, FrameType] = {}
    for frame in _frames():
        found.setdefault(id(frame.f_code), frame)
    return found


def cells_of(frame: FrameType, names: Collection[str]) -> list[FunctionType]:
    """Functions that the frame can name whose closures hold one of the names."""
    if not names:
        return []
    visible = {**frame.f_globals, **frame.f_locals}
    found = {
        id(value): value
        for _, value in sorted(visible.items(), key=lambda item: item[0])
        if isinstance(value, FunctionType) and set(value.__code__.co_freevars) & set(names)
    }
    return list(found.values())


def unfreezes() -> bool:
    """Whether the innermost file of the person's own code changes which parameters are frozen."""
    return any(
        "requires_grad" in line for frame in callers()[:1] for line in linecache.getlines(frame.f_code.co_filename)
    )


def _frames() -> Iterator[FrameType]:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _is_ours(frame: FrameType) -> bool:
    if frame.f_code.co_name in (LOOP, LOSS) or is_ours(frame.f_code.co_filename):  # an agent runs as __main__
        return True
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == _NAME
