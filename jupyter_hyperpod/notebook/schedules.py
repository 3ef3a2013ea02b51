"""Schedules in a notebook: a cell that runs at times of the clock, and the list of such cells and files."""

from __future__ import annotations

import argparse
from typing import Any

from ..control.schedules import verbs
from ..control.schedules.verbs import ScheduleOptions
from ..core.errors import SpecError
from .rows import Rows
from .shell import Notebook

COMMAND = "%hyperpod"


def submit(
    notebook: Notebook, options: argparse.Namespace, source: str, fields: dict[str, Any], timing: ScheduleOptions
) -> None:
    """Keep the cell, as it is now, for its times."""
    for option in ("push", "pull"):
        if getattr(options, option):
            raise SpecError(
                f"--{option} exchanges values with this notebook, which may be gone when a schedule runs: leave it "
                "out, and read and write files on shared storage in the cell"
            )
    store = notebook.open_store()
    if options.dry_run:
        print("nothing was scheduled:", verbs.dry_run(timing)[1])
        if said := verbs.dry_run_problem(store, fields):
            print(said)
        return
    for line in verbs.add(store, source, fields, timing, COMMAND).lines:
        print(line, flush=True)


def run_verb(options: argparse.Namespace, notebook: Notebook) -> Rows | None:
    """Carry out ``%hyperpod schedule``."""
    answer = verbs.run(options, notebook.open_store(), COMMAND)
    for line in answer.lines:
        print(line)
    if answer.table is None:
        return None
    return Rows(answer.record if isinstance(answer.record, list) else answer.record["runs"][::-1], answer.table)
