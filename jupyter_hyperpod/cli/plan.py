"""``jupyter hyperpod plan``: the planner's answer in a terminal."""

from __future__ import annotations

import argparse

from ..control.report import Cell, Table
from ..planner import face
from ..planner.request import plan_request
from ..storage.store import Store
from .terminal import Terminal


def run_plan(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    """Run ``plan`` and return the exit status; raises SpecError for figures that cannot be right."""
    found = face.answer(plan_request(options))
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
    return 0
