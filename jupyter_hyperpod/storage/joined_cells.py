"""Joins the code cells of a notebook to the source of a job, and says where a line of it is in the notebook.

A comment before each cell names it, so that the source alone tells; `src/run/line.ts` writes the same.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

_MARK = re.compile(r"# %% code cell (\d{1,6}) of (.+?\.ipynb)(?:, from line (\d{1,6}))?")
_LINE = re.compile(r"\bline (\d+)\b(?! of )")


@dataclass(frozen=True, slots=True)
class CellLine:
    """A line of a code cell, which is the ``cell``-th of its notebook; both count from 1."""

    notebook: str
    cell: int
    line: int

    @property
    def file(self) -> str:
        """What stands for a file in a traceback."""
        return f"{self.notebook}, cell {self.cell}"

    def __str__(self) -> str:
        return f"line {self.line} of code cell {self.cell} of {self.notebook}"


@dataclass(frozen=True, slots=True)
class JoinedPart:
    """One code cell in a joined source: its number, and the lines of the source from its mark up to the next.

    ``skipped``: lines of the cell above the first of ``source``.
    """

    notebook: str
    cell: int
    begins: int
    ends: int
    source: str
    skipped: int = 0


def joined(notebook: str, cells: Iterable[tuple[int, str]]) -> str:
    """The cells, each with its number, as one source; lines keep their numbers within a cell."""
    name = re.sub(r"[\x00-\x1f\x7f\x85\u2028\u2029]", " ", notebook)
    parts = [f"# %% code cell {number} of {name}\n" + source.rstrip("\n") + "\n" for number, source in cells]
    return "\n".join(parts)


class JoinedCells:
    """The cells of a joined source."""

    def __init__(self, source: str) -> None:
        lines = source.split("\n") if "# %% code cell " in source else []
        marks = [(at, found) for at, line in enumerate(lines, 1) if (found := _MARK.fullmatch(line))]
        self._begins = [at for at, _ in marks]
        self._cells = [(found[2], int(found[1]), int(found[3] or 1)) for _, found in marks]
        self._lines = lines

    def parts(self) -> list[JoinedPart]:
        """Each cell with its source."""
        ends = [*(at - 1 for at in self._begins[1:]), len(self._lines)]
        return [
            JoinedPart(notebook, cell, begin, end, "\n".join(self._lines[begin:end]).rstrip("\n"), first - 1)
            for begin, end, (notebook, cell, first) in zip(self._begins, ends, self._cells, strict=False)
        ]

    def at(self, line: int) -> CellLine | None:
        """Where a line of the source is; None before the first cell."""
        index = bisect_right(self._begins, line) - 1
        if index < 0:
            return None
        notebook, cell, first = self._cells[index]
        return CellLine(notebook, cell, max(1, line - self._begins[index] + first - 1))

    def in_words(self, text: str) -> str:
        """The text, where ``line 40`` means a line of the source, with that of its cell."""

        def placed(found: re.Match[str]) -> str:
            return str(self.at(int(found[1])) or found[0])

        return _LINE.sub(placed, text) if self._begins else text
