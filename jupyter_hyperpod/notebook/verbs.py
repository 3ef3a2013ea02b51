"""Carries out the ``%hyperpod`` verbs. A query returns its answer, which is shown as a table and usable as a value."""

from __future__ import annotations

import argparse
import sys
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from ..control import (
    cluster,
    deploy,
    device_check,
    housekeeping,
    jobs,
    lookup,
    mounting,
    nodes,
    report,
    served,
    text_tables,
    validate,
    watch,
)
from ..control.clusters import kept_pods
from ..control.clusters.node_table import nodes_table
from ..control.engines import presets
from ..control.executed import executed_notebook
from ..control.parity import environment_verbs
from ..control.prospect import prospect, requested, spec_of
from ..control.runs import labels, printed, promote
from ..control.runs import verbs as runs
from ..control.sentences import event_sentence
from ..control.submit_options import field_lines, shown_fields
from ..control.verb_options import (
    aimed_at,
    fault_aim,
    log_choice,
    log_filters,
    no_events,
    run_cluster,
    serve_fields,
    tail,
)
from ..core.errors import Conflict, NotFound, SpecError
from ..core.events import to_json
from ..core.units import code_lines, plural
from ..core.views import View
from ..planner.face import ask
from ..recipes import catalogue, render
from ..storage import room
from ..storage.store import Store
from . import bars, schedules, sweeps
from .plan import PlanRecord
from .rows import Rows
from .shell import Notebook


class JobRecord(dict[str, Any]):
    """A job's view that is displayed in words, with the references of its environment variables."""

    def __init__(self, view: View, references: Mapping[str, str], trial: str) -> None:
        super().__init__(view)
        self._references, self._trial = references, trial

    def __repr__(self) -> str:
        return report.describe_lines(self, references=self._references, trial=self._trial)


def _job(
    options: argparse.Namespace, notebook: Notebook, find: Callable[[Store, str], str] = lookup.job_id
) -> tuple[Store, str]:
    store = notebook.open_store()
    return store, find(store, options.job or _last_job(notebook))


def _last_job(notebook: Notebook) -> str:
    if not notebook.last_job:
        raise NotFound("this notebook has not submitted a job yet; name one, `%hyperpod jobs` lists them")
    return notebook.last_job


def _jobs(options: argparse.Namespace, notebook: Notebook) -> Rows:
    store = notebook.open_store()
    views = jobs.list_jobs(store)
    _say_full(store, views)
    shown, older = report.newest(report.unarchived(views), report.JOBS_SHOWN)
    if older:
        print(f"{plural(older, 'older job')} not shown in the table; the value of this line has all of them")
    return Rows(views, report.jobs_table(shown, trials=lookup.trials(store, shown)))


def _nodes(options: argparse.Namespace, notebook: Notebook) -> Rows | None:
    store = notebook.open_store()
    answer = nodes.run_nodes(options, store)
    if options.action == "list":
        return Rows(answer.record["nodes"], answer.table or nodes_table(answer.record))
    return _answered(answer)


def _health(options: argparse.Namespace, notebook: Notebook) -> Rows | None:
    if options.action == "agent":
        raise SpecError(
            "an agent watches until it is ended: run `jupyter hyperpod health agent NODE` in a terminal there"
        )
    return _answered(nodes.run_health(options, notebook.open_store()))


def _kept(options: argparse.Namespace, notebook: Notebook) -> Rows | None:
    return _answered(kept_pods.run(options, notebook.open_store()))


def _answered(answer: text_tables.Answer) -> Rows | None:
    found = answer.record.get("findings") or (answer.record.get("health") or {}).get("findings") or []
    return _said(answer, found)


def _said(answer: text_tables.Answer, records: list[dict[str, Any]]) -> Rows | None:
    for line in answer.lines:
        print(line)
    return None if answer.table is None else Rows(records, answer.table)


def _describe(options: argparse.Namespace, notebook: Notebook) -> JobRecord:
    store, job_id = _job(options, notebook)
    view = jobs.job_view(store, job_id)
    _say_full(store, [view])
    return JobRecord(view, lookup.references(store, job_id), lookup.trial_line(store, view))


def _say_full(store: Store, views: list[View]) -> None:
    """Warn where what is shown may be old, because the disk has no room for journals."""
    if said := room.warning(store.root, [view["updated_s"] for view in views]):
        print(f"warning: {said}", file=sys.stderr)


def _events(options: argparse.Namespace, notebook: Notebook) -> Rows:
    store, job_id = _job(options, notebook)
    found = jobs.follow(store, job_id).poll()
    first_s = found[0].time_s if found else 0.0
    of_kind = (event for event in found if not options.kind or event.kind in options.kind)
    chosen = deque(of_kind, tail(options, "events"))
    rows = [(f"{event.time_s - first_s:.3f}", event.kind, event_sentence(event)) for event in chosen]
    nothing = no_events(job_id, options, len(found))
    table = text_tables.Table((">SECONDS", "KIND", "WHAT HAPPENED"), rows, nothing)
    return Rows([to_json(event) for event in chosen], table)


def _logs(options: argparse.Namespace, notebook: Notebook) -> None:
    store, job_id = _job(options, notebook)
    choice = log_choice(options, store.job(job_id))
    for stream, line in printed.logged(store, job_id, choice, log_filters(options)):
        print(line, file=sys.stderr if stream == "stderr" else sys.stdout)


def _attach(options: argparse.Namespace, notebook: Notebook) -> None:
    store, job_id = _job(options, notebook)
    notebook.last_job = job_id
    notebook.attach(store, job_id, cancel=options.cancel_on_interrupt)


def _rerun(options: argparse.Namespace, notebook: Notebook) -> None:
    store, job_id = _job(options, notebook)
    _follow(options, notebook, store, lookup.submit_again(store, job_id, options.name, options.env))


def _follow(options: argparse.Namespace, notebook: Notebook, store: Store, new: str) -> None:
    """Show a job that was just submitted, until it ends unless it is detached."""
    notebook.last_job = new
    notebook.show_warnings(store, new)
    if options.detach:
        notebook.show_once(store, new)
    else:
        notebook.attach(store, new, cancel=options.cancel_on_interrupt)


def _promote(options: argparse.Namespace, notebook: Notebook) -> Rows | None:
    store, job_id = _job(options, notebook)
    answer, new = promote.run(store, job_id, options)
    if options.dry_run:
        return _said(answer, answer.record["changes"])
    for line in [*answer.lines, *([answer.table.render()] if answer.table and answer.record["changes"] else [])]:
        print(line)
    _follow(options, notebook, store, new)
    return None


def _scale(options: argparse.Namespace, notebook: Notebook) -> None:
    store, job_id = _job(options, notebook, lookup.to_command)
    jobs.scale(store, job_id, options.target)
    print(served.asked_to_scale(jobs.job_view(store, job_id), options.target, store.job(job_id).spec().serve))


def _stop(options: argparse.Namespace, notebook: Notebook) -> None:
    names = options.jobs or [_last_job(notebook)]
    answer = lookup.stop(notebook.open_store(), names, "the notebook")
    print(*answer.lines, sep="\n")
    if not answer.ok:
        failed = sum("error" in record for record in answer.record)
        raise Conflict(f"{failed} of {plural(len(answer.record), 'job')} could not be asked to stop, as said above")


def _fault(options: argparse.Namespace, notebook: Notebook) -> None:
    store, job_id = _job(options, notebook, lookup.to_command)
    if options.after_step is not None:
        try:
            watch.wait_for_step(store, job_id, options.after_step)
        except KeyboardInterrupt:
            print("interrupted before the fault; nothing was broken")
            return
    jobs.fault(store, job_id, options.kind, **fault_aim(options))
    print(f"asked for {options.kind} of {aimed_at(options)} in {job_id}")


def _cluster(options: argparse.Namespace, notebook: Notebook) -> None:
    store = notebook.open_store()
    if healed := run_cluster(options, store, bars.wait_for_nodes if notebook.in_kernel() else cluster.wait_ready):
        print(healed)
    print(report.cluster_line(cluster.status(store)))


def _housekeeping(options: argparse.Namespace, notebook: Notebook) -> Rows | None:
    answer = housekeeping.run(options.verb, options, notebook.open_store())
    return _said(answer, answer.record)


def _env(options: argparse.Namespace, notebook: Notebook) -> Rows | None:
    answer = environment_verbs.run(options, notebook.open_store(), notebook.last_job, say=print)
    found = answer.record.get("differences")
    return _said(answer, [answer.record] if found is None else found)


def _mounting(options: argparse.Namespace, notebook: Notebook) -> Rows | None:
    answer = mounting.run(options.verb, options, notebook.open_store())
    return _said(answer, answer.record)


def _report(options: argparse.Namespace, notebook: Notebook) -> None:
    for line in runs.report(*_job(options, notebook), options.output).lines:
        print(line)


def _notebook(options: argparse.Namespace, notebook: Notebook) -> None:
    for line in executed_notebook.write_notebook(*_job(options, notebook), options.output, options.rank).lines:
        print(line)


def _tag(options: argparse.Namespace, notebook: Notebook) -> None:
    for line in labels.tag(*_job(options, notebook), options).lines:
        print(line)


def _compare(options: argparse.Namespace, notebook: Notebook) -> Rows | None:
    answer, tables = runs.compare(notebook.open_store(), options.jobs, options.output)
    for title, table in tables:
        answer.lines.extend(["", title, table.render()])
    return _said(answer, [answer.record])


def _validate(options: argparse.Namespace, notebook: Notebook) -> Rows:
    rows = device_check.run(options, notebook.open_store(), print, lambda row: print(f"  {row.verdict}: {row.name}"))
    print(validate.verdict(rows))
    return Rows([row.to_json() for row in rows], validate.table(rows))


def _recipe(options: argparse.Namespace, notebook: Notebook) -> Rows | None:
    if options.name is None:
        table = text_tables.Table(catalogue.HEADERS, catalogue.overview())
        return Rows([catalogue.record(name) for name in catalogue.names()], table)
    notebook.next_cell(render.cell(catalogue.load(options.name), options.nodes, inline=options.inline))
    return None


def _serve(options: argparse.Namespace, notebook: Notebook) -> Rows | None:
    store, fields = notebook.open_store(), serve_fields(options)
    if options.model is None:
        views = deploy.deployments(store)
        return Rows(views, served.deployments_table(views))
    notebook.last_job = deploy.serve(store, options.model, **fields)
    for line in presets.notes(options.engine, options.model):
        print(line)
    view = deploy.wait_ready(store, notebook.last_job)
    for line in served.how_to_ask(view, str(deploy.token_file(store, notebook.last_job)), "%hyperpod"):
        print(line)
    notebook.show_once(store, notebook.last_job)
    return None


def _plan(options: argparse.Namespace, notebook: Notebook) -> PlanRecord:
    return PlanRecord(ask(options, lambda name: lookup.read(notebook.open_store(), name), drawn=True))


def show_dry_run(store: Store, fields: Mapping[str, Any], source: str, names: list[str]) -> None:
    """Print what would be submitted, and what would come of it."""
    print(f"would submit {code_lines(source)}, nothing was submitted:")
    for line in field_lines(shown_fields(fields) | ({"push": ", ".join(names)} if names else {})):
        print(line)
    for said in filter(None, (requested(spec_of(fields)), prospect(store, fields))):
        print(said)


VERBS: dict[str, Callable[[argparse.Namespace, Notebook], Rows | JobRecord | PlanRecord | View | None]] = {
    "jobs": _jobs,
    "nodes": _nodes,
    "health": _health,
    "kept": _kept,
    "describe": _describe,
    "events": _events,
    "logs": _logs,
    "attach": _attach,
    "report": _report,
    "notebook": _notebook,
    "compare": _compare,
    "tag": _tag,
    "sweep": sweeps.run_verb,
    "schedule": schedules.run_verb,
    "rerun": _rerun,
    "promote": _promote,
    "env": _env,
    "scale": _scale,
    "stop": _stop,
    **dict.fromkeys(housekeeping.VERBS, _housekeeping),
    "fault": _fault,
    "cluster": _cluster,
    "validate": _validate,
    **dict.fromkeys(mounting.VERBS, _mounting),
    "serve": _serve,
    "recipe": _recipe,
    "plan": _plan,
}
