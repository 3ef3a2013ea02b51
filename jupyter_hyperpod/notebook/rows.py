"""The answer of a query in a cell: records that are displayed as a table."""

from __future__ import annotations

from typing import Any

from ..control import text_tables


class Rows(list[dict[str, Any]]):
    """A list of records that is displayed as a table."""

    def __init__(self, records: list[dict[str, Any]], table: text_tables.Table) -> None:
        super().__init__(records)
        self._table = table

    def __repr__(self) -> str:
        return self._table.render()

    def _repr_html_(self) -> str:
        return self._table.html()
