"""Schedules in words: the list, one of them with its runs, and what programs get."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ...core.errors import HyperpodError
from ...core.units import plural
from ...storage.store import Store
from .. import cluster, jobs
from ..report import TONES
from ..text_tables import Cell, Table
from . import schedule_file
from .cron_times import CronTimes
from .firing import state_of
from .schedule_file import Schedule, ScheduledRun

NONE_YET = (
    "no schedules yet; `jupyter hyperpod submit FILE --schedule '30 6 * * mon-fri'` makes one, or `%%hyperpod` "
    "with the same option above a cell"
)
SHOWN = 20
SILENT = (
    "nothing runs at its time now, since no cluster is running; `jupyter hyperpod cluster start`, or the next "
    "submission, starts it and catches up"
)


def next_s(schedule: Schedule) -> float | None:
    """When a schedule runs next; None where it is paused, or has no further time."""
    if schedule.paused:
        return None
    return CronTimes(schedule.cron, schedule.zone).next_s(max(schedule.settled_s, time.time()))


def state(schedule: Schedule) -> str:
    """Whether it runs at its times."""
    return "paused" if schedule.paused else "active"


def overview(store: Store, schedules: Sequence[Schedule]) -> Table:
    """The table of all schedules."""
    rows: list[list[str | tuple[str, str]]] = []
    for schedule in schedules:
        times, at_s = CronTimes(schedule.cron, schedule.zone), next_s(schedule)
        last = schedule.runs[-1] if schedule.runs else None
        rows.append(
            [
                schedule.name,
                Cell(state(schedule), "quiet" if schedule.paused else "good"),
                f"{schedule.cron} {schedule.zone}",
                times.words(at_s) if at_s is not None else "-",
                times.words(last.due_s) if last else "-",
                (last.job or "no run") if last else "-",
                _state_cell(store, last) if last else Cell("-", "quiet"),
            ]
        )
    headers = ("NAME", "STATE", "WHEN", "NEXT", "LAST", "JOB", "ITS STATE")
    return Table(headers, rows, NONE_YET)


def _state_cell(store: Store, run: ScheduledRun) -> Cell:
    if not run.job:
        return Cell("-", "quiet")
    found = state_of(store, run)
    return Cell(found or "deleted", TONES.get(found, "quiet"))


def runs_table(store: Store, schedule: Schedule) -> Table:
    """The newest runs of a schedule, the last one first."""
    times = CronTimes(schedule.cron, schedule.zone)
    rows: list[list[str | tuple[str, str]]] = []
    for run in reversed(schedule.runs[-SHOWN:]):
        job = Cell(run.job or "no run", "" if run.job else "quiet")
        rows.append([times.words(run.due_s), job, _state_cell(store, run), f"{run.said}{_failure(store, run)}"])
    return Table(("TIME", "JOB", "STATE", "WHY"), rows, "it has not run yet")


def _failure(store: Store, run: ScheduledRun) -> str:
    """Why the job of a run failed, for the end of a sentence."""
    with suppress(HyperpodError):
        view = jobs.job_view(store, run.job) if run.job else {}
        if view.get("state") == "failed":
            return f"; failed: {view['reason']}"
    return ""


def described(store: Store, schedule: Schedule) -> list[str]:
    """One schedule in sentences."""
    times, at_s = CronTimes(schedule.cron, schedule.zone), next_s(schedule)
    spec = schedule_file.directory(store, schedule.name).spec()
    when = f"next {times.words(at_s)}" if at_s is not None else "it does not run until `schedule resume`"
    kept = (
        f", keeps {plural(schedule.keep_runs, 'run')} that {'has' if schedule.keep_runs == 1 else 'have'} ended"
        if schedule.keep_runs
        else ""
    )
    lines = [
        f"{schedule.name}: {state(schedule)}, {schedule.cron} {schedule.zone}, {when}",
        times.explained(),
        f"runs {spec.filename} as it was on {times.words(schedule.created_s)} ({spec.cell_digest[:12]}), backend "
        f"{spec.backend}, {plural(spec.nodes, 'node')}; scheduled by {schedule.by}",
        f"catch-up {schedule.catch_up}, overlap {schedule.overlap}{kept}",
    ]
    if schedule.starting is not None:
        lines.append(f"a run is being submitted: {schedule.starting.said}")
    return lines


def silence(store: Store, schedules: Sequence[Schedule]) -> list[str]:
    """A sentence where schedules are active, and nobody is there to run them."""
    if all(schedule.paused for schedule in schedules) or cluster.connectable(store):
        return []
    return [SILENT] if cluster.status(store)["state"] in ("stopping", "stopped", "lost") else []


def record(store: Store, schedule: Schedule, of_run: Callable[[Store, ScheduledRun], str] = state_of) -> dict[str, Any]:
    """A schedule for programs; times in seconds since the Unix epoch. ``of_run`` gives the state of a run's job."""
    told = {key: value for key, value in schedule.to_json().items() if key not in ("runs", "starting")}
    runs = [
        {"due_s": run.due_s, "job": run.job, "state": of_run(store, run), "said": run.said, "asked": run.asked}
        for run in schedule.runs
    ]
    spec = schedule_file.directory(store, schedule.name).spec()
    what = {"filename": spec.filename, "cell_digest": spec.cell_digest, "backend": spec.backend}
    times = {"words": CronTimes(schedule.cron, schedule.zone).explained(), "next_s": next_s(schedule)}
    return {**told, **what, "state": state(schedule), **times, "runs": runs}


def for_browser(store: Store, states: Callable[[Sequence[str]], Mapping[str, str]]) -> dict[str, Any]:
    """All schedules with their newest runs, and sentences about what is wrong. ``states`` knows those of jobs, by id.

    One that cannot be told of does not keep the others from the list. Raises StoreError.
    """
    store.refuse_foreign()
    found, problems = schedule_file.all_of(store)
    found = [replace(schedule, runs=schedule.runs[-SHOWN:]) for schedule in found]
    known = states([run.job for schedule in found for run in schedule.runs if run.job])
    records = []
    for schedule in found:
        try:
            records.append(record(store, schedule, lambda _, run: known.get(run.job, "")))
        except HyperpodError as error:
            problems.append(f"the schedule {schedule.name}: {error}")
    return {"schedules": records, "notes": [*problems, *silence(store, found)]}
