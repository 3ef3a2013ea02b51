"""`jupyter hyperpod submit --schedule …` and `jupyter hyperpod schedule`."""

from __future__ import annotations

import argparse
from typing import Any

from ..control.prospect import is_hopeless
from ..control.schedules import verbs
from ..control.schedules.verbs import ScheduleOptions
from ..control.submit_options import field_lines, shown_fields
from ..core.errors import SpecError
from ..storage.store import Store
from .terminal import Terminal

COMMAND = "jupyter hyperpod"


def run_submit(
    options: argparse.Namespace,
    store: Store,
    terminal: Terminal,
    source: str,
    fields: dict[str, Any],
    timing: ScheduleOptions,
) -> int:
    """Keep a submission for its times."""
    if options.follow:
        raise SpecError("--follow shows a job, and a schedule has none yet: follow one of its runs, which are jobs")
    if options.dry_run:
        shown = shown_fields(fields)
        said = verbs.dry_run_problem(store, fields)
        told, line = verbs.dry_run(timing)
        lines = [f"would schedule {fields['name']} {line}"]
        lines += field_lines(shown, terminal.paint)
        lines += [terminal.paint(said, "warn")] if said else []
        record = {"dry_run": True, "schedule": told, "spec": shown, "prospect": said}
        return terminal.answer(options, record, *lines, ok=not is_hopeless(said))
    answer = verbs.add(store, source, fields, timing, COMMAND)
    return terminal.answer(options, answer.record, *answer.lines)


def run_schedule(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    answer = verbs.run(options, store, COMMAND)
    table = [answer.table.render(terminal.paint)] if answer.table is not None else []
    before, after = (table, []) if options.action == "list" else ([], table)
    return terminal.answer(options, answer.record, *before, *answer.lines, *after, ok=answer.ok)
