"""The options ``--schedule …`` of a submission, and the verb ``schedule``, for the command line and the magic."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ...core.backends import DEFAULT_BACKEND
from ...core.errors import ClusterError, HyperpodError, SpecError, StoreError
from ...policy.scheduled_runs import CATCH_UP, ONCE, OVERLAP, SKIP
from ...storage.store import Store
from .. import jobs
from ..option_parser import add_action, one_of
from ..text_tables import Answer
from . import waking

HELP = "list schedules; show, pause, resume, run at once or delete one"
ACTIONS = ("list", "show", "pause", "resume", "run", "delete")
_ALL = "`schedule list` shows all"
_INSTEAD = {
    **dict.fromkeys(("remove", "rm", "cancel"), "`schedule delete NAME` removes one; its jobs stay"),
    "stop": "`schedule pause NAME` keeps one from running; `stop JOB` ends a run",
    "start": "`schedule resume NAME` goes on with one that is paused; `schedule run NAME` runs it at once",
    **dict.fromkeys(("edit", "update", "change"), "delete it with `schedule delete NAME`, then schedule again"),
    **dict.fromkeys(("ls", "status", "jobs"), _ALL),
    "describe": "`schedule show NAME` shows one",
}
_OPTIONS = ("time_zone", "catch_up", "overlap", "keep_runs")


@dataclass(frozen=True, slots=True)
class ScheduleOptions:
    """When something is to run, as the options of a submission say it."""

    cron: str
    zone: str
    catch_up: str
    overlap: str
    keep_runs: int


def add_schedule_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that keep a submission for times of the clock; one that is not given is None."""
    group = parser.add_argument_group("schedule", "each run is a job of its own, of the source as it is now")
    add = group.add_argument
    add(
        "--schedule",
        dest="cron",
        type=_cron,
        metavar="CRON",
        help="run it at these times: minute, hour, day of month, month and day of week, as in '30 6 * * mon-fri', or "
        "@hourly, @daily, @weekly, @monthly",
    )
    add("--time-zone", metavar="ZONE", help="of these times, such as Europe/Berlin (default: this machine's)")
    add(
        "--catch-up",
        choices=CATCH_UP,
        help=f"runs that make up for missed times, such as while the machine was off: one or none (default: {ONCE})",
    )
    add(
        "--overlap",
        choices=OVERLAP,
        help=f"whether a time is left out while an earlier run has not ended (default: {SKIP})",
    )
    add("--keep-runs", type=int, metavar="N", help="delete its jobs that have ended, but for the newest N")


def _cron(text: str) -> str:
    """Times in one word are those without their quotation marks, or a name without its @."""
    from .cron_times import NAMED  # not needed by other submissions

    if len(text.split()) == 1 and not text.startswith("@"):
        name = f"@{text.lower()}"
        hint = f"did you mean {name}?" if name in NAMED else "write all five fields in quotation marks"
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is one field; {hint}, such as --schedule '30 6 * * mon-fri'")
    return text


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the verb ``schedule``."""
    add_action(parser, ACTIONS, one_of("schedule", ACTIONS, _INSTEAD), "show, pause, resume, run or delete")
    parser.add_argument("schedule", nargs="?", metavar="NAME", help="name of a schedule")


def chosen_timing(options: argparse.Namespace) -> ScheduleOptions | None:
    """When the options ask for runs; None where they ask for one at once. Raises SpecError."""
    if options.cron is None:
        if given := [name for name in _OPTIONS if getattr(options, name) is not None]:
            option = given[0].replace("_", "-")
            raise SpecError(f"--{option} belongs to a schedule: say when it is to run, such as --schedule '30 6 * * *'")
        return None
    from . import cron_times, schedule_file  # not needed by other submissions

    if options.sweep:
        raise SpecError("a sweep cannot be scheduled: leave out --sweep, or schedule one of its trials")
    most = schedule_file.RUNS_KEPT
    if options.keep_runs is not None and not 1 <= options.keep_runs <= most:
        raise SpecError(f"--keep-runs is {options.keep_runs}; expected 1 to {most}, or nothing to keep all")
    zone = options.time_zone or cron_times.own_zone()
    times = cron_times.checked(options.cron, zone, time.time())
    return ScheduleOptions(times.cron, zone, options.catch_up or ONCE, options.overlap or SKIP, options.keep_runs or 0)


def add(store: Store, source: str, fields: Mapping[str, Any], timing: ScheduleOptions, command: str) -> Answer:
    """Make a schedule, and see to it that somebody runs it. Raises the errors of `jobs.submit`, Conflict."""
    from . import cron_times, schedule_file
    from .schedule_file import Schedule

    now_s = time.time()
    name = str(fields["name"])
    schedule = Schedule(
        name=name,
        cron=timing.cron,
        zone=timing.zone,
        created_s=now_s,
        settled_s=now_s,
        by=str(jobs.person()),
        catch_up=timing.catch_up,
        overlap=timing.overlap,
        keep_runs=timing.keep_runs,
    )
    warnings = schedule_file.create(store, source, fields, schedule)
    lines = [f"warning: {text}" for text in warnings]
    try:
        waking.wake(store, fields.get("backend") or DEFAULT_BACKEND)
    except ClusterError as error:
        lines.append(f"warning: the schedule is kept, but nothing runs at its times yet: {error}")
    times = cron_times.CronTimes(timing.cron, timing.zone)
    next_s = times.next_s(now_s)
    at = times.words(next_s) if next_s is not None else "-"
    lines.insert(0, f"{name} runs at {timing.cron} {timing.zone}, next {at}; {command} schedule show {name}")
    return Answer({"name": name, "next_s": next_s, "warnings": warnings}, None, lines)


def dry_run(timing: ScheduleOptions) -> tuple[dict[str, Any], str]:
    """What a schedule would mean, for programs and as a sentence."""
    from . import cron_times

    times = cron_times.CronTimes(timing.cron, timing.zone)
    found = times.after(time.time())
    soon = [time_s for _, time_s in zip(range(3), found, strict=False)]
    told = {"cron": timing.cron, "time_zone": timing.zone, "next_s": soon}
    return told, f"at {timing.cron} {timing.zone}: {', '.join(map(times.words, soon))}, …"


def run(options: argparse.Namespace, store: Store, command: str) -> Answer:
    """Carry out ``schedule``. ``command``: how this face is called."""
    from . import schedule_file, schedule_table

    if options.action != "list":
        if not options.schedule:
            raise SpecError(f"`schedule {options.action}` needs the name of a schedule; `schedule list` shows them")
        return act(store, options.action, options.schedule, command)
    if options.schedule:
        raise SpecError("`schedule list` lists all schedules; `schedule show NAME` shows one")
    _attend(store)
    found, problems = schedule_file.all_of(store)
    lines = [*problems, *schedule_table.silence(store, found)]
    records = [schedule_table.record(store, one) for one in found]
    return Answer(records, schedule_table.overview(store, found), lines)


def act(store: Store, action: str, name: str, command: str) -> Answer:
    """Show a schedule, or pause, resume, run or delete it. Raises NotFound, Conflict, StoreError, ClusterError."""
    from . import firing, schedule_file, schedule_table

    _attend(store)
    if action == "delete":
        running = _running(store, name)
        schedule_file.delete(store, name)
        goes_on = f", and {running} goes on; {command} stop {running} ends it" if running else ""
        return Answer({"name": name}, None, [f"{name} is deleted; its jobs stay{goes_on}"])
    if action == "run":
        made = firing.run_now(store, name)
        told = f"{made.job} runs {name} now; {command} logs {made.job}" if made.job else made.said
        return Answer({"name": name, "job": made.job, "said": made.said}, None, [told], ok=bool(made.job))
    schedule = schedule_file.read(store, name)
    if action in ("pause", "resume"):
        with schedule_file.changing(store):
            schedule = schedule_file.read(store, name)
            if action == "resume" and schedule.paused:  # what came meanwhile was not missed
                schedule = replace(schedule, paused=False, settled_s=max(schedule.settled_s, time.time()))
            schedule = replace(schedule, paused=action == "pause")
            schedule_file.write(store, schedule)
        if not schedule.paused:
            waking.wake(store, schedule_file.directory(store, name).spec().backend)
    lines = [*schedule_table.described(store, schedule), *schedule_table.silence(store, [schedule])]
    table = schedule_table.runs_table(store, schedule) if action == "show" else None
    return Answer(schedule_table.record(store, schedule), table, lines)


def _running(store: Store, name: str) -> str:
    """A run of a schedule that has not ended; "" where there is none, or the schedule cannot be read."""
    from . import firing, schedule_file

    with suppress(StoreError):
        return firing.unfinished(store, schedule_file.read(store, name))
    return ""


def dry_run_problem(store: Store, fields: Mapping[str, Any]) -> str:
    """What would come of a schedule and its runs, as a sentence; "" where they would begin."""
    from ..prospect import REFUSED, prospect
    from . import schedule_file

    taken = schedule_file.taken(store, str(fields["name"]))
    return f"{REFUSED}: {taken}" if taken else prospect(store, fields, later=True)


def _attend(store: Store) -> None:
    store.refuse_foreign()
    with suppress(HyperpodError):  # then the list says that nothing runs
        waking.wake_again(store)
