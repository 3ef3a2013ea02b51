"""Pieces of a static page: text that is escaped, tables, lists, foldable parts. Pure.

Nothing that comes from a job reaches a page but through `safe`.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from ..text_tables import clean

LONGEST = 2000


def safe(text: object, most: int = LONGEST) -> str:
    """Text for a page, in elements and attributes: control characters replaced, everything escaped, not too long."""
    words = str(text)
    return html.escape(clean(words if len(words) <= most else f"{words[:most]}…"))


def block(text: str, most: int) -> str:
    """Text of several lines for a ``pre``."""
    kept = text if len(text) <= most else text[:most]
    lines = (html.escape(clean(line.expandtabs(4))) for line in kept.split("\n"))
    return "\n".join(lines) + ("" if kept is text else f"\n… {len(text) - most:,} more characters")


def number(value: float) -> str:
    """A number for an axis: short, with its thousands separated."""
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e4:
        return f"{value:.4g}"
    if 1e4 <= abs(value) < 1e15:
        for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= size:
                return f"{value / size:.4g}{unit}"
    return f"{value:.0e}" if value == float(f"{value:.0e}") else f"{value:.2e}"


def moment(time_s: float | None) -> str:
    """A time in UTC, which is the same for every reader; '-' where unknown."""
    if time_s is None:
        return "-"
    try:
        return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return "-"


def table(headers: Sequence[str], rows: Iterable[Sequence[str]], caption: str = "") -> str:
    """A table of texts that are already escaped; a header with a leading '>' aligns its column right."""
    right = [' class="right"' if header.startswith(">") else "" for header in headers]
    head = "".join(f'<th scope="col"{c}>{h.lstrip(">")}</th>' for h, c in zip(headers, right, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{c}>{cell}</td>" for cell, c in zip(row, right, strict=True)) + "</tr>" for row in rows
    )
    told = f"<caption>{caption}</caption>" if caption else ""
    return f'<div class="scroll"><table>{told}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def pairs(known: Iterable[tuple[str, str]]) -> str:
    """Names and values, already escaped, as a list of definitions."""
    rows = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in known)
    return f"<dl>{rows}</dl>"


def folded(summary: str, content: str, *, shown: bool = False) -> str:
    """A part that a reader may open; it is printed whole."""
    return f"<details{' open' if shown else ''}><summary>{summary}</summary>{content}</details>"


def section(title: str, *content: str) -> str:
    """A part of the page with its heading; empty where it has no content."""
    inside = "".join(content)
    return f"<section><h2>{title}</h2>{inside}</section>" if inside else ""


def figure(caption: str, picture: str, behind: str = "") -> str:
    """A picture with its caption, and the table behind it."""
    return f"<figure><figcaption>{caption}</figcaption>{picture}{behind}</figure>" if picture else ""
