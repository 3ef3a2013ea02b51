"""`jupyter hyperpod submit --sweep …` and `jupyter hyperpod sweep`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from ..control import jobs
from ..control.prospect import is_hopeless
from ..control.sweeps import asking, sweep_table, verbs
from ..control.sweeps.plan import SweepPlan, remarks
from ..control.sweeps.trials import Sweep, SweepTrial
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
    plan: SweepPlan,
) -> int:
    """Submit a sweep, and follow it where that is asked for."""
    if options.dry_run:
        told, lines = verbs.dry_run(store, source, fields, plan)
        return terminal.answer(options, {"dry_run": True, **told}, *lines, ok=not is_hopeless(told["prospect"]))
    if plan.asks and not options.follow:
        raise SpecError(f"the sampler {plan.sampler} chooses a trial by how earlier ones ended: give --follow")
    for text in remarks(source, plan):
        terminal.note(f"note: {text}")
    with verbs.told_when_cut_off(terminal.note):
        sweep, updates = asking.begin(store, source, fields, plan)
    if plan.asks:
        return _follow(sweep, updates, options, terminal)
    for text in jobs.submission_warnings(store, sweep.trials[0].job.id):
        terminal.note(f"warning: {text}")
    if options.follow:
        return _follow(sweep, updates, options, terminal)
    if options.json:
        terminal.json({"id": sweep.id, "jobs": [trial.job.id for trial in sweep.trials]})
        return 0
    terminal.line(sweep.id)
    terminal.note(f"follow it with: {COMMAND} sweep follow {sweep.id}")
    return 0


def run_sweep(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    if found := verbs.followed(options, store):
        return _follow(*found, options, terminal)
    answer = verbs.run(options, store, COMMAND)
    table = [answer.table.render(terminal.paint)] if answer.table is not None else []
    return terminal.answer(options, answer.record, *table, *answer.lines)


def _follow(sweep: Sweep, updates: Iterator[list[SweepTrial]], options: argparse.Namespace, terminal: Terminal) -> int:
    """Print a line for each trial that ends, and the table in the end."""
    try:
        for ended in updates:
            for trial in ended if not options.json else ():
                terminal.line(sweep_table.trial_line(sweep, trial))
            terminal.status(sweep_table.summary_line(sweep))
    except KeyboardInterrupt:
        terminal.note(verbs.detached_line(sweep, COMMAND))
        return 0
    answer = verbs.shown(sweep, COMMAND)
    table = "" if answer.table is None else answer.table.render(terminal.paint)
    return terminal.answer(options, answer.record, "", table, *answer.lines, ok=sweep.best is not None)
