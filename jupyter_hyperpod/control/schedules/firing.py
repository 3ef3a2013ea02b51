"""Turns times of schedules into jobs: in a process of its own for the supervisor, or where somebody asks for a run.

    python -m jupyter_hyperpod.control.schedules.firing --store DIR NAME

A run is written down before its job is submitted, and the job's id follows from the schedule and the time. So whoever
finds a run without an end submits it: the job exists once, wherever the process before has died.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ...core.errors import ClusterError, Conflict, HyperpodError, NotFound
from ...core.events import TERMINAL_STATES
from ...policy.scheduled_runs import LEAVE_OUT, RUN, decide
from ...storage.store import ENDED_MARK, Store
from ...system.diagnostics import note
from .. import housekeeping, jobs, lookup
from ..runs import labels
from . import schedule_file
from .cron_times import CronTimes
from .schedule_file import Schedule, ScheduledRun

SUPERVISOR_WAIT_S = 10.0


def fire(store: Store, name: str, wait_s: float = schedule_file.LOCK_WAIT_S) -> ScheduledRun | None:
    """Do what a schedule asks for now; what became of its newest time, None where none has come.

    Jobs that have ended since are deleted where it keeps some only.

    Raises Conflict where another process changes schedules for longer than ``wait_s``, NotFound, StoreError.
    """
    with schedule_file.changing(store, wait_s):
        schedule = schedule_file.read(store, name)
        if schedule.starting is None:
            if schedule.paused:
                _forget_old(store, schedule)
                return None
            now_s = time.time()
            times = CronTimes(schedule.cron, schedule.zone)
            due = times.due(schedule.settled_s, now_s)
            at = times.words(due.newest_s) if due.newest_s is not None else ""
            running = unfinished(store, schedule)
            decision = decide(due, now_s, at, schedule.catch_up, schedule.overlap, running)
            if due.newest_s is None or decision.value not in (RUN, LEAVE_OUT):
                _forget_old(store, schedule)
                return None
            run = ScheduledRun(due.newest_s, "", decision.reason)
            if decision.value == LEAVE_OUT:
                schedule_file.write(store, schedule.settled(run))
                return run
            schedule = replace(schedule, starting=run)
            schedule_file.write(store, schedule)
        return _start(store, schedule)


def run_now(store: Store, name: str) -> ScheduledRun:
    """Run a schedule at once, whether it is paused or another run of it has not ended. Raises as `fire` does."""
    store.refuse_foreign()
    with schedule_file.changing(store):
        schedule = schedule_file.read(store, name)
        if schedule.starting is not None:  # of a process that has died
            _start(store, schedule)
            schedule = schedule_file.read(store, name)
        run = ScheduledRun(time.time(), "", f"asked for by {jobs.person()}", asked=True)
        schedule = replace(schedule, starting=run)
        schedule_file.write(store, schedule)
        return _start(store, schedule)


def _start(store: Store, schedule: Schedule) -> ScheduledRun:
    """Submit the job of the run that is decided on, which may be there already, and write down what came of it."""
    assert schedule.starting is not None
    run = schedule.starting
    once = f"{schedule.name} {schedule.created_s!r} {run.due_s!r}"
    try:
        made = schedule_file.directory(store, schedule.name)
        fields = lookup.fields_of(made)
        job_id = ""
        try:
            job_id = jobs.submit(store, schedule_file.source(store, schedule.name), fields, earlier=made, once=once)
        except ClusterError as error:
            if (there := store.job_made(str(fields["name"]), once)) is None:
                raise
            job_id, run = there.id, replace(run, said=f"{run.said}; it waits for a cluster: {error}")
        run = replace(run, job=job_id)
        if schedule.name not in jobs.job_view(store, job_id)["labels"]["tags"]:
            labels.label(store, job_id, add=[schedule.name])
    except HyperpodError as error:
        run = replace(run, said=f"{run.said}; {'it has no tag' if run.job else 'it was not submitted'}: {error}")
    schedule = schedule.settled(run)
    schedule_file.write(store, schedule)
    _forget_old(store, schedule)
    return run


def unfinished(store: Store, schedule: Schedule) -> str:
    """A job of a schedule that has not ended, the newest first; "" where there is none.

    One of an earlier schedule of that name counts, too: to change a schedule is to delete it and to make it again.
    """
    known = [run.job for run in reversed(schedule.runs) if state_of(store, run) not in (*TERMINAL_STATES, "")]
    return next(iter(known), "") or next(_earlier(store, schedule), "")


def _earlier(store: Store, schedule: Schedule) -> Iterator[str]:
    """Jobs that have not ended, of a schedule that had this name before."""
    own = {run.job for run in schedule.runs}
    for job_id in store.job_ids():
        if job_id.rpartition("-")[0] != schedule.name or job_id in own or (store.jobs / job_id / ENDED_MARK).exists():
            continue
        with suppress(HyperpodError):
            view = jobs.job_view(store, job_id)
            if view["state"] not in TERMINAL_STATES and schedule.name in view["labels"]["tags"]:
                yield job_id


def state_of(store: Store, run: ScheduledRun) -> str:
    """The state of a run's job; "" where there is no such job, or no longer."""
    if not run.job:
        return ""
    try:
        return str(jobs.job_view(store, run.job)["state"])
    except HyperpodError:
        return ""


def _forget_old(store: Store, schedule: Schedule) -> None:
    """Delete the oldest jobs of a schedule that have ended, where it keeps some only."""
    if not schedule.keep_runs:
        return
    ended = [run for run in schedule.runs if state_of(store, run) in TERMINAL_STATES]
    if not (old := ended[: -schedule.keep_runs]):
        return
    for run in old:
        with suppress(Conflict, NotFound):
            housekeeping.delete(store, run.job)
    store.forget_cells()


def main(arguments: list[str] | None = None) -> int:
    """Entry point of the supervisor's child."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--store", type=Store, required=True)
    parser.add_argument("name")
    options = parser.parse_args(arguments)
    _leave_out_own_path()
    try:
        run = fire(options.store, options.name, SUPERVISOR_WAIT_S)
    except NotFound:
        return 0  # it was deleted meanwhile
    except HyperpodError as error:
        note(f"the schedule {options.name}: {error}")
        return 1
    if run is not None:
        note(f"the schedule {options.name}: {run.job or 'no run'}: {run.said}")
    return 0


def _leave_out_own_path() -> None:
    """Forget where this package is, which a supervisor adds for its children: it is no change of the environment."""
    own = str(Path(__file__).resolve().parents[3])
    if paths := [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path != own]:
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    else:
        os.environ.pop("PYTHONPATH", None)


if __name__ == "__main__":
    sys.exit(main())
