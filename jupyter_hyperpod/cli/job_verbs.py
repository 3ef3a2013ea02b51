"""The verbs about jobs: submit, follow, describe, scale, stop, inject faults."""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from ..control import jobs, lookup, report, served, watch
from ..control.engines import replica_logs
from ..control.runs import printed
from ..control.sentences import event_sentence
from ..control.verb_options import aimed_at, fault_aim, log_choice, log_filters, no_events, tail
from ..core.events import TERMINAL_STATES, Event, to_json
from ..core.units import code_lines, few, plural
from ..core.views import View, summary
from ..storage import room
from ..storage.output.output_choice import OutputChoice
from ..storage.resources.node_uses import read_newest
from ..storage.store import Store
from .terminal import Terminal

_TONES = {"incident.stage": "warn", "fault.injected": "bad", "user.error": "bad", "warning.raised": "warn"}


def run_submit(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    from ..control.executed import stored_notebook
    from ..control.prospect import is_hopeless, prospect, requested, spec_of
    from ..control.schedules.verbs import chosen_timing
    from ..control.sources.source import read_file
    from ..control.submit_options import field_lines, job_name, shown_fields, spec_fields
    from ..control.sweeps.verbs import chosen_plan
    from . import schedule, sweep

    path = Path(options.file)
    fields = spec_fields(options, job_name(path.name))
    source = read_file(path, terminal.note)
    fields |= {
        "filename": str(path.absolute()),
        "script": path.suffix == ".py",
        "arguments": tuple(options.arguments),
    }
    if path.suffix == ".ipynb" and not options.dry_run:
        fields["origin"] = stored_notebook.keep(store, path, terminal.note)
    if timing := chosen_timing(options):
        return schedule.run_submit(options, store, terminal, source, fields, timing)
    if plan := chosen_plan(options, fields.get("seed", 0), fields["arguments"]):
        return sweep.run_submit(options, store, terminal, source, fields, plan)
    if options.dry_run:
        shown, said = shown_fields(fields), prospect(store, fields)
        lines = [f"would submit {path.name} ({code_lines(source)}):"]
        lines += [*field_lines(shown, terminal.paint), *filter(None, [requested(spec_of(fields))])]
        lines += [terminal.paint(said, "warn")] if said else []
        record = {"dry_run": True, "spec": shown, "prospect": said}
        return terminal.answer(options, record, *lines, ok=not is_hopeless(said))
    return _submitted(jobs.submit(store, source, fields), options, store, terminal)


def _submitted(job_id: str, options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    from ..control.prospect import requested

    if options.json:
        terminal.json({"id": job_id}, None if options.follow else 2)
    elif not options.follow:
        terminal.line(job_id)
        terminal.note(f"follow it with: jupyter hyperpod logs {job_id} --follow")
        if asked := requested(store.job(job_id).spec()):
            terminal.note(asked)
    for text in jobs.submission_warnings(store, job_id):
        terminal.note(f"warning: {text}")
    return _follow_to_end(store, job_id, options, terminal) if options.follow else 0


def run_rerun(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    job_id = lookup.submit_again(store, lookup.job_id(store, options.job), options.name, options.env)
    return _submitted(job_id, options, store, terminal)


def run_promote(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    from ..control.runs import promote

    answer, new = promote.run(store, lookup.job_id(store, options.job), options)
    if options.json and not options.follow:
        return terminal.answer(options, answer.record)
    if answer.table is not None and not options.json:
        for line in [*answer.lines, answer.table.render(terminal.paint)]:
            terminal.line(line) if options.dry_run else terminal.note(line)
    return _submitted(new, options, store, terminal) if new else 0


def _follow_to_end(store: Store, job_id: str, options: argparse.Namespace, terminal: Terminal) -> int:
    follower = watch.JobWatch(store, job_id)
    if _show_output(follower, options, terminal, OutputChoice()) is None:
        return 0
    view = follower.view
    if view["error"] and not options.json:
        terminal.note("\n".join(report.traceback_lines(view["error"])))
    terminal.note(report.progress_line(view))
    return 0 if view["state"] == "succeeded" else 1


def run_list(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    every = jobs.list_jobs(store)
    if options.tag is not None and (nobody := lookup.missing_tag(options.tag, every)):
        return terminal.answer(options, [], nobody)
    tagged = [view for view in every if options.tag is None or options.tag in view["labels"]["tags"]]
    views = tagged if options.archived else report.unarchived(tagged)
    record = [summary(view) for view in (tagged if options.tag else every)]
    shown, older = report.newest(views, len(views) if options.all else report.JOBS_SHOWN)
    lines = [f"{plural(older, 'older job')} not shown; `jupyter hyperpod list --all` shows them"] if older else []
    table = report.jobs_table(shown, trials=lookup.trials(store, shown))
    if hidden := len(tagged) - len(views):
        lines.append(f"{plural(hidden, 'archived job')} not shown; `jupyter hyperpod list --archived` shows them")
    _say_full(store, every, terminal)
    _say_fetched(store, shown, terminal)
    return terminal.answer(options, record, table.render(terminal.paint), *lines)


def _say_full(store: Store, views: list[View], terminal: Terminal) -> None:
    """Warn where what is shown may be old, because the disk has no room for journals."""
    if said := room.warning(store.root, [view["updated_s"] for view in views]):
        terminal.note(f"warning: {said}")


def _say_fetched(store: Store, views: Sequence[Mapping[str, Any]], terminal: Terminal) -> None:
    """Say of which jobs, whose heads run elsewhere, nothing was fetched, and have that done again."""
    from ..control.remote import followed

    if resumed := followed.resume(store, views):
        what = few(resumed)
        terminal.note(f"note: nothing was fetched of {what} lately, so this may be old; it is fetched now, look again")


def run_describe(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    job_id = lookup.job_id(store, options.job)
    view = jobs.job_view(store, job_id)
    _say_full(store, [view], terminal)
    _say_fetched(store, [view], terminal)
    words = report.describe_lines(
        view, terminal.paint, lookup.references(store, job_id), lookup.trial_line(store, view)
    )
    return terminal.answer(options, view, words, *_used(store, view, terminal))


def _used(store: Store, view: View, terminal: Terminal) -> list[str]:
    """What the nodes of a job that has not ended use now, in lines."""
    from ..control.runs.resources import newest_table

    newest = {} if view["state"] in TERMINAL_STATES else read_newest(store.job(view["id"]))
    here = [member["node"] for member in (*view["members"], *view["spares"])]
    table = newest_table({node: newest[node] for node in here if node in newest})
    if not table.rows:
        return []
    return [
        "",
        terminal.paint("used in the last seconds", "title"),
        *(f"  {line}" for line in table.render(terminal.paint).splitlines()),
    ]


def run_audit(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    from ..runtime.audit import audit

    found = audit(jobs.follow(store, lookup.job_id(store, options.job)).poll())
    record = {"sound": found.sound, "sentence": found.sentence} | asdict(found)
    lines = [terminal.paint(found.sentence, "good" if found.sound else "bad")]
    lines += [f"  {problem}" for problem in found.problems]
    return terminal.answer(options, record, *lines, ok=found.sound and found.steps > 0)


def _say_older(store: Store, name: str, terminal: Terminal) -> None:
    if older := lookup.older_note(store, name):
        terminal.note(f"note: {older}")


def run_logs(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    job_id = lookup.job_id(store, options.job)
    _say_older(store, options.job, terminal)
    choice = log_choice(options, store.job(job_id), follow=options.follow)
    filters = log_filters(options)
    if replica_logs.has_them(store.job(job_id)) and (options.follow or options.json):
        return _replica_logs(options, store, job_id, terminal, choice)
    if options.follow:
        follower = watch.JobWatch(store, job_id)
        shown = _show_output(follower, options, terminal, choice)
        if shown is not None and not options.json:
            error = printed.with_error(store.job(job_id), follower.view, choice)[1]
            _print(printed.ending(store, follower.view, error, shown, filters), terminal)
    elif options.json:
        shown = _print(watch.printed_pieces(store, job_id, choice), terminal)
    else:
        shown = _print(printed.logged(store, job_id, choice, filters), terminal)
    if options.json and shown == 0:
        terminal.note(printed.nothing(store, jobs.job_view(store, job_id), filters))
    return 0


def _replica_logs(
    options: argparse.Namespace, store: Store, job_id: str, terminal: Terminal, choice: OutputChoice
) -> int:
    """Print what replicas print, as it comes or as JSON."""
    logs = replica_logs.ReplicaLogs(store.job(job_id), choice)
    follower = watch.JobWatch(store, job_id)
    shown = 0
    try:
        for _ in chain([follower.there()], follower.batches() if options.follow else ()):
            shown += _print_replicas(logs, logs.poll(ends=not options.follow), options.json, terminal)
            terminal.status(report.progress_line(follower.view))
        while options.follow:
            shown += _print_replicas(logs, logs.poll(ends=True), options.json, terminal)
            if not logs.behind:
                break
    except KeyboardInterrupt:
        terminal.note(f"detached; {job_id} goes on")
        return 0
    if not shown:
        terminal.note(replica_logs.nothing(store.job(job_id), log_filters(options)))
    if options.follow and not options.json:
        terminal.note(report.progress_line(follower.view))
    return 0


def _print_replicas(
    logs: replica_logs.ReplicaLogs, lines: Sequence[replica_logs.ReplicaLine], as_json: bool, terminal: Terminal
) -> int:
    while logs.notes:
        terminal.note(logs.notes.pop(0))
    for line in lines:
        record = {"node": line.node or None, "log": line.log, "text": line.text}
        terminal.json(record, None) if as_json else terminal.line(f"[{line.place}] {line.text}")
    return len(lines)


def _show_output(
    follower: watch.JobWatch, options: argparse.Namespace, terminal: Terminal, choice: OutputChoice
) -> int | None:
    """Print a job's output to its end; returns the number of lines, or None when the person pressed Ctrl-C."""
    lines: watch.OutputLines | None = None
    pieces, warnings = watch.OutputPieces(choice), watch.RunWarnings()
    notice = waits = ""
    shown = 0
    try:
        for events in chain([follower.there()], follower.batches()):
            first = lines is None
            if lines is None:
                watch.require_rank(follower.view, events, choice.rank, later=True)
                lines = watch.OutputLines(follower.view, choice)
            found = pieces.of(events) if options.json else lines.feed_all(events, ends=False)
            if first and not options.json:  # of a job that has ended, the error counts among the last lines
                choice, _ = printed.with_error(follower.store.job(follower.job_id), follower.view, choice)
            shown += _print(choice.last(found) if first else found, terminal)
            for text in () if options.json else warnings.of(events):
                terminal.note(terminal.paint(f"warning: {text}", "warn"))
            terminal.status(report.progress_line(follower.view))
            notice = _say_notice(follower, notice, terminal)
            waits = say_wait(follower.view, waits, terminal)
        if lines and not options.json:
            shown += _print(lines.finish(), terminal)
    except KeyboardInterrupt:
        job_id = follower.job_id
        terminal.note(f"detached; {job_id} goes on. Follow it again with: jupyter hyperpod logs {job_id} --follow")
        return None
    terminal.clear()
    return shown


def _print(shown: Iterable[Event | tuple[str, str]], terminal: Terminal) -> int:
    """Print events as JSON, lines to their streams; return their number."""
    count = 0
    for one in shown:
        count += 1
        if isinstance(one, Event):
            terminal.json(to_json(one), None)
        else:
            stream, line = one
            terminal.note(line) if stream == "stderr" else terminal.line(line)
    return count


def _say_notice(follower: watch.JobWatch, said: str, terminal: Terminal) -> str:
    if follower.notice and not said:
        terminal.note(f"warning: {follower.notice}; `jupyter hyperpod cluster start` brings it back")
    return follower.notice


def say_wait(view: View, said: str, terminal: Terminal) -> str:
    """Print why a job waits, once per reason; on a terminal the status line shows it."""
    waits = view["reason"] if view["state"] == "pending" else ""
    if waits and waits != said and not terminal.live:
        terminal.note(report.progress_line(view))
    return waits or said


def run_events(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    follower = watch.JobWatch(store, lookup.job_id(store, options.job))
    kinds, last, first_s = set(options.kind or ()), tail(options, "events"), 0.0
    count = shown = 0
    try:
        for events in chain([follower.there()], follower.batches() if options.follow else ()):
            first_s = first_s or (events[0].time_s if events else 0.0)
            chosen = deque((event for event in events if not kinds or event.kind in kinds), maxlen=last)
            for event in chosen:
                _print_event(event, first_s, options.json, terminal)
            count, shown = count + len(events), shown + len(chosen)
            last = None  # of what comes from now on, everything is shown
        if not shown:
            terminal.note(no_events(follower.job_id, options, count))
    except KeyboardInterrupt:
        terminal.note(f"detached; {follower.job_id} goes on")
    return 0


def _print_event(event: Event, first_s: float, as_json: bool, terminal: Terminal) -> None:
    if as_json:
        terminal.json(to_json(event), None)
        return
    at = terminal.paint(f"{event.time_s - first_s:9.3f} s  {event.kind:<17}", "quiet")
    terminal.line(f"{at} {terminal.paint(event_sentence(event), _TONES.get(event.kind, ''))}")


def run_scale(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    job_id = lookup.to_command(store, options.job)
    jobs.scale(store, job_id, options.target)
    record = {"id": job_id, "command": options.verb, "target": options.target}
    return terminal.answer(
        options,
        record,
        served.asked_to_scale(jobs.job_view(store, job_id), options.target, store.job(job_id).spec().serve),
    )


def run_stop(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    answer = lookup.stop(store, options.jobs, "the command line")
    for name in options.jobs:
        _say_older(store, name, terminal)
    return terminal.answer(options, answer.record, *answer.lines, ok=answer.ok)


def run_fault(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    job_id = lookup.to_command(store, options.job)
    if options.after_step is not None:
        watch.wait_for_step(store, job_id, options.after_step)
    jobs.fault(store, job_id, options.kind, **fault_aim(options))
    record = {"id": job_id, "command": options.verb, "fault": options.kind}
    record |= {name: getattr(options, name) for name in ("rank", "node", "target")}
    return terminal.answer(options, record, f"asked for {options.kind} of {aimed_at(options)}")
