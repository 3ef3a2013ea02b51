"""Runs a cell in this process as a job would, and once more as a member that joins after a few steps."""

from __future__ import annotations

import contextlib
import decimal
import io
import linecache
import locale
import os
import re
import sys
import tempfile
import threading
import time
import types
from collections.abc import Iterator
from contextvars import copy_context
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...core.errors import HyperpodError
from ..program import generators
from ..program.rehearsal import Rehearsal, rehearsing
from . import cell_end
from .adapters import seed_everything

JOINS_AFTER = 4  # steps
_PLANTED = re.compile(r"#\s*(refused|carried|harmless)(?::\s*(\S+)(?:\s+in line (\d+)(?: of (\S+))?)?)?\s*$")


@dataclass(frozen=True)
class Rehearsed:
    """What a rehearsal has found. ``sentence``: the refusal, "" where there is none.

    ``variable`` and ``line``: those of the cell's first line, ``# refused: NAME in line N``, if the sentence names
    both; ``named`` says so. ``exact``: whether the run that joined later printed the same and ended in the same state;
    None where nothing ran to its end.
    """

    expected: str
    named: bool
    variable: str
    line: int
    sentence: str
    exact: bool | None


def rehearse(path: Path, joins_after: int = JOINS_AFTER) -> Rehearsed:
    """Run the cell in a file: once whole, and once from the step after which a member joins.

    Sentences are refusals in words; any other error of the cell is raised.
    """
    source = path.read_text()
    found = _PLANTED.match(source.partition("\n")[0])
    expected, variable, line, where = found.groups() if found else ("harmless", None, None, None)
    rehearsal = Rehearsal(joins_after)
    one, sentence = _run(source, path, rehearsal)
    exact = None
    if not sentence:
        digest, rehearsal.joins = rehearsal.digest, True
        other, sentence = _run(source, path, rehearsal)
        exact = not sentence and _kept(one) == _kept(other) and digest == rehearsal.digest
    place = f"line {line}" + (f" of {where}" if where else "")
    words = re.search(rf"(?<!\w){re.escape(variable or '')}(?!\w)", sentence)
    named = bool(variable and words and re.search(rf"{re.escape(place)}(?!\d)", sentence))
    return Rehearsed(expected, named, variable or "", int(line or 0), sentence, exact)


def _run(source: str, path: Path, rehearsal: Rehearsal) -> tuple[str, str]:
    """Run a cell in a thread, whose stack holds no other code; return what it printed and its refusal."""
    errors: list[BaseException] = []
    shown = io.StringIO()

    def body() -> None:
        rehearsing.set(rehearsal)
        filename = os.fspath(path)
        module = types.ModuleType("__main__")
        module.__dict__.update({"__file__": filename, "__builtins__": __builtins__})
        sys.modules["__main__"] = module
        seed_everything(0, 1)
        decimal.setcontext(decimal.getcontext().copy())
        generators.note()
        linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
        try:
            with contextlib.redirect_stdout(shown), cell_end.ending():
                exec(compile(source, filename, "exec", dont_inherit=True), module.__dict__)
        except BaseException as error:
            errors.append(error)
        for value in vars(module).values():
            if isinstance(value, io.IOBase):
                value.close()

    with _as_before(path.resolve().parent):
        thread = threading.Thread(target=copy_context().run, args=(body,))
        thread.start()
        thread.join()
    if errors and not isinstance(errors[0], HyperpodError):
        raise errors[0]
    return shown.getvalue(), str(errors[0]) if errors else ""


@contextlib.contextmanager
def _as_before(folder: Path) -> Iterator[None]:
    """Undo what a cell does to its process: own modules that it imports, the environment, the folder, torch's types.

    Its temporary files lie in a folder that is removed.
    """
    main, modules, environment, here = sys.modules["__main__"], set(sys.modules), dict(os.environ), os.getcwd()
    words = locale.setlocale(locale.LC_ALL)
    kind, flash = torch.get_default_dtype(), torch.backends.cuda.flash_sdp_enabled()
    hooks = {name: dict(table) for name, table in _hooks_of_all_modules()}
    temporary = tempfile.tempdir
    sys.path.insert(0, os.fspath(folder))
    try:
        with tempfile.TemporaryDirectory(prefix="hyperpod-rehearsal.", ignore_cleanup_errors=True) as own:
            tempfile.tempdir = own
            yield
    finally:
        tempfile.tempdir = temporary
        sys.modules["__main__"] = main
        sys.path.remove(os.fspath(folder))
        os.environ.clear()
        os.environ.update(environment)
        time.tzset()
        locale.setlocale(locale.LC_ALL, words)
        os.chdir(here)
        torch.set_default_dtype(kind)
        torch.backends.cuda.enable_flash_sdp(flash)
        for name, table in _hooks_of_all_modules():
            table.clear()
            table.update(hooks[name])
        for name in set(sys.modules) - modules:
            if (getattr(sys.modules[name], "__file__", None) or "").startswith(os.fspath(folder)):
                del sys.modules[name]  # it has to be as in a new process


def _hooks_of_all_modules() -> Iterator[tuple[str, Any]]:
    tables = vars(torch.nn.modules.module).items()
    return ((name, table) for name, table in tables if name.startswith("_global_") and isinstance(table, dict))


def _kept(text: str) -> str:
    """What was printed from the first line on that begins with "kept", because a tensor may take several lines."""
    return "".join(text.partition("kept ")[1:])
