"""What the cell displays: rank 0 gives it to its agent, the others only its text, and keep the rest for a while.

Each display has a place: the session, the step, and its number after that step. All members run the same cell, so they
display the same things at the same places. If rank 0 is lost, who follows it gives what it has displayed since the last
step, and a reader leaves out places that it has had. The bundle goes to the agent as a message, and a mark goes into
the standard output, so that text before and after it stays before and after it.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable
from typing import Any

from ...storage.output.output_relay import mark
from .. import cell_by_cell
from ..protocol import facts
from . import bundles

Place = tuple[int, int]  # the session, the step
DISPLAY, UPDATE, CLEAR = "display", "update", "clear"


class Displays:
    """The displays of one process. ``place``: where its cell is; ``is_first``: whether it is rank 0."""

    def __init__(
        self, send: Callable[[facts.OutputShown], None], place: Callable[[], Place], is_first: Callable[[], bool]
    ) -> None:
        self._send, self._where, self._is_first = send, place, is_first
        self._place: Place = (0, 0)
        self._count = 0  # displays at this place
        self._sent = 0
        self._kept: list[tuple[str, dict[str, Any]]] = []  # of this place, not shown because another is rank 0

    def count(self) -> None:
        """One display more at this place, whoever shows it."""
        if (here := self._where()) != self._place:
            self._place, self._count = here, 0
            self._kept.clear()
        self._count += 1

    def give(
        self, action: str, data: bundles.Bundle, metadata: bundles.Bundle, display_id: str, *, result: bool = False
    ) -> None:
        """Show a bundle, clear the output (``display_id`` "wait": when something follows), or update a display.

        ``result``: it is the value of a cell.
        """
        self.count()
        data, problem = bundles.bounded(data)
        if problem and self._is_first():
            print(problem, file=sys.stderr, flush=True)
        text = f"{data.get(bundles.PLAIN, '')}\n" if action != CLEAR else ""
        place = [*self._place, self._count]
        whole: dict[str, Any] = {"action": action, "id": display_id, "place": place, "data": data, "metadata": metadata}
        whole |= {"cell": cell} if (cell := cell_by_cell.number()) else {}
        whole |= {"result": True} if result else {}
        if self._is_first():
            self._write(text, whole)
        else:
            self._kept.append((text, whole))
            self._write(text, {"action": "", "place": place})

    def take_over(self) -> None:
        """This process may be rank 0 from now on: give what was displayed since the last step."""
        if self._is_first() and self._where() == self._place:
            kept, self._kept = self._kept, []
            for _, whole in kept:
                self._write("", whole)

    def _write(self, text: str, shown: dict[str, Any]) -> None:
        self._sent += 1
        self._send(facts.OutputShown(self._sent, text, shown))
        sys.stdout.flush()
        os.write(1, mark(self._sent).encode())


_displays: Displays | None = None  # of this process


def begin(displays: Displays | None) -> None:
    """What the cell displays goes there; None: it is printed as text."""
    global _displays
    _displays = displays


def take_over() -> None:
    """See `Displays.take_over`."""
    if _displays is not None:
        _displays.take_over()


def result(value: Any, first: bool) -> None:
    """Show the value of a cell where this process is the ``first`` rank; the others count it."""
    if not first:
        if _displays is not None:
            _displays.count()
        return
    if not isinstance(value, type) and hasattr(type(value), "_ipython_display_"):
        value._ipython_display_()
        return
    data, about = bundles.bundle_of(value)
    if _displays is None:
        print(data.get(bundles.PLAIN, ""), flush=True)
    else:
        _displays.give(DISPLAY, data, about, "", result=True)


class DisplayHandle:
    """What ``display(..., display_id=True)`` returns: ``update(value)`` replaces what is shown."""

    def __init__(self, display_id: str | None = None) -> None:
        self.display_id = display_id or uuid.uuid4().hex

    def display(self, value: Any, **options: Any) -> None:
        """Show a value under this id."""
        display(value, display_id=self.display_id, **options)

    def update(self, value: Any, **options: Any) -> None:
        """Replace what is shown under this id."""
        update_display(value, display_id=self.display_id, **options)


def display(
    *values: Any,
    include: Any = None,
    exclude: Any = None,
    metadata: bundles.Bundle | None = None,
    transient: bundles.Bundle | None = None,
    display_id: str | bool | None = None,
    raw: bool = False,
    clear: bool = False,
    update: bool = False,
    **_options: Any,
) -> DisplayHandle | None:
    """Show values as a notebook does. Replaces IPython's, which a cell need not import."""
    if display_id is True:
        display_id = uuid.uuid4().hex
    if clear:
        clear_output(wait=True)
    for value in values:
        if not raw and not isinstance(value, type) and hasattr(type(value), "_ipython_display_"):
            value._ipython_display_()
            continue
        data, about = (dict(value), {}) if raw else bundles.bundle_of(value)
        data = {k: v for k, v in data.items() if (not include or k in include) and k not in (exclude or ())}
        publish_display_data(data, about | (metadata or {}), transient={"display_id": display_id}, update=update)
    return DisplayHandle(display_id) if display_id and not update else None


def update_display(value: Any, *, display_id: str, **options: Any) -> None:
    """Replace what is shown under an id."""
    display(value, display_id=display_id, **options | {"update": True})


def publish_display_data(
    data: bundles.Bundle,
    metadata: bundles.Bundle | None = None,
    *,
    transient: bundles.Bundle | None = None,
    update: bool = False,
    **_options: Any,
) -> None:
    """Show a MIME bundle."""
    if _displays is None:
        print(data.get(bundles.PLAIN, ""), flush=True)
    else:
        name = str((transient or {}).get("display_id") or "")
        _displays.give(UPDATE if update else DISPLAY, data, metadata or {}, name)


def clear_output(wait: bool = False) -> None:
    """Remove what is shown below the cell; with ``wait`` when something else is shown."""
    if _displays is not None:
        _displays.give(CLEAR, {}, {}, "wait" if wait else "")
