"""Notebook jobs of jupyter-scheduler that run as jobs on the cluster.

An environment "hyperpod" stands in the dialog of jupyter-scheduler. A notebook job with this environment is submitted
here and followed by a process of jupyter-scheduler. That process may end at any time: the job goes on, and the next
start of the server follows it again. Every other environment is left to jupyter-scheduler.

Only who has configured these classes imports this module: it needs jupyter-scheduler.
"""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import shlex
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import nbformat
from jupyter_scheduler.environments import CondaEnvironmentManager
from jupyter_scheduler.exceptions import SchedulerError
from jupyter_scheduler.executors import DefaultExecutionManager, ExecutionManager
from jupyter_scheduler.models import CreateJob, CreateJobDefinition, DescribeJob, RuntimeEnvironment, Status
from jupyter_scheduler.orm import Job
from jupyter_scheduler.parameterize import add_parameters
from jupyter_scheduler.scheduler import Scheduler
from jupyter_scheduler.utils import get_utc_timestamp
from traitlets import Type, Unicode

from ..control import jobs
from ..control.executed import executed_notebook, stored_notebook
from ..control.option_parser import Parser
from ..control.sources.source import read_file
from ..control.submit_options import add_submit_options, job_name, spec_fields
from ..core.errors import ClusterError, Conflict, HyperpodError, SpecError
from ..core.events import TERMINAL_STATES
from ..core.views import View
from ..storage.folded import FoldedJournal
from ..storage.store import JobStore, Store, private_directory
from ..system.locks import open_lock, take_lock

ENVIRONMENT = "hyperpod"
SIZES = ("1 node", "2 nodes", "4 nodes", "8 nodes", "1:2 nodes", "1:4 nodes", "1:8 nodes")
LOOK_AGAIN_S = 5.0  # a wish to stop that did not reach the job, and a deleted notebook job, are noticed so soon
MESSAGE_LENGTH = 1024  # of the column in jupyter-scheduler's database
OPTIONS = "options"  # of `runtime_environment_parameters`, where the server adds the following two
STORE, NAME = "store", "job_name"


class HyperpodEnvironments(CondaEnvironmentManager):
    """The environments of jupyter-scheduler, and the cluster."""

    def list_environments(self) -> list[RuntimeEnvironment]:
        """List them, the cluster last."""
        cluster = RuntimeEnvironment(
            name=ENVIRONMENT,
            label="hyperpod (a job on the cluster)",
            description="The notebook runs as a job on the cluster, and goes on where a node is lost",
            file_extensions=["ipynb"],
            output_formats=["ipynb", "html"],
            metadata={},
            compute_types=list(SIZES),
            default_compute_type=SIZES[0],
            utc_only=False,
        )
        return [*super().list_environments(), cluster]


def submitted(store: Store, model: DescribeJob) -> JobStore | None:
    """The job of a notebook job; None before it is submitted."""
    return store.job_made(_name(model), _once(model))


def _name(model: DescribeJob) -> str:
    """The job's name, which is settled when the notebook job is created: a notebook job can be renamed."""
    return str((model.runtime_environment_parameters or {}).get(NAME) or job_name(f"{model.name}.ipynb"))


def _once(model: DescribeJob) -> str:
    return f"jupyter-scheduler {model.job_id}"


def _mark(store: Store, notebook_job: str) -> Path:
    """The file that its follower locks; it has content once the notebook job is, or is about to be, submitted."""
    return store.root / "notebook-jobs" / f"{notebook_job}.lock"


def _store(model: DescribeJob) -> Store:
    return Store(str((model.runtime_environment_parameters or {}).get(STORE) or "") or None)


def chosen_fields(model: DescribeJob | CreateJob | CreateJobDefinition) -> dict[str, Any]:
    """The fields of the job's specification that the notebook job chooses. Raises SpecError."""
    words = shlex.split(str((model.runtime_environment_parameters or {}).get(OPTIONS) or ""))
    size = (model.compute_type or "").partition(" ")[0]
    if size and not any(word.partition("=")[0] in ("--nodes", "--elastic") for word in words):
        words = ["--elastic" if ":" in size else "--nodes", size, *words]
    parser = Parser(prog=OPTIONS, add_help=False)
    add_submit_options(parser)
    options = parser.parse_args(words)
    if options.dry_run:
        raise SpecError("--dry-run is no option of a notebook job, which runs; leave it out")
    return spec_fields(options, job_name(f"{model.name}.ipynb"))


class JobStopped(Exception):
    """Somebody has stopped the job, here or on the cluster."""


class FollowedElsewhere(Exception):
    """Another process follows this notebook job."""


class HyperpodExecutionManager(DefaultExecutionManager):
    """Submits a notebook job to the cluster, once, and follows the job to its end."""

    @property
    def _ours(self) -> bool:
        return bool(self.model.runtime_environment_name == ENVIRONMENT)

    def before_start(self) -> None:
        """Note that it runs; where it is followed again, the time of its start stays."""
        if not self._ours:
            super().before_start()
            return
        began = {"status": Status.IN_PROGRESS, "start_time": self.model.start_time or get_utc_timestamp()}
        with self.db_session() as session:  # in one statement: what another process notes meanwhile stays
            waits = (Job.job_id == self.job_id, Job.end_time.is_(None), Job.status != Status.STOPPING)
            session.query(Job).filter(*waits).update(began)
            session.commit()

    def execute(self) -> None:
        """Run the notebook on the cluster, or as jupyter-scheduler does."""
        if not self._ours:
            super().execute()
            return
        store = _store(self.model)
        store.prepare()
        mark = _mark(store, self.job_id)
        private_directory(mark.parent)
        lock = open_lock(mark)
        try:
            if not take_lock(lock) or self._has_ended():
                raise FollowedElsewhere
            self._follow(store, self._submit(store, lock))
        finally:
            os.close(lock)

    def on_failure(self, e: Exception) -> None:
        """Tell jupyter-scheduler how it ended."""
        if not self._ours:
            super().on_failure(e)
        elif not isinstance(e, FollowedElsewhere):
            status = Status.STOPPED if isinstance(e, JobStopped) else Status.FAILED
            self._note(status=status, status_message=f"{e}{self._left()}", end_time=get_utc_timestamp())
            self._forget()

    def on_complete(self) -> None:
        """Tell jupyter-scheduler that it has succeeded."""
        super().on_complete()
        if self._ours:
            self._forget()

    def _forget(self) -> None:
        """Remove the mark, only after the end was noted: without either, the notebook would be submitted again."""
        with suppress(HyperpodError, OSError):
            _mark(_store(self.model), self.job_id).unlink(missing_ok=True)

    def _left(self) -> str:
        """What to know where this process gives up before the job has ended."""
        with suppress(HyperpodError, OSError):
            job = submitted(_store(self.model), self.model)
            if job and jobs.job_view(_store(self.model), job.id)["state"] not in TERMINAL_STATES:
                return f"; {job.id} has not ended and is not followed any more: see, or stop, it in the list of jobs"
        return ""

    def _submit(self, store: Store, mark: int) -> str:
        """Submit the notebook where that has not been done; return the job's id."""
        if job := submitted(store, self.model):
            return job.id
        if self._status() in (None, Status.STOPPING):
            raise JobStopped("stopped before it was submitted")
        if os.fstat(mark).st_size:
            raise SchedulerError(
                "the job on the cluster is not there: it was deleted, or the server ended at the moment of the "
                "submission. It was not submitted a second time; create the notebook job again to run it"
            )
        given = Path(self.staging_paths["input"])
        notebook = nbformat.read(given, as_version=4)
        if self.model.parameters:
            notebook = add_parameters(notebook, self.model.parameters)
        notes: list[str] = []
        with tempfile.TemporaryDirectory(prefix="hyperpod-notebook-") as folder:
            path = Path(folder) / given.name
            nbformat.write(notebook, path)
            source = read_file(path, notes.append)
            origin = stored_notebook.keep(store, path, notes.append)
        fields = chosen_fields(self.model) | {
            "filename": str(given),
            "script": False,
            "origin": origin,
            "working_directory": str(given.parent),
        }
        fields["name"] = _name(self.model)
        os.write(mark, b"submitted\n")  # before: at most once, also where this process ends between the two
        os.fsync(mark)
        try:
            return jobs.submit(store, source, fields, once=_once(self.model))
        except ClusterError:
            if job := submitted(store, self.model):
                return job.id  # it waits for the next start of the cluster
            raise

    def _follow(self, store: Store, job_id: str) -> None:
        """Follow the job to its end, and give back what it has printed. Raises JobStopped, HyperpodError."""
        journal, said, asked = FoldedJournal(store.job(job_id)), "", False
        view = journal.catch_up()
        while True:
            journal.poll()
            store.job(job_id)  # raises NotFound where somebody has deleted it
            if (state := view["state"]) in TERMINAL_STATES:
                break
            if not asked and self._status() in (None, Status.STOPPING):
                asked = True
                _ask_to_stop(store, job_id)
            if said != state:
                said = state
                self._note(status_message=f"{job_id} is {state}")
            journal.wait(LOOK_AGAIN_S)
        if self._status() is None:
            raise JobStopped(f"{job_id} is no notebook job any more")
        self._give_back(store, job_id, view)

    def _give_back(self, store: Store, job_id: str, view: View) -> None:
        staging = os.path.dirname(self.staging_paths["input"])
        why = "" if view["state"] == "succeeded" else f"{job_id} {view['state']}: {view['reason']}"
        try:
            notebook = nbformat.reads(json.dumps(executed_notebook.executed(store, job_id)), as_version=4)
            self.add_side_effects_files(staging)
            self.create_output_files(self.model, notebook)
        except Exception as error:  # of any kind, such as of a template: how the job ended is told all the same
            why = "; ".join(filter(None, [why, f"its outputs are not complete: {error}"]))
        if view["state"] == "stopped":
            raise JobStopped(why)
        if why:
            raise SchedulerError(why)
        self._note(status_message=f"{job_id} succeeded")

    def _status(self) -> Status | None:
        """What jupyter-scheduler has noted; None where the notebook job was deleted."""
        with self.db_session() as session:
            found = session.query(Job.status).filter(Job.job_id == self.job_id).scalar()
        return None if found is None else Status(found)

    def _has_ended(self) -> bool:
        with self.db_session() as session:
            return session.query(Job.end_time).filter(Job.job_id == self.job_id).scalar() is not None

    def _note(self, **columns: Any) -> None:
        if "status_message" in columns:
            columns["status_message"] = columns["status_message"][:MESSAGE_LENGTH]
        with self.db_session() as session:
            session.query(Job).filter(Job.job_id == self.job_id).update(columns)
            session.commit()


def _ask_to_stop(store: Store, job_id: str) -> None:
    with suppress(Conflict):  # it has ended
        jobs.stop(store, job_id, reason=f"stopped by {jobs.person()} from Notebook Jobs")


class HyperpodScheduler(Scheduler):
    """jupyter-scheduler's own scheduler, which knows how to stop a job on the cluster and to follow it again."""

    execution_manager_class = Type(
        klass=ExecutionManager,
        default_value=HyperpodExecutionManager,
        config=True,
        help="The execution manager class to use.",
    )
    options = Unicode(
        "",
        config=True,
        help="Options of `jupyter hyperpod submit` for notebook jobs with the environment hyperpod, such as "
        "'--backend slurm --elastic 1:4'. A job with options of its own has those instead.",
    )

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self._followers: set[int] = set()
        self._follow_again()
        atexit.register(self._leave)  # before multiprocessing waits for all children, which may run for days

    def create_job(self, model: CreateJob) -> str:
        """Create a notebook job. Raises SchedulerError at once for options that no job can have."""
        if model.runtime_environment_name != ENVIRONMENT:
            return str(super().create_job(model))
        configured = str(dict(self.config.get("HyperpodExtension", {})).get("store") or "")
        given = {OPTIONS: self.options} | dict(model.runtime_environment_parameters or {})
        model.runtime_environment_parameters = given
        settled = {NAME: self._checked(model)["name"], STORE: str(Store(configured or None).root)}
        model.runtime_environment_parameters = given | settled
        job_id = str(super().create_job(model))
        with self.db_session() as session:
            self._followers.add(int(session.query(Job.pid).filter(Job.job_id == job_id).scalar()))
        return job_id

    def create_job_definition(self, model: CreateJobDefinition) -> str:
        """Create what notebook jobs are made of. Raises SchedulerError at once for options that no job can have."""
        if model.runtime_environment_name == ENVIRONMENT:
            self._checked(model)
        return str(super().create_job_definition(model))

    @staticmethod
    def _checked(model: CreateJob | CreateJobDefinition) -> dict[str, Any]:
        try:
            return chosen_fields(model)
        except (HyperpodError, ValueError) as error:
            raise SchedulerError(f"The options of this notebook job are not right: {error}") from error

    def stop_job(self, job_id: str) -> None:
        """Ask the job on the cluster to stop; its follower notes that it has."""
        with self.db_session() as session:
            model = DescribeJob.from_orm(session.query(Job).filter(Job.job_id == job_id).one())
            if model.runtime_environment_name != ENVIRONMENT:
                super().stop_job(job_id)
                return
            if model.end_time is not None:
                return
            session.query(Job).filter(Job.job_id == job_id).update({"status": Status.STOPPING})
            session.commit()
        store = _store(model)
        if job := submitted(store, model):
            _ask_to_stop(store, job.id)

    def delete_job(self, job_id: str) -> None:
        """Delete the notebook job; its job on the cluster is stopped and stays in the list of jobs."""
        model = self.get_job(job_id, False)
        if model.runtime_environment_name == ENVIRONMENT:
            self._end_follower(job_id)  # first: it may be about to submit, and nobody would stop that job
            self.stop_job(job_id)
            _mark(_store(model), job_id).unlink(missing_ok=True)
        super().delete_job(job_id)

    def _end_follower(self, job_id: str) -> None:
        with self.db_session() as session:
            pid = session.query(Job.pid).filter(Job.job_id == job_id).scalar()
        for process in multiprocessing.active_children():
            if process.pid == pid and pid in self._followers:
                process.kill()
                process.join()

    def _follow_again(self) -> None:
        """Follow what was not followed to its end: the server, or a follower, was ended.

        A notebook job that has a follower, but no end, and passes for stopped, as all do at first, was not begun.
        """
        begun = (Status.IN_PROGRESS, Status.STOPPING)
        context = multiprocessing.get_context("spawn")
        with self.db_session() as session:
            open_ones = session.query(Job).filter(Job.runtime_environment_name == ENVIRONMENT, Job.end_time.is_(None))
            for record in open_ones.all():
                if record.pid is None and record.status not in begun:
                    continue  # its files may not have been copied
                model = DescribeJob.from_orm(record)
                paths = self.get_staging_paths(model)
                manager = self.execution_manager_class(
                    job_id=model.job_id, staging_paths=paths, root_dir=self.root_dir, db_url=self.db_url
                )
                process = context.Process(target=manager.process)
                process.start()
                record.pid = process.pid
                self._followers.add(int(process.pid or 0))
            session.commit()

    def _leave(self) -> None:
        for process in multiprocessing.active_children():
            if process.pid in self._followers:
                process.terminate()
