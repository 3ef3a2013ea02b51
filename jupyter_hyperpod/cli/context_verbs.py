"""The verbs about clusters that others run: of the kubeconfig and of AWS."""

from __future__ import annotations

import argparse

from ..control.aws import context_options as names
from ..control.aws import verbs
from ..storage.store import Store
from .terminal import Terminal


def run(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    """Run one of these verbs and return its exit status."""
    if options.verb == names.DESCRIBE:
        answer, tables = verbs.run_describe(options, terminal.status)
    elif options.verb == names.LIST:
        options.json = options.json or options.output == "json"
        answer = verbs.run_list(options, terminal.status)
        tables = [answer.table] if answer.table is not None else []
    else:
        answer = verbs.run_get() if options.verb == names.GET else verbs.run_set(options, terminal.status)
        tables = []
    terminal.clear()
    lines = [*answer.lines, *(table.render(terminal.paint) for table in tables)]
    return terminal.answer(options, answer.record, *lines, ok=answer.ok)
