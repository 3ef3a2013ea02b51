"""Writes schedules with recorded runs, and a recorded job that was a notebook among the server's files.

Prints the id of that job. No cluster is needed, and none is started.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from sys import argv

import runs
from jupyter_hyperpod.control.executed import stored_notebook
from jupyter_hyperpod.control.schedules import schedule_file
from jupyter_hyperpod.control.schedules.schedule_file import Schedule, ScheduledRun
from jupyter_hyperpod.control.sources.source import notebook_source
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.storage.journal import event_writer
from jupyter_hyperpod.storage.journal_writer import JournalWriter
from jupyter_hyperpod.storage.output.output_relay import OutputRelay, StepLabel, cell_mark
from jupyter_hyperpod.storage.store import Store

SKIPPED = "{} had not ended at Wed 2026-11-25 06:30; --overlap skip starts no second run"
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}
DAY_S = 86_400.0


def schedule(store: Store, name: str, cron: str, filename: str, **more: object) -> Schedule:
    now_s = time.time()
    made = Schedule(name, cron, "Europe/Berlin", now_s - 9 * DAY_S, now_s, by="ada", **more)  # type: ignore[arg-type]
    schedule_file.create(store, "print('hello')\n", {"name": name, "filename": filename}, made)
    return made


def executed(store: Store, files: Path) -> str:
    """A job that was a notebook of two code cells."""
    path = files / "report.ipynb"
    code = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    cells = [
        {"id": "a", "cell_type": "markdown", "metadata": {}, "source": "# The nightly report"},
        code | {"id": "b", "source": "rate = 0.001"},
        code | {"id": "c", "source": "print('trained with', rate)"},
    ]
    book = {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": KERNEL}, "cells": cells}
    path.write_text(json.dumps(book))
    origin = stored_notebook.keep(store, path, print) | {"notebook": str(path)}
    digest = store.put_cell(notebook_source(path.read_text(), path.name))
    job = store.create_job(JobSpec("report", digest, nodes=1, origin=origin))
    member = {"member": "node-1.a.7", "node": "node-1", "rank": 0}
    with event_writer(job.events, "control") as journal:
        journal.append("job.submitted", {"id": job.id, "spec": job.spec().to_json()})
        journal.append("job.state", {"state": "running", "reason": ""})
        formed = {"generation": 1, "members": [member], "spares": [], "target": 1, "reason": ""}
        journal.append("generation.formed", formed)
    relay = OutputRelay(job, "node-1", JournalWriter(job.events, "agent-node-1.00000001"))
    label = StepLabel()
    for text in (cell_mark(1), cell_mark(2), "trained with 0.001\n"):
        relay.write(str(member["member"]), 0, "stdout", text, label)
    relay.flush()
    with event_writer(job.events, "coordinator") as journal:
        journal.append("job.state", {"state": "succeeded", "reason": "every rank finished"})
    return job.id


def main() -> None:
    store, files = Store(Path(argv[1])).prepare(), Path(argv[2])
    files.mkdir(parents=True, exist_ok=True)
    nightly = schedule(store, "nightly", "30 6 * * mon-fri", str(files / "nightly.ipynb"), keep_runs=30)
    schedule(store, "weekly", "@weekly", str(files / "evaluate.py"), paused=True, catch_up="none")
    now_s, found = time.time(), []
    for days, state in ((5, "succeeded"), (4, "failed"), (3, ""), (2, "succeeded"), (1, "succeeded")):
        due_s = now_s - days * DAY_S
        if not state:
            found.append(ScheduledRun(due_s, "", SKIPPED.format(found[-1].job)))
            continue
        run = ("nightly", 4, 6, "AdamW", 0.001, days, 401, state, ["nightly"], "")
        said = "due at Thu 2026-11-26 06:30" if days > 1 else "asked for by ada"
        found.append(ScheduledRun(due_s, runs.write(store, run, days * DAY_S, 40), said, asked=days == 1))
    schedule_file.write(store, replace(nightly, runs=tuple(found)))
    print(executed(store, files))


if __name__ == "__main__":
    main()
