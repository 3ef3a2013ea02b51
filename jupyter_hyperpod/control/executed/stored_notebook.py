"""Stores the notebook of a job beside its source, without outputs, so that it can be given back with those of the job.

It is stored as cells are, by digest; the job's ``origin`` names it, so jobs that run the same again have it, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...core.errors import NotFound, SpecError, StoreError
from ...core.spec import MAX_CELL_BYTES
from ...storage.joined_cells import JoinedCells, JoinedPart
from ...storage.store import NOTEBOOK_DIGEST, Store
from ..sources.ipython_lines import without_display_lines
from ..sources.source import MADE_OF, OWN_HEADER, strip_own_lines

GIVEN = "# Parameters of this run"  # above them in the source of a job; `src/run/cells.ts` writes the same
_OF_OUTPUTS = ("widgets",)  # metadata that belong to outputs


def without_outputs(text: str) -> dict[str, Any]:
    """The notebook without what earlier runs have left in it. Raises ValueError where it is no notebook of format 4."""
    found = json.loads(text)
    if not isinstance(found, dict) or found.get("nbformat", 4) != 4 or not isinstance(found.get("cells"), list):
        raise ValueError("no notebook of format 4")
    metadata = {name: value for name, value in dict(found.get("metadata") or {}).items() if name not in _OF_OUTPUTS}
    cells = [_without_output(dict(cell)) for cell in found["cells"]]
    minor = found.get("nbformat_minor")
    return {"nbformat": 4, "nbformat_minor": minor if isinstance(minor, int) else 5, "metadata": metadata} | {
        "cells": cells
    }


def _without_output(cell: dict[str, Any]) -> dict[str, Any]:
    if cell.get("cell_type") != "code":
        return cell
    left = ("execution", "papermill", "collapsed")
    metadata = {name: value for name, value in dict(cell.get("metadata") or {}).items() if name not in left}
    return cell | {"metadata": metadata, "outputs": [], "execution_count": None}


def keep(store: Store, path: Path, say: Callable[[str], None]) -> dict[str, str]:
    """Store the notebook in a file; return what a job's ``origin`` says of it, or nothing where it is too large.

    ``say`` gets a sentence then. Raises StoreError.
    """
    try:
        content = json.dumps(without_outputs(path.read_text(encoding="utf-8-sig")), ensure_ascii=False)
        size = len(content.encode())
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}  # who reads its code says what is wrong with it
    if size > MAX_CELL_BYTES:
        say(
            f"{path.name} is {size / 2**20:.0f} MiB without its outputs, more than {MAX_CELL_BYTES // 2**20} MiB: "
            "`notebook` will write its code cells only"
        )
        return {}
    return {NOTEBOOK_DIGEST: store.prepare().put_cell(content)}


def keep_front_end_s(store: Store, name: str, source: str, say: Callable[[str], None]) -> dict[str, str]:
    """Store the notebook that a front end has open, as it was saved, where the cells of `source` are cells of it.

    Returns what `keep` does; nothing where the file is another one, or the cells were changed after it was saved.
    """
    parts, path = JoinedCells(source).parts(), Path(name)
    if not parts or path.suffix != ".ipynb" or any(part.notebook != path.name for part in parts):
        return {}
    try:
        cells = without_outputs(path.read_text(encoding="utf-8-sig"))["cells"]
        code = dict(enumerate((source_of(cell) for cell in cells if cell["cell_type"] == "code"), 1))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}
    same = all(same_code(split_given(part)[0], code.get(part.cell, "")) for part in parts)
    return keep(store, path, say) if same else {}


def is_made(cell: Mapping[str, Any]) -> bool:
    """Whether JupyterLab has made a cell of others, to run them on a cluster."""
    mark = dict(cell.get("metadata") or {}).get(MADE_OF)
    return isinstance(mark, dict) and "cells" in mark


def read(store: Store, origin: Mapping[str, str]) -> dict[str, Any] | None:
    """The notebook that was stored with a job; None where there is none, or it cannot be read."""
    try:
        return without_outputs(store.cell(str(origin.get(NOTEBOOK_DIGEST, ""))))
    except (NotFound, StoreError, ValueError, TypeError, AttributeError):
        return None


def source_of(cell: Mapping[str, Any]) -> str:
    """The text of a cell, which a file may have as a list of lines."""
    source = cell.get("source", "")
    return source if isinstance(source, str) else "".join(map(str, source))


def split_given(part: JoinedPart) -> tuple[str, str]:
    """The code of a cell, and the parameters of the run that JupyterLab has put below it; "" where it has not."""
    before, mark, given = part.source.partition(f"\n\n{GIVEN}\n")
    return (before, given) if mark else (part.source, "")


def same_code(ran: str, shown: str) -> bool:
    """Whether a cell, as a notebook shows it, is what has run: but for lines that are for the notebook alone."""
    return _lines(ran) == _lines(shown)


def _lines(source: str) -> list[str]:
    try:
        source = without_display_lines(strip_own_lines(source), "")[0]
    except SpecError:
        return [source]
    return [line.rstrip() for line in source.split("\n") if line.strip() and not OWN_HEADER.match(line)]
