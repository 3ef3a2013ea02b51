"""What each verb does. A verb returns its exit status; errors are raised and reported by `main`."""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Callable
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

from ..control import cluster, jobs, lookup, metrics, mounting, nodes, report, validate, watch
from ..control.request import aimed_at, cluster_shape, fault_aim, job_name, shown_fields, spec_fields
from ..control.sentences import event_sentence
from ..control.source import read_file
from ..core.errors import HyperpodError
from ..core.events import TERMINAL_STATES, Event, to_json
from ..core.units import plural
from ..core.views import View, summary
from ..storage.store import Store
from .parser import ALIASES
from .terminal import Terminal

Verb = Callable[[argparse.Namespace, Store, Terminal], int]


def run(options: argparse.Namespace, terminal: Terminal) -> int:
    """Run the verb that `options` name and return the exit status."""
    return VERBS[ALIASES.get(options.verb, options.verb)](options, Store(options.store), terminal)


def _submit(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    path = Path(options.file)
    fields = spec_fields(options, job_name(path.name))
    source = read_file(path)
    fields |= {
        "filename": str(path.absolute()),
        "script": path.suffix == ".py",
        "arguments": tuple(options.arguments),
    }
    if options.dry_run:
        shown = shown_fields(fields)
        if options.json:
            terminal.json({"dry_run": True, "spec": shown})
        else:
            terminal.line(f"would submit {path.name} ({len(source.splitlines())} lines):")
            for name, value in shown.items():
                terminal.line(f"  {terminal.paint(f'{name:<14}', 'quiet')}{value}")
        return 0
    return _submitted(jobs.submit(store, source, fields), options, store, terminal)


def _submitted(job_id: str, options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    if options.json:
        terminal.json({"id": job_id}, None if options.follow else 2)
    elif not options.follow:
        terminal.line(job_id)
        terminal.note(f"follow it with: jupyter hyperpod logs {job_id} --follow")
    return _follow_to_end(store, job_id, options, terminal) if options.follow else 0


def _rerun(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    job_id = lookup.submit_again(store, lookup.job_id(store, options.job), options.name, options.env)
    return _submitted(job_id, options, store, terminal)


def _follow_to_end(store: Store, job_id: str, options: argparse.Namespace, terminal: Terminal) -> int:
    follower = watch.Watch(store, job_id)
    if _show_output(follower, options, terminal, follow=True):
        return 0
    view = follower.view
    if view["error"] and not options.json:
        terminal.note("\n".join(report.traceback_lines(view["error"])))
    terminal.note(report.progress_line(view))
    return 0 if view["state"] == "succeeded" else 1


def _list(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    views = jobs.list_jobs(store)
    if options.json:
        terminal.json([summary(view) for view in views])
    else:
        terminal.line(report.jobs_table(views).render(terminal.paint))
    return 0


def _describe(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    view = jobs.job_view(store, lookup.job_id(store, options.job))
    if options.json:
        terminal.json(view)
    else:
        terminal.line(report.describe_lines(view, terminal.paint))
    return 0


def _audit(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    from ..runtime.audit import audit

    found = audit(jobs.follow(store, lookup.job_id(store, options.job)).poll())
    if options.json:
        terminal.json({"sound": found.sound, "sentence": found.sentence} | asdict(found))
    else:
        terminal.line(terminal.paint(found.sentence, "good" if found.sound else "bad"))
        for problem in found.problems:
            terminal.line(f"  {problem}")
    return 0 if found.sound and found.steps else 1


def _logs(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    follower = watch.Watch(store, lookup.job_id(store, options.job))
    _show_output(follower, options, terminal, follow=options.follow)
    return 0


def _show_output(follower: watch.Watch, options: argparse.Namespace, terminal: Terminal, *, follow: bool) -> bool:
    """Print a job's output; returns True when the person pressed Ctrl-C."""
    lines: watch.OutputLines | None = None
    rank = getattr(options, "rank", None)
    notice = waits = ""
    try:
        for events in follower.batches() if follow else [follower.poll()]:
            if lines is None:
                watch.require_rank(follower.view, events, rank, later=follow)
                lines = watch.OutputLines(watch.has_several_ranks(follower.view), rank)
            for event in events:
                if event.kind == "output.written":
                    _print_output(event, lines, options.json, terminal)
            if follow:
                terminal.status(report.progress_line(follower.view))
                notice = _say_notice(follower, notice, terminal)
                waits = _say_wait(follower.view, waits, terminal)
        if lines and not options.json:
            for stream, line in lines.finish():
                _print_line(stream, line, terminal)
    except KeyboardInterrupt:
        _say_detached(follower.job_id, terminal)
        return True
    terminal.clear()
    return False


def _print_output(event: Event, lines: watch.OutputLines, as_json: bool, terminal: Terminal) -> None:
    if as_json:
        if lines.rank is None or event.data["rank"] == lines.rank:
            terminal.json(to_json(event), None)
        return
    for stream, line in lines.feed(event):
        _print_line(stream, line, terminal)


def _print_line(stream: str, line: str, terminal: Terminal) -> None:
    terminal.note(line) if stream == "stderr" else terminal.line(line)


def _say_notice(follower: watch.Watch, said: str, terminal: Terminal) -> str:
    if follower.notice and not said:
        terminal.note(f"warning: {follower.notice}; `jupyter hyperpod cluster start` brings it back")
    return follower.notice


def _say_wait(view: View, said: str, terminal: Terminal) -> str:
    """Say why a job waits, once per reason; a terminal's status line shows it anyway."""
    waits = view["reason"] if view["state"] == "pending" else ""
    if waits and waits != said and not terminal.live:
        terminal.note(report.progress_line(view))
    return waits or said


def _say_detached(job_id: str, terminal: Terminal) -> None:
    terminal.note(f"detached; {job_id} goes on. Follow it again with: jupyter hyperpod logs {job_id} --follow")


def _events(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    follower = watch.Watch(store, lookup.job_id(store, options.job))
    kinds = set(options.kind or ())
    first_s: float | None = None
    try:
        for events in follower.batches() if options.follow else [follower.poll()]:
            for event in events:
                first_s = event.time_s if first_s is None else first_s
                if not kinds or event.kind in kinds:
                    _print_event(event, first_s, options.json, terminal)
    except KeyboardInterrupt:
        terminal.note(f"detached; {follower.job_id} goes on")
    return 0


def _print_event(event: Event, first_s: float, as_json: bool, terminal: Terminal) -> None:
    if as_json:
        terminal.json(to_json(event), None)
        return
    tone = {"incident.stage": "warn", "fault.injected": "bad", "user.error": "bad", "warning.raised": "warn"}.get(
        event.kind, ""
    )
    at = terminal.paint(f"{event.time_s - first_s:9.3f} s  {event.kind:<17}", "quiet")
    sentence = event_sentence(event)
    terminal.line(f"{at} {terminal.paint(sentence, tone) if tone else sentence}")


def _nodes(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    return _show(nodes.run_nodes(options, store), options, terminal)


def _health(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    answer = nodes.run_health(options, store, lambda finding: terminal.status(f"{finding.probe}: {finding.outcome}"))
    terminal.clear()
    return _show(answer, options, terminal)


def _metrics(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    if options.port is None:
        terminal.line(metrics.Metrics(store).render().decode().rstrip())
        return 0
    with metrics.endpoint(store, options.port) as server:
        signal.signal(signal.SIGTERM, _leave_cleanly)
        terminal.line(metrics.scrape_config(store, server.server_address[1]).rstrip())
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            terminal.note("ended")
    return 0


def _scale(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    job_id = lookup.job_id(store, options.job)
    jobs.scale(store, job_id, options.target)
    return _asked(
        options,
        terminal,
        job_id,
        f"asked {job_id} to run on {plural(options.target, 'node')}",
        target=options.target,
    )


def _stop(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    job_id = lookup.job_id(store, options.job)
    if jobs.job_view(store, job_id)["state"] in TERMINAL_STATES:
        return _asked(options, terminal, job_id, f"{job_id} has already ended")
    jobs.stop(store, job_id, reason="stopped from the command line")
    return _asked(options, terminal, job_id, f"asked {job_id} to stop")


def _fault(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    job_id = lookup.job_id(store, options.job)
    if options.after_step is not None:
        watch.wait_for_step(store, job_id, options.after_step)
    jobs.fault(store, job_id, options.kind, **fault_aim(options))
    return _asked(
        options,
        terminal,
        job_id,
        f"asked for {options.kind} of {aimed_at(options)}",
        fault=options.kind,
        rank=options.rank,
        node=options.node,
        target=options.target,
    )


def _asked(options: argparse.Namespace, terminal: Terminal, job_id: str, sentence: str, **details: Any) -> int:
    if options.json:
        terminal.json({"id": job_id, "command": options.verb, **details})
    else:
        terminal.line(sentence)
    return 0


def _cluster(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    shape = cluster_shape(options)
    if options.action == "start":
        cluster.ensure_started(store, **shape)
        terminal.status("waiting for the nodes to warm up")
        cluster.wait_ready(store)
    elif options.action == "stop" and (cluster.connectable(store) or cluster.status(store)["state"] != "stopped"):
        cluster.stop(store)
    elif options.action == "heal":
        healed = cluster.heal(store, options.node)
        terminal.note(f"healed: {', '.join(healed) or 'nothing was cut off'}")
    view = cluster.status(store)
    if options.json:
        terminal.json(view)
        return 0
    terminal.line(report.cluster_line(view))
    if options.action != "stop" and view["nodes"]:
        terminal.line(report.nodes_table(view).render(terminal.paint))
    return 0


def _mounting(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    return _show(mounting.run(options.verb, options, store), options, terminal)


def _show(answer: mounting.Answer, options: argparse.Namespace, terminal: Terminal) -> int:
    if options.json:
        terminal.json(answer.record)
        return 0 if answer.ok else 1
    if answer.table is not None:
        terminal.line(answer.table.render(terminal.paint))
    for line in answer.lines:
        terminal.line(line)
    return 0 if answer.ok else 1


def _validate(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    def tell(row: validate.Row) -> None:
        if not options.json:
            terminal.clear()
            verdict = terminal.paint(f"{row.verdict:<8}", validate.TONES[row.verdict])
            terminal.line(f"{verdict} {row.name}: {row.sentence}")
            if row.remedy:
                terminal.line(terminal.paint(f"         → {row.remedy}", "quiet"))

    rows = validate.run(options, store, terminal.status, tell)
    fit, sentence = validate.fit(rows, options.strict), validate.sentence(rows)
    terminal.clear()
    if options.json:
        terminal.json({"fit": fit, "sentence": sentence, "rows": [row.to_json() for row in rows]})
    else:
        terminal.line(terminal.paint(sentence, "good" if fit else "bad"))
    return 0 if fit else 1


def _bench(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    try:
        bench = import_module("jupyter_hyperpod.bench")
    except ImportError as error:
        raise HyperpodError(f"the benchmarks need a package that is not installed: {error}") from error
    if options.store is not None:
        os.environ["JUPYTER_HYPERPOD_STORE"] = str(store.root)
    signal.signal(signal.SIGTERM, _leave_cleanly)
    named = {"runs": options.runs, "peers": options.peers}
    chosen = {name: value for name, value in named.items() if value is not None} | dict(options.options)
    result = bench.run(options.name, **chosen)
    if options.json:
        terminal.json(result)
    else:
        _print_bench(result, terminal)
    return 0 if all(bar["ok"] for bar in result["bars"]) else 1


def _leave_cleanly(number: int, _: object) -> None:
    """Clusters and rivals that a benchmark has started end with it."""
    raise SystemExit(128 + number)


def _print_bench(result: dict[str, Any], terminal: Terminal) -> None:
    cell = report.Cell
    rows = [
        [cell(row["arm"]), cell(row["case"]), cell(row["metric"])]
        + [cell(_figure(row[name])) for name in ("median", "min", "max")]
        + [cell(row["unit"]), cell(str(row["n"]))]
        for row in result["rows"]
    ]
    headers = ("ARM", "CASE", "METRIC", ">MEDIAN", ">MIN", ">MAX", "UNIT", ">N")
    terminal.line(report.Table(headers, rows, "no measurements").render(terminal.paint))
    for row in result["rows"]:
        if "reason" in row:
            terminal.line(f"{row['arm']}, {row['case']}: not run: {row['reason'].strip()}")
    for bar in result["bars"]:
        verdict = terminal.paint("ok", "good") if bar["ok"] else terminal.paint("missed", "bad")
        promised = f"{bar['direction']} {_figure(bar['limit'])}"
        terminal.line(f"{bar['name']}: {_figure(bar['value'])}, {promised}: {verdict}")


def _recipe(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    from .recipe import run_recipe

    return run_recipe(options, terminal)


def _serve(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    from .serve import run_serve

    return run_serve(options, store, terminal)


def _model(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    from .model import run_model

    return run_model(options, terminal)


def _plan(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    from .plan import run_plan

    return run_plan(options, store, terminal)


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


VERBS: dict[str, Verb] = {
    "submit": _submit,
    "rerun": _rerun,
    "list": _list,
    "describe": _describe,
    "audit": _audit,
    "logs": _logs,
    "events": _events,
    "nodes": _nodes,
    "health": _health,
    "metrics": _metrics,
    "scale": _scale,
    "stop": _stop,
    "fault": _fault,
    "cluster": _cluster,
    **dict.fromkeys(mounting.VERBS, _mounting),
    "validate": _validate,
    "bench": _bench,
    "recipe": _recipe,
    "serve": _serve,
    "model": _model,
    "plan": _plan,
}
