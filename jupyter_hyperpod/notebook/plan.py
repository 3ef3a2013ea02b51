"""Shows a plan under its cell as picture, tables and sentences, and returns its record as a value."""

from __future__ import annotations

import html
from typing import Any

from ..control.text_tables import Table
from ..planner.face import PlanReport


class PlanRecord(dict[str, Any]):
    """A plan's record that displays itself: with its picture where HTML is possible, else in words."""

    def __init__(self, answer: PlanReport) -> None:
        super().__init__(answer.record)
        self._answer = answer
        self._tables = [Table(sheet.headers, sheet.rows) for sheet in answer.sheets]

    def __repr__(self) -> str:
        tables = "\n\n".join(table.render() for table in self._tables)
        return "\n".join([*self._answer.title, "", tables, "", *self._answer.lines])

    def _repr_html_(self) -> str:
        first, *others = (html.escape(line) for line in self._answer.title)
        said = [f"<p>{html.escape(line)}</p>" for line in self._answer.lines]
        head = f"<p><b>{first}</b><br>{'<br>'.join(others)}</p>"
        return "".join([head, self._answer.picture, *(table.html() for table in self._tables), *said])
