"""``jupyter hyperpod plan``: the planner's answer in a terminal."""

from __future__ import annotations

import argparse

from ..control import lookup
from ..control.report import Cell, Table
from ..planner.asked import ask
from ..storage.store import Store
from .terminal import Terminal


def run_plan(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    """Run ``plan`` and return the exit status; raises SpecError for impossible figures."""
    if options.simulate:
        terminal.status("simulating")
    found = ask(options, lambda name: lookup.read(store, name))
    if options.json:
        terminal.json(found.record)
        return 0
    for line in found.title:
        terminal.line(terminal.paint(line, "title"))
    for sheet in found.sheets:
        terminal.line()
        rows = [[Cell(text, tone) for text, tone in row] for row in sheet.rows]
        terminal.line(Table(sheet.headers, rows).render(terminal.paint))
    terminal.line()
    for line in found.lines:
        terminal.line(line)
    if options.plot is not None:
        terminal.note(f"drawn: {options.plot}")
    return 0
