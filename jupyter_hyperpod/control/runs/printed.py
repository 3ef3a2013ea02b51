"""What ``logs`` shows: the chosen lines, the error of a job that has failed, and a sentence where there is nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from ...core.events import TERMINAL_STATES
from ...core.units import plural
from ...core.views import View
from ...storage.folded import FoldedJournal
from ...storage.journal_search import read_kinds
from ...storage.output.output_choice import OutputChoice, times_of_steps
from ...storage.output.output_range import read_output
from ...storage.store import JobStore, Store
from .. import report, watch
from ..engines import replica_logs

MOST_COUNTED = 10_000  # lines that are read to say how many there are

Line = tuple[str, str]  # its stream and its text


def logged(store: Store, job_id: str, choice: OutputChoice, filters: str) -> Iterator[Line]:
    """All that ``logs`` shows of what is there. ``filters``: what was chosen, in words.

    Raises NotFound for a rank or a node that the job has not had.
    """
    job = store.job(job_id)
    serves = replica_logs.has_them(job)
    view = FoldedJournal(job).catch_up() if serves else watch.checked(store, job_id, choice)
    choice, error = with_error(job, view, choice)
    shown = 0
    for line in _of_replicas(job, choice) if serves else watch.printed(store, job_id, choice)[1]:
        shown += 1
        yield line
    yield from ending(store, view, error, shown, filters)


def _of_replicas(job: JobStore, choice: OutputChoice) -> Iterator[Line]:
    logs = replica_logs.ReplicaLogs(job, choice)
    lines = logs.poll(ends=True)
    yield from (("stderr", note) for note in logs.notes)
    several = len({line.log for line in lines}) > 1
    yield from (replica_logs.shown(line, several) for line in lines)


def with_error(job: JobStore, view: View, choice: OutputChoice) -> tuple[OutputChoice, list[str]]:
    """The lines of a job's error that are chosen, and what to choose of the output before them.

    An error is the last that its rank has printed: it belongs to this rank and its node, to the time and the step in
    which it was raised, and its lines count among the last ones.
    """
    error = _error(job, view, choice)
    lines = [] if error is None else [line for line in report.traceback_lines(error) if choice.has(line)]
    if choice.tail is None or not lines:
        return choice, lines
    lines = lines[-choice.tail :]
    return replace(choice, tail=choice.tail - len(lines)), lines


def _error(job: JobStore, view: View, choice: OutputChoice) -> View | None:
    first: View | None = view["error"]
    if not failed(view) or first is None or "error" not in (choice.levels or ("error",)):
        return None
    everywhere = OutputChoice(pattern=choice.pattern, tail=choice.tail, levels=choice.levels)
    if choice == everywhere:
        return first
    since_s, until_s = choice.since_s, choice.until_s
    if choice.steps is not None:
        since_s, until_s = times_of_steps(job.events, choice.steps)
    for event in read_kinds(job.events, ["user.error"]):
        here = choice.rank in (None, event.data["rank"]) and choice.node in (None, event.data["node"])
        if here and since_s <= event.time_s <= until_s:
            return dict(event.data)
    return None


def failed(view: View) -> bool:
    """Whether a job has ended otherwise than well."""
    return bool(view["state"] in TERMINAL_STATES - {"succeeded"})


def ending(store: Store, view: View, error: list[str], shown: int, filters: str) -> Iterator[Line]:
    """What follows the ``shown`` lines of output: the error and how far the job came, or that nothing was shown."""
    if not shown and not error:
        yield "stderr", nothing(store, view, filters)
    yield from (("stderr", line) for line in error)
    if failed(view):
        yield "stderr", report.progress_line(view)


def nothing(store: Store, view: View, filters: str) -> str:
    """A sentence for a job of whose output nothing is shown."""
    job_id = str(view["id"])
    if replica_logs.has_them(store.job(job_id)):
        return replica_logs.nothing(store.job(job_id), filters)
    whole = watch.OutputLines(view).feed_all(read_output(store.job(job_id), OutputChoice()), ends=True)
    count = sum(1 for _ in islice(whole, MOST_COUNTED + 1))
    if not count:
        return f"{job_id} has printed nothing{'' if view['state'] in TERMINAL_STATES else ' yet'}"
    printed = f"more than {MOST_COUNTED:,} lines" if count > MOST_COUNTED else plural(count, "line")
    return f"no line of the output matches {filters or 'this'}; {job_id} has printed {printed}"
