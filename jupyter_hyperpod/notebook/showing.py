"""Shows in the notebook what rank 0 of a job displays: each display once, whoever is rank 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

CLEAR, UPDATE = "clear", "update"


class ShownDisplays:
    """The displays of one job under one cell. A place is (session, step, number of the display after that step)."""

    def __init__(self) -> None:
        self._ids = uuid4().hex  # so that a cell that attaches again has displays of its own
        self._member = ""
        self._last: Sequence[int] = ()
        self._had: Sequence[int] = ()  # the last place of the member that was rank 0 before

    def is_new(self, member: str, shown: Mapping[str, Any]) -> bool:
        """Whether a display is rank 0's, and was not shown by an earlier rank 0."""
        if not shown.get("action"):
            return False
        place = list(shown["place"])
        if member != self._member:
            self._member, self._had = member, self._last
        if self._had and place <= list(self._had):
            return False
        self._had, self._last = (), place
        return True

    def show(self, shown: Mapping[str, Any]) -> bool:
        """Show it; returns whether the whole output was cleared."""
        from IPython.display import clear_output, display

        if shown["action"] == CLEAR:
            clear_output(wait=shown["id"] == "wait")
            return True
        name = {"display_id": f"{self._ids}-{shown['id']}"} if shown["id"] else {}
        again = {"update": True} if shown["action"] == UPDATE and name else {}
        display(dict(shown["data"]), raw=True, metadata=dict(shown["metadata"]), **name, **again)
        return False
