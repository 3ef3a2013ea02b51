"""``jupyter hyperpod plan``: the planner's answer in a terminal."""

from __future__ import annotations

import argparse

from ..control import lookup
from ..control.text_tables import Table
from ..storage.store import Store
from .terminal import Terminal


def run_plan(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    """Run ``plan`` and return the exit status; raises SpecError for impossible figures."""
    from ..planner.face import ask

    if options.simulate:
        terminal.status("simulating")
    found = ask(options, lambda name: lookup.read(store, name))
    lines = [terminal.paint(line, "title") for line in found.title]
    for sheet in found.sheets:
        lines += ["", Table(sheet.headers, sheet.rows).render(terminal.paint)]
    status = terminal.answer(options, found.record, *lines, "", *found.lines)
    if options.plot is not None and not options.json:
        terminal.note(f"drawn: {options.plot}")
    return status
