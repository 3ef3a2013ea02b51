"""Sweeps in a notebook: a table under the cell that is updated, and the best run below it."""

from __future__ import annotations

import argparse
import html
import json
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any
from uuid import uuid4

from ..control import jobs, text_tables
from ..control.sweeps import asking, sweep_table, trials, verbs
from ..control.sweeps.plan import SweepPlan, described, remarks
from ..control.sweeps.trials import Sweep, SweepTrial
from ..core.errors import SpecError
from ..core.units import plural
from ..storage.store import Store
from ..system.screen import StatusLine
from . import push, stream
from .rows import Rows
from .shell import STOP_WAIT_S, Notebook

COMMAND = "%hyperpod"
OPEN_COMMAND = "hyperpod:open-trials"  # of JupyterLab
UPDATE_S = 1.0


def submit(
    notebook: Notebook,
    options: argparse.Namespace,
    source: str,
    fields: dict[str, Any],
    plan: SweepPlan,
    values: Mapping[str, Any],
) -> None:
    """Submit the cell as a sweep and follow it. The trials are there already where the cell is interrupted."""
    if options.dry_run:
        print("nothing was submitted:", *verbs.dry_run(notebook.open_store(), source, fields, plan)[1], sep="\n")
        return
    if plan.asks and options.detach:
        raise SpecError(f"the sampler {plan.sampler} chooses a trial by how earlier ones ended: leave out --detach")
    store = notebook.open_store()
    for text in remarks(source, plan):
        print(f"note: {text}", flush=True)
    with verbs.told_when_cut_off(lambda text: print(text, flush=True)):
        sweep, updates = asking.begin(store, push.with_values(source, values, store), fields, plan)
    if sweep.trials:
        notebook.show_warnings(store, sweep.trials[0].job.id)
    if options.detach:
        print(f"{sweep_table.summary_line(sweep)}; follow it with: {COMMAND} sweep follow {sweep.id}", flush=True)
        return
    cancel = options.cancel_on_interrupt or bool(getattr(notebook, "cancel_on_interrupt", False))
    follow(notebook, store, sweep, updates, cancel=cancel)


def run_verb(options: argparse.Namespace, notebook: Notebook) -> Rows | None:
    """Carry out ``%hyperpod sweep``."""
    store = notebook.open_store()
    if shown := verbs.followed(options, store):
        follow(notebook, store, *shown)
        return None
    answer = verbs.run(options, store, COMMAND)
    for line in answer.lines:
        print(line)
    if answer.table is None:
        return None
    found = answer.record if isinstance(answer.record, list) else answer.record["trials"]
    return Rows(found, answer.table)


def follow(
    notebook: Notebook, store: Store, sweep: Sweep, updates: Iterator[list[SweepTrial]], *, cancel: bool = False
) -> None:
    """Show a sweep until it has ended; an interrupt leaves it running, or stops it if ``cancel``."""
    table = SweepDisplay(rich=notebook.in_kernel())
    try:
        for ended in updates:
            table.show(sweep, ended)
    except KeyboardInterrupt:
        if not cancel:
            print(verbs.detached_line(sweep, COMMAND), flush=True)
            return
        asked = trials.stop(sweep, f"{jobs.person()} interrupted the cell")
        print(f"asked {plural(len(asked), 'trial')} of {sweep.id} to stop", flush=True)
        for job_id in asked:
            with suppress(TimeoutError):
                jobs.wait(store, job_id, timeout_s=STOP_WAIT_S)
        sweep.poll()
    finally:
        table.finish(sweep)
    best = sweep.best
    if best is not None:
        notebook.last_job = best.job.id
        notebook.show_finished(store, best.job.id)
    print("\n".join(sweep_table.end_lines(sweep, COMMAND)), flush=True)
    if best is None and sweep.trials and all(trial.state == "failed" for trial in sweep.trials):
        raise stream.failure(sweep.trials[0].view)


class SweepDisplay:
    """One table that is updated in a notebook; elsewhere a line for each trial that ends, and the table in the end."""

    def __init__(self, rich: bool) -> None:
        self._rich = rich
        self._id = uuid4().hex
        self._last = ""
        self._next_s = 0.0
        self._bottom = StatusLine(sys.stderr)

    def show(self, sweep: Sweep, ended: list[SweepTrial]) -> None:
        """Show the present state, at most once in `UPDATE_S`, and all that has ended."""
        if not self._rich:
            self._bottom.clear()
            for trial in ended:
                print(sweep_table.trial_line(sweep, trial), flush=True)
            self._bottom.show(sweep_table.summary_line(sweep))
        elif ended or time.monotonic() >= self._next_s:
            self._draw(sweep)

    def finish(self, sweep: Sweep) -> None:
        """Show the last state."""
        if self._rich:
            self._draw(sweep)
        else:
            self._bottom.clear()
            print(sweep_table.trials_table(sweep).render(), flush=True)

    def _draw(self, sweep: Sweep) -> None:
        from IPython.display import display

        self._next_s = time.monotonic() + UPDATE_S
        page = sweep_html(sweep)
        if page != self._last:
            bundle = {"text/html": page, "text/plain": sweep_text(sweep)}
            display(bundle, raw=True, display_id=self._id, update=bool(self._last))
            self._last = page


def sweep_text(sweep: Sweep) -> str:
    """The sweep as plain text."""
    parts = [sweep_table.summary_line(sweep), sweep_table.trials_table(sweep).render(), sweep_table.hidden_line(sweep)]
    return "\n".join(filter(None, parts))


def sweep_html(sweep: Sweep) -> str:
    """A snapshot of the sweep: no scripts, everything escaped, colours taken from the page."""
    line, _, _ = sweep_table.summary_line(sweep).partition(" · best ")
    name, _, counts = line.partition(": ")
    best, told = sweep_table.best_text(sweep), html.escape(text_tables.clean(described(sweep.plan)))
    more = html.escape(sweep_table.hidden_line(sweep))
    parts = [
        '<div style="border:1px solid rgba(128,128,128,.35);border-radius:6px;padding:8px 12px;max-width:60em;'
        'overflow-x:auto">',
        f"<div><strong>{html.escape(name)}</strong> {html.escape(counts)}</div>",
        f'<div style="opacity:.75">{told}</div>',
        f"<div><strong>{html.escape(text_tables.clean(best))}</strong></div>" if best else "",
        f'<div style="margin-top:4px">{sweep_table.trials_table(sweep).html()}</div>',
        f'<div style="opacity:.75">{more}</div>' if more else "",
        _link(sweep.id),
        "</div>",
    ]
    return "".join(parts)


def _link(sweep_id: str) -> str:
    """What opens the sweep in JupyterLab, whose extension shows it: elsewhere it would lead nowhere."""
    told = html.escape(json.dumps({"sweep": sweep_id}), quote=True)
    return (
        f'<a class="jp-Hp-command" style="display:none" href="#" data-commandlinker-command="{OPEN_COMMAND}" '
        f'data-commandlinker-args="{told}">Compare the trials</a>'
    )
