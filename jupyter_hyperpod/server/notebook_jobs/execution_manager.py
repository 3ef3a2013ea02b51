"""The process that submits a notebook job to the cluster and follows it to its end."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import nbformat
from jupyter_scheduler.exceptions import SchedulerError
from jupyter_scheduler.executors import DefaultExecutionManager
from jupyter_scheduler.models import Status
from jupyter_scheduler.orm import Job, create_session
from jupyter_scheduler.parameterize import add_parameters
from jupyter_scheduler.utils import get_utc_timestamp

from ...control import jobs
from ...control.executed import executed_notebook, stored_notebook
from ...control.sources.source import read_file
from ...core.errors import ClusterError, HyperpodError
from ...core.events import TERMINAL_STATES
from ...core.views import View
from ...storage.folded import FoldedJournal
from ...storage.store import Store, private_directory
from ...system.locks import open_lock, take_lock
from .notebook_job import ENVIRONMENT, ask_to_stop, chosen_fields, mark, name_of, once, store_of, submitted

LOOK_AGAIN_S = 5.0  # a wish to stop that did not reach the job, a deleted one, a server that ended: noticed so soon
LOCK_S = 2.0  # a server that looks whether somebody follows has the lock for a moment
DATABASE_S = 60  # many followers write into one file of SQLite, which one at a time can
MESSAGE_LENGTH = 1024  # of the column in jupyter-scheduler's database


class JobStopped(Exception):
    """Somebody has stopped the job, here or on the cluster."""


class FollowedElsewhere(Exception):
    """Another process follows this notebook job."""


class HyperpodExecutionManager(DefaultExecutionManager):
    """Submits a notebook job to the cluster, once, and follows the job to its end."""

    _db_session: Any = None

    @property
    def db_session(self) -> Any:
        """Makes sessions of the database, which wait for those of others."""
        if self._db_session is None:
            waits = f"?timeout={DATABASE_S}" if self.db_url.startswith("sqlite") and "?" not in self.db_url else ""
            self._db_session = create_session(self.db_url + waits)
        return self._db_session

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
        store = store_of(self.model)
        store.prepare()
        signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C in the server's terminal is the server's to answer
        path = mark(store, self.job_id)
        private_directory(path.parent)
        lock = open_lock(path)
        try:
            if not take_lock(lock, LOCK_S) or self._has_ended():
                raise FollowedElsewhere
            with _ends_afterwards():
                job_id = self._submit(store, lock)
            self._follow(store, job_id)
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
            mark(store_of(self.model), self.job_id).unlink(missing_ok=True)

    def _left(self) -> str:
        """What to know where this process gives up before the job has ended."""
        with suppress(HyperpodError, OSError):
            job = submitted(store_of(self.model), self.model)
            if job and jobs.job_view(store_of(self.model), job.id)["state"] not in TERMINAL_STATES:
                return f"; {job.id} has not ended and is not followed any more: see, or stop, it in the list of jobs"
        return ""

    def _submit(self, store: Store, marked: int) -> str:
        """Submit the notebook where that has not been done; return the job's id."""
        job = submitted(store, self.model)
        if job and jobs.job_view(store, job.id)["name"]:
            return job.id
        if job is None and self._status() in (None, Status.STOPPING):
            raise JobStopped("stopped before it was submitted")
        if job is None and os.fstat(marked).st_size:
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
        fields["name"] = name_of(self.model)
        os.write(marked, b"submitted\n")  # before: at most once, also where this process ends between the two
        os.fsync(marked)
        try:
            return jobs.submit(store, source, fields, once=once(self.model))
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
            if _server_has_ended():
                raise SystemExit  # the next one follows the job
            if (state := view["state"]) in TERMINAL_STATES:
                break
            if not asked and self._status() in (None, Status.STOPPING):
                asked = True
                ask_to_stop(store, job_id)
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


@contextmanager
def _ends_afterwards() -> Iterator[None]:
    """Let a wish to end this process wait until the block is done, as a submission is done or not, and never half."""
    asked: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: asked.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        if asked:
            raise SystemExit  # the next server follows the job


def _server_has_ended() -> bool:
    parent = multiprocessing.parent_process()
    return parent is not None and os.getppid() != parent.pid
