"""`jupyter hyperpod report`, `compare` and `tag`."""

from __future__ import annotations

import argparse

from ..control import lookup
from ..control.runs import labels, verbs
from ..storage.store import Store
from .terminal import Terminal


def run_report(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    answer = verbs.report(store, options.job, options.output)
    return terminal.answer(options, answer.record, *answer.lines)


def run_notebook(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    from ..control.executed import executed_notebook

    answer = executed_notebook.write_notebook(store, options.job, options.output, options.rank)
    return terminal.answer(options, answer.record, *answer.lines)


def run_compare(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    answer, tables = verbs.compare(store, options.jobs, options.output)
    lines = list(answer.lines)
    for title, table in tables:
        lines += ["", terminal.paint(title, "title"), table.render(terminal.paint)]
    if answer.table is not None:
        lines += ["", terminal.paint("values", "title"), answer.table.render(terminal.paint)]
    return terminal.answer(options, answer.record, *lines)


def run_tag(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    answer = labels.tag(store, lookup.job_id(store, options.job), options)
    return terminal.answer(options, answer.record, *answer.lines)
