"""Runs the user's cell as a notebook does, or file as ``python FILE`` does, and reports the result."""

from __future__ import annotations
import __future__

import ast
import linecache
import os
import sys
import time
import traceback
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...core.errors import Fenced, HyperpodError, Stopped
from ...core.spec import JobSpec
from ...core.units import cut, plural
from ...storage import included
from ...storage.joined_cells import JoinedCells
from .. import cell_by_cell, cell_places
from ..program import generators
from ..protocol import facts
from . import cell_end, pictures
from .bundles import words
from .displays import display, result

DONE, STOPPED = "done", "stopped"
TRACEBACK_FRAMES = 50
TRACEBACK_LINES = 500
MESSAGE, LINE = 1000, 2000  # most journaled characters of an error's message and of a line of its traceback
OWN_FOLDER = str(Path(__file__).parents[2]) + os.sep
_FUTURE = sum({getattr(__future__, name).compiler_flag for name in __future__.all_feature_names})


def run(source: str, spec: JobSpec, is_first: Callable[[], bool], job: Path) -> facts.CellFailed | str:
    """Run `source` as ``__main__``; return its error, or DONE, or STOPPED for a reason that is not its own.

    The last value of a cell, but not of a file, is shown where `is_first` says, at its end, that this is rank 0; where
    the cells of a notebook were joined, that of each.
    ``job``: the directory with the folders that the job includes.
    """
    filename = spec.filename
    module = types.ModuleType("__main__")
    module.__dict__.update({"__file__": filename, "__builtins__": __builtins__})
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module  # as multiprocessing has it, imported or not
    sys.argv = [filename, *spec.arguments]
    if spec.script:
        _see_folder(os.path.dirname(filename), bool(spec.include))
    else:
        module.__dict__["display"] = display
    generators.note()
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    cells = None if spec.script or not filename.endswith(".ipynb") else JoinedCells(source)
    if cells is not None:
        cell_places.name_in_warnings(filename, cells)
    try:
        _include(included.import_folders(job, len(spec.include)))
        with cell_end.ending():
            _execute(source, filename, module.__dict__, None if spec.script else is_first)
    except (Stopped, Fenced):
        return STOPPED
    except SystemExit as leaving:
        if leaving.code in (None, 0):
            return DONE
        return facts.CellFailed(time.monotonic(), describe(leaving, filename, cells))
    except BaseException as error:
        return facts.CellFailed(time.monotonic(), describe(error, filename, cells))
    return DONE


def _see_folder(folder: str, includes: bool) -> None:
    """Let modules beside a file be imported, as ``python FILE`` does."""
    if Path(folder).is_dir():
        sys.path.insert(0, folder)
    elif not includes:
        text = f"the folder {folder} is not on this node: to import modules beside the file, submit with --include"
        print(f"{text} {folder}", file=sys.stderr, flush=True)


def _include(folders: Sequence[str]) -> None:
    """Import from these folders first, in this process and in those that it starts."""
    sys.path[:0] = folders
    if folders:
        behind = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join([*folders, *([behind] if behind else [])])
    for folder in folders:
        hidden = sorted(name for name in included.top_level(Path(folder)) if name in sys.modules)
        if hidden:
            names = ", ".join(hidden)
            print(f"--include: {names}: modules of these names are loaded already, and are used", file=sys.stderr)


def _execute(source: str, filename: str, names: dict[str, Any], is_first: Callable[[], bool] | None) -> None:
    if is_first is None:
        exec(compile(source, filename, "exec", dont_inherit=True), names)
        return
    tree = ast.parse(source, filename)
    if parts := JoinedCells(source).parts():

        def show(value: Any) -> None:
            if value is not None:
                result(value, is_first())

        whole = cell_by_cell.marked(tree, parts, pictures.show_open_ones, show)
        exec(compile(whole, filename, "exec", dont_inherit=True), names)
        pictures.show_open_ones()
        cell_by_cell.ended()
        return
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr):
        exec(compile(source, filename, "exec", dont_inherit=True), names)
    else:
        del tree.body[-1]
        body = compile(tree, filename, "exec", dont_inherit=True)
        flags = body.co_flags & _FUTURE  # of ``from __future__`` imports in the cell
        end = compile(ast.Expression(last.value), filename, "eval", flags, dont_inherit=True)
        exec(body, names)
        value = eval(end, names)  # noqa: S307 - the person's own
        if value is not None and is_first() and not cell_by_cell.ends_silently(source):
            display(value)
    pictures.show_open_ones()


def describe(error: BaseException, filename: str, cells: JoinedCells | None = None) -> facts.CellError:
    """The error for the user: frames of the cell and of its callees, without our own frames.

    ``cells``: those of the notebook that were joined to ``filename``; each line is told as one of its cell.
    """
    tb = error.__traceback__
    while tb is not None and tb.tb_frame.f_code.co_filename != filename:
        tb = tb.tb_next
    summary = traceback.TracebackException(type(error), error, tb or error.__traceback__, limit=-TRACEBACK_FRAMES)
    _leave_out_own_frames(summary, isinstance(error, HyperpodError))
    cell_line = None
    walker = tb
    while walker is not None:
        if walker.tb_frame.f_code.co_filename == filename:
            cell_line = walker.tb_lineno
        walker = walker.tb_next
    if isinstance(error, SyntaxError) and error.filename == filename:
        cell_line = error.lineno
    message, cell = str(summary), None
    if cells is not None:
        cell_places.name_in_traceback(summary, filename, cells)
        if isinstance(error, HyperpodError):  # its words are ours, and may name lines
            message = cells.in_words(message)
        if cell_line is not None and (place := cells.at(cell_line)):
            cell_line, cell = place.line, place.cell
    said = "".join(summary.format())
    return facts.CellError(
        type=type(error).__name__,
        message=cut(message, MESSAGE),
        traceback=tuple(_cut_lines((said.replace(str(summary), message) if message else said).splitlines())),
        line=cell_line,
        communication=_is_communication(error),
        cell=cell,
    )


def _cut_lines(lines: list[str]) -> list[str]:
    half = TRACEBACK_LINES // 2
    if len(lines) > TRACEBACK_LINES:
        lines = [*lines[:half], f"… ({plural(len(lines) - 2 * half, 'line')} more)", *lines[-half:]]
    return [cut(line, LINE) for line in lines]


def _leave_out_own_frames(summary: traceback.TracebackException, refusal: bool) -> None:
    """Remove this package's frames between those of the person; below them only of a ``refusal``, whose words tell all.

    An error that comes from within this package keeps the frames that show where.
    """
    stack = list(summary.stack)
    others = [place for place, frame in enumerate(stack) if not frame.filename.startswith(OWN_FOLDER)]
    end = len(stack) if refusal else max(others, default=-1) + 1
    if others:
        kept = [frame for place, frame in enumerate(stack) if place >= end or place in others]
        summary.stack = traceback.StackSummary.from_list(kept)
    for chained in (summary.__cause__, summary.__context__):
        if chained is not None:
            _leave_out_own_frames(chained, False)


def _is_communication(error: BaseException) -> bool:
    """Whether torch.distributed could not reach peers, which is not the program's fault."""
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if kinds & {"DistError", "DistBackendError"}:
        return True
    return isinstance(error, RuntimeError) and "gloo" in words(error)
