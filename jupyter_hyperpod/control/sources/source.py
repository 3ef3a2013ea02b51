"""Turns a cell, a .py file or a notebook into the plain Python that every rank runs.

Line numbers stay: a removed line leaves an empty line.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...core.errors import SpecError
from ...core.options import near_matches
from ...core.spec import MAX_CELL_BYTES
from ...storage.joined_cells import JoinedCells, joined
from . import ipython_lines

OWN_HEADER = re.compile(r"%%hyperpod(\s|$)")
_OWN_LOAD = re.compile(r"\s*%(load|reload)_ext\s+jupyter_hyperpod\s*(#.*)?$")
_OWN_VERB = re.compile(r"%hyperpod(\s|$)")
MADE_OF = "hyperpod"  # in the metadata of a cell that JupyterLab has made of others: which
MAX_NOTEBOOK_BYTES = 512 * 2**20


def check_source(source: str, filename: str = "<cell>", what: str = "the cell") -> None:
    """Raise SpecError where `source` is empty, too large, holds an IPython line or is not Python."""
    size = len(source) if source.isascii() else len(source.encode(errors="surrogatepass"))
    if size > MAX_CELL_BYTES:
        raise SpecError(_too_large(what, size))
    if not source.strip():
        raise SpecError(f"{what} is empty; there is nothing to run")
    try:
        compile(source, filename, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise _explain(error, source, what) from None
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        raise SpecError(f"{what} cannot be compiled: {error or type(error).__name__}") from None


def _too_large(what: str, size: int) -> str:
    return (
        f"{what} is {size / 2**20:.0f} MiB; the limit is {MAX_CELL_BYTES // 2**20} MiB: "
        "put data in a file on shared storage and read it from there"
    )


def _explain(error: SyntaxError, source: str, what: str) -> SpecError:
    number = error.lineno or 1
    lines = source.splitlines()
    line = lines[number - 1] if number <= len(lines) else ""
    where = JoinedCells(source).at(number)
    if text := ipython_lines.for_ipython(lines, number - 1):
        return SpecError(ipython_lines.refused(text, str(where or f"line {number} of {what}")))
    said = f"{where} is not valid Python" if where else f"{what} is not valid Python, line {number}"
    explained = SpecError(f"{said}: {error.msg}\n{_caret(error, line)}")
    explained.syntax = error
    return explained


def _caret(error: SyntaxError, line: str) -> str:
    stripped = line.lstrip()
    column = max((error.offset or 1) - 1 - (len(line) - len(stripped)), 0)
    return f"    {stripped.rstrip()[:200]}\n    {' ' * min(column, 200)}^"


def _say_nothing(text: str) -> None:
    pass


def read_file(path: Path, say: Callable[[str], None] = _say_nothing) -> str:
    """Return the Python source in a .py file or in the code cells of a notebook; raises SpecError.

    ``say`` gets a sentence about what of a notebook was left out.
    """
    if path.suffix not in (".py", ".ipynb"):
        raise SpecError(f"{str(path)!r} is neither a .py file nor an .ipynb notebook")
    limit = MAX_CELL_BYTES if path.suffix == ".py" else MAX_NOTEBOOK_BYTES
    try:
        size = os.stat(path).st_size
        if size > limit:
            raise SpecError(_too_large(path.name, size))
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise SpecError(f"cannot read {path}: {error.strerror}{_near(path)}") from None
    except UnicodeDecodeError as error:
        raise SpecError(f"{path} is not UTF-8 text: {error.reason} at byte {error.start}") from None
    if path.suffix == ".ipynb":
        return notebook_source(text, path.name, say)
    check_source(text, str(path), path.name)
    return text


def _near(path: Path) -> str:
    """A file beside the missing one whose name is like it, as a question."""
    if path.exists():
        return ""
    with suppress(OSError):
        there = [one.name for one in path.parent.iterdir() if one.suffix in (".py", ".ipynb")]
        return near_matches(path.name, there)
    return ""


def notebook_source(text: str, name: str, say: Callable[[str], None] = _say_nothing) -> str:
    """Return the code cells of the notebook `text`, joined; raises SpecError naming cell and line.

    ``%load_ext jupyter_hyperpod`` and ``%%hyperpod …`` lines are stripped, and so are lines that only change what a
    notebook shows, and cells that only ask about jobs; any other IPython line is refused.
    """
    parts, left_out = [], list[str]()
    for number, source in enumerate(_code_cells(text, name), 1):
        source = strip_own_lines(source)
        if asks_only(source):
            left_out += [line.strip() for line in source.split("\n") if _OWN_VERB.match(line)]
            continue
        source, without_effect = ipython_lines.without_display_lines(source, f"code cell {number} of {name}")
        left_out += without_effect
        if source.strip():
            check_source(source, f"<{name}, code cell {number}>", f"code cell {number} of {name}")
            parts.append((number, source))
    if not parts:
        raise SpecError(f"{name} has no code to run; expected at least one code cell that is not empty")
    whole = joined(name, parts)
    check_source(whole, name, name)
    if left_out:
        say(ipython_lines.note(left_out))
    return whole


def asks_only(source: str) -> bool:
    """Whether a cell has nothing but lines such as ``%hyperpod jobs``, which are for the notebook."""
    lines = [line for line in source.split("\n") if line.strip() and not line.lstrip().startswith("#")]
    return bool(lines) and all(map(_OWN_VERB.match, lines))


def _code_cells(text: str, name: str) -> list[str]:
    """The code cells; one that was made of others, to be run on a cluster, is empty."""
    try:
        notebook: Any = json.loads(text)
        cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        language = str(notebook.get("metadata", {}).get("language_info", {}).get("name", "python"))
        sources = [cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"]) for cell in cells]
        made = ["cells" in (cell.get("metadata", {}).get(MADE_OF) or ()) for cell in cells]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SpecError(f"{name} is not a notebook of format 4: {type(error).__name__}: {str(error)[:200]}") from None
    if language.lower() not in ("python", "ipython"):
        raise SpecError(f"{name} is written in {language}; only Python notebooks can run on a cluster")
    return ["" if is_made else source for source, is_made in zip(sources, made, strict=True)]


def strip_own_lines(source: str) -> str:
    """Empty the lines that load this extension or mark a cell for the cluster; the others keep their numbers."""
    lines = source.split("\n")
    first = next((at for at, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#")), None)
    for at, line in enumerate(lines):
        if _OWN_LOAD.match(line) or (at == first and OWN_HEADER.match(line)):
            lines[at] = ""
    return "\n".join(lines)
