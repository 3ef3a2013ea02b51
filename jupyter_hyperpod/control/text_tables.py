"""Tables and lines of text for the CLI and the magics. Pure."""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..system.screen import width

Paint = Callable[[str, str], str]


class Cell(NamedTuple):
    """One cell of a table: its text and the tone (good, warn, bad, info, quiet) it is painted in."""

    text: str
    tone: str = ""


def unpainted(text: str, tone: str) -> str:
    """Return `text` unchanged: no colours in a pipe."""
    return text


def clean(text: str) -> str:
    """Replace control characters, so that no journal can steer a terminal; newline and tab become a space."""
    return "".join(
        " " if c in "\n\t" else "\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in ("Cc", "Cf") else c
        for c in text
    )


@dataclass(frozen=True)
class Table:
    """A table of texts, each with a tone where it has one. A header with a leading '>' aligns its column right."""

    headers: tuple[str, ...]
    rows: Sequence[Sequence[str | tuple[str, str]]]
    empty: str = "nothing to show"

    def render(self, paint: Paint = unpainted) -> str:
        """Return the table as lines, painted by `paint(text, tone)`."""
        if not self.rows:
            return paint(self.empty, "quiet")
        rows = [[Cell(header.lstrip(">"), "quiet") for header in self.headers], *self._cells()]
        widths = [max(width(clean(cell.text)) for cell in column) for column in zip(*rows, strict=True)]
        return "\n".join(self._line(row, widths, paint) for row in rows)

    def _cells(self) -> list[list[Cell]]:
        return [[Cell(text) if isinstance(text, str) else Cell(*text) for text in row] for row in self.rows]

    def _line(self, cells: Sequence[Cell], widths: Sequence[int], paint: Paint) -> str:
        parts = []
        for at, cell in enumerate(cells):
            text = clean(cell.text)
            pad = " " * (widths[at] - width(text))
            painted = paint(text, cell.tone) if cell.tone else text
            last = at == len(cells) - 1
            parts.append(pad + painted if self.headers[at].startswith(">") else painted + ("" if last else pad))
        return "  ".join(parts).rstrip()

    def _repr_html_(self) -> str:
        return self.html()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(self.render())

    def html(self) -> str:
        """Return the table as static HTML that takes its colours from the page."""
        if not self.rows:
            return f"<em>{html.escape(self.empty)}</em>"
        sides = ["right" if header.startswith(">") else "left" for header in self.headers]

        def line(tag: str, texts: Sequence[str]) -> str:
            pairs = zip(sides, texts, strict=True)
            return "".join(f'<{tag} style="text-align:{side}">{html.escape(text)}</{tag}>' for side, text in pairs)

        head = line("th", [header.lstrip(">") for header in self.headers])
        body = "".join(f"<tr>{line('td', [clean(cell.text) for cell in row])}</tr>" for row in self._cells())
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


@dataclass(frozen=True)
class Answer:
    """What a verb has to tell: `record` for scripts, `table` and `lines` for people; not `ok` is a failure."""

    record: Any
    table: Table | None = None
    lines: list[str] = field(default_factory=list)
    ok: bool = True
