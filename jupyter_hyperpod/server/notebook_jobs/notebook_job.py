"""What a notebook job asks for, and where its job on the cluster is found."""

from __future__ import annotations

import os
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any

from jupyter_scheduler.models import CreateJob, CreateJobDefinition, DescribeJob

from ...control import jobs
from ...control.option_parser import Parser
from ...control.submit_options import add_submit_options, job_name, spec_fields
from ...core.errors import Conflict, SpecError
from ...storage.store import JobStore, Store
from ...system.locks import take_lock

ENVIRONMENT = "hyperpod"
OPTIONS = "options"  # of `runtime_environment_parameters`, where the server adds the following two
STORE, NAME = "store", "job_name"


def chosen_fields(model: DescribeJob | CreateJob | CreateJobDefinition, default: str = "") -> dict[str, Any]:
    """The fields of the job's specification that the notebook job chooses; ``default`` are options where it has none.

    Raises SpecError, and ValueError for quotation marks that are not closed.
    """
    words = shlex.split(str((model.runtime_environment_parameters or {}).get(OPTIONS, default)))
    size = (model.compute_type or "").partition(" ")[0]
    if size and not any(word.partition("=")[0] in ("--nodes", "--elastic") for word in words):
        words = ["--elastic" if ":" in size else "--nodes", size, *words]
    parser = Parser(prog=OPTIONS, add_help=False)
    add_submit_options(parser)
    options = parser.parse_args(words)
    if options.dry_run:
        raise SpecError("--dry-run is no option of a notebook job, which runs; leave it out")
    return spec_fields(options, job_name(f"{model.name}.ipynb"))


def store_of(model: DescribeJob) -> Store:
    """The store in which the notebook job was created."""
    return Store(str((model.runtime_environment_parameters or {}).get(STORE) or "") or None)


def name_of(model: DescribeJob) -> str:
    """The job's name, which is settled when the notebook job is created: a notebook job can be renamed."""
    return str((model.runtime_environment_parameters or {}).get(NAME) or job_name(f"{model.name}.ipynb"))


def once(model: DescribeJob) -> str:
    """What its only submission is called."""
    return f"jupyter-scheduler {model.job_id}"


def submitted(store: Store, model: DescribeJob) -> JobStore | None:
    """The job of a notebook job; None before it is submitted."""
    return store.job_made(name_of(model), once(model))


def mark(store: Store, notebook_job: str) -> Path:
    """The file that its follower locks; it has content once the notebook job is, or is about to be, submitted."""
    return store.root / "notebook-jobs" / f"{notebook_job}.lock"


def is_followed(store: Store, notebook_job: str) -> bool:
    """Whether a process follows it, on whichever server."""
    try:
        lock = os.open(mark(store, notebook_job), os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not take_lock(lock)
    finally:
        os.close(lock)


def ask_to_stop(store: Store, job_id: str) -> None:
    """Ask a job to stop, where it has not ended."""
    with suppress(Conflict):
        jobs.stop(store, job_id, reason=f"stopped by {jobs.person()} from Notebook Jobs")
