"""``jupyter hyperpod plan``: the planner's answer in a terminal."""

from __future__ import annotations

import argparse

from ..control import jobs, lookup
from ..control.report import Cell, Table
from ..planner import face
from ..planner.calibrate import measure
from ..planner.drawing import write_picture
from ..planner.regimes import trial_of
from ..planner.request import plan_request
from ..storage.store import Store
from .terminal import Terminal


def run_plan(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    """Run ``plan`` and return the exit status; raises SpecError for figures that cannot be right."""
    measured = None
    if options.calibrate is not None:
        job_id = lookup.job_id(store, options.calibrate)
        measured = measure(job_id, jobs.follow(store, job_id).poll())
    trial = trial_of(options, measured)
    if trial is not None:
        terminal.status(f"simulating {trial.runs} runs each way")
    found = face.answer(plan_request(options, measured), trial, measured, drawn=options.plot is not None)
    if options.plot is not None:
        write_picture(options.plot, found.picture)
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
