"""The command ``jupyter hyperpod serve …``: starts a deployment and explains its use, or lists all deployments."""

from __future__ import annotations

import argparse

from ..control import deploy, served, watch
from ..control.engines import presets
from ..control.engines.reach import tunnel
from ..control.report import progress_line
from ..control.verb_options import serve_fields
from ..core.errors import HyperpodError
from ..core.events import TERMINAL_STATES
from ..core.views import summary
from ..storage.store import Store
from .job_verbs import say_wait
from .terminal import Terminal


def run_serve(options: argparse.Namespace, store: Store, terminal: Terminal) -> int:
    """Run ``serve`` and return the exit status. Raises SpecError for wrong arguments.

    Raises HyperpodError where the deployment ends before its first answer.
    """
    fields = serve_fields(options)
    if options.model is None:
        views = deploy.deployments(store)
        record = [summary(view) for view in views]
        return terminal.answer(options, record, served.deployments_table(views).render(terminal.paint))
    job_id = deploy.serve(store, options.model, **fields)
    for line in presets.notes(options.engine, options.model):
        terminal.note(line)
    follower = watch.JobWatch(store, job_id)
    try:
        _until_it_answers(follower, terminal)
        view, token = follower.view, str(deploy.token_file(store, follower.job_id))
        opened = view["deployment"]
        about = {"id": view["id"]} | {name: opened[name] for name in ("url", "host", "task")}
        about["tunnel"] = tunnel(opened)
        terminal.answer(options, about | {"token_file": token}, *served.how_to_ask(view, token))
        return _follow(follower, terminal) if options.follow else 0
    except KeyboardInterrupt:
        terminal.note(f"detached; {follower.job_id} goes on. End it with: jupyter hyperpod stop {follower.job_id}")
        return 0


def _until_it_answers(follower: watch.JobWatch, terminal: Terminal) -> None:
    waits = ""
    for _ in follower.batches():
        terminal.status(progress_line(follower.view))
        waits = say_wait(follower.view, waits, terminal)
        if follower.view["state"] == "running":
            return
    view = follower.view
    raise HyperpodError(f"{follower.job_id} {view['state']}: {view['reason']}")


def _follow(follower: watch.JobWatch, terminal: Terminal) -> int:
    for _ in follower.batches():
        terminal.status(progress_line(follower.view))
    terminal.note(progress_line(follower.view))
    return 0 if follower.view["state"] in TERMINAL_STATES - {"failed"} else 1
