"""The environment "hyperpod" of jupyter-scheduler, and a scheduler that stops and follows its notebook jobs."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import shutil
from collections.abc import Awaitable
from contextlib import suppress
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

from jupyter_scheduler.environments import CondaEnvironmentManager
from jupyter_scheduler.exceptions import SchedulerError
from jupyter_scheduler.executors import ExecutionManager
from jupyter_scheduler.models import CreateJob, CreateJobDefinition, DescribeJob, RuntimeEnvironment, Status
from jupyter_scheduler.orm import Job
from jupyter_scheduler.scheduler import Scheduler
from traitlets import Type, Unicode

from ...core.errors import HyperpodError
from ...storage.store import Store
from .execution_manager import HyperpodExecutionManager
from .notebook_job import (
    ENVIRONMENT,
    NAME,
    OPTIONS,
    STORE,
    ask_to_stop,
    chosen_fields,
    is_followed,
    mark,
    store_of,
    submitted,
)

SIZES = ("1 node", "2 nodes", "4 nodes", "8 nodes", "1:2 nodes", "1:4 nodes", "1:8 nodes")
END_S = 30.0  # a follower that submits when it is to end finishes that first


class HyperpodEnvironments(CondaEnvironmentManager):
    """The environments of jupyter-scheduler, and the cluster."""

    def list_environments(self) -> list[RuntimeEnvironment]:
        """List them, the cluster last."""
        cluster = RuntimeEnvironment(
            name=ENVIRONMENT,
            label="hyperpod (a job on the cluster)",
            description="The notebook runs as a job on the cluster",
            file_extensions=["ipynb"],
            output_formats=["ipynb", "html"],
            metadata={},
            compute_types=list(SIZES),
            default_compute_type=SIZES[0],
            utc_only=False,
        )
        return [*super().list_environments(), cluster]


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
        self._followers: dict[str, BaseProcess] = {}
        self._deletions: dict[str, asyncio.Task[None]] = {}
        # multiprocessing waits for all children when this process ends, and these may run for days. What is registered
        # so comes before that, whichever of the two was imported first; a function of `atexit` may come after it
        Finalize(None, _end, args=(self._followers,), exitpriority=100)
        self._follow_again()

    def create_job(self, model: CreateJob) -> str:
        """Create a notebook job. Raises SchedulerError at once for options that no job can have."""
        if model.runtime_environment_name != ENVIRONMENT:
            return str(super().create_job(model))
        configured = str(dict(self.config.get("HyperpodExtension", {})).get("store") or "")
        settled = {NAME: self._checked(model)["name"], STORE: str(Store(configured or None).root)}
        given = {OPTIONS: self.options} | dict(model.runtime_environment_parameters or {})
        model.runtime_environment_parameters = given | settled
        job_id = str(super().create_job(model))
        with self.db_session() as session:
            pid = session.query(Job.pid).filter(Job.job_id == job_id).scalar()
        for process in multiprocessing.active_children():
            if process.pid == pid:
                self._keep(job_id, process)
        return job_id

    def create_job_definition(self, model: CreateJobDefinition) -> str:
        """Create what notebook jobs are made of. Raises SchedulerError at once for options that no job can have."""
        if model.runtime_environment_name == ENVIRONMENT:
            self._checked(model)
        return str(super().create_job_definition(model))

    def _checked(self, model: CreateJob | CreateJobDefinition) -> dict[str, Any]:
        try:
            return chosen_fields(model, self.options)
        except (HyperpodError, ValueError) as error:
            raise SchedulerError(f"The options of this notebook job are not right: {error}") from None

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
        store = store_of(model)
        if job := submitted(store, model):
            ask_to_stop(store, job.id)
        self._follow_again()  # where its follower was killed, somebody has to note the end

    def delete_job(self, job_id: str) -> Awaitable[None] | None:
        """Delete the notebook job; its job on the cluster is stopped and stays in the list of jobs.

        Of a job on the cluster, what is returned has to be awaited.
        """
        with self.db_session() as session:
            if session.query(Job.job_id).filter(Job.job_id == job_id).first() is None:
                return None  # another tab has deleted it
        model = self.get_job(job_id, False)
        if model.runtime_environment_name != ENVIRONMENT:
            super().delete_job(job_id)
            return None
        if job_id not in self._deletions:
            self._deletions[job_id] = asyncio.ensure_future(self._delete(model))
        return self._deletions[job_id]

    async def delete_job_definition(self, job_definition_id: str) -> None:
        """Delete what notebook jobs are made of, with these."""
        while ours := self._ours_of(job_definition_id):
            await asyncio.gather(*filter(None, map(self.delete_job, ours)))
        super().delete_job_definition(job_definition_id)

    def _ours_of(self, definition: str) -> list[str]:
        with self.db_session() as session:
            ours = (Job.job_definition_id == definition, Job.runtime_environment_name == ENVIRONMENT)
            return [job_id for (job_id,) in session.query(Job.job_id).filter(*ours)]

    async def _delete(self, model: DescribeJob) -> None:
        job_id, store = model.job_id, store_of(model)
        try:
            with self.db_session() as session:
                goes_on = session.query(Job).filter(Job.job_id == job_id, Job.end_time.is_(None))
                goes_on.update({"status": Status.STOPPING})
                session.commit()
            if (process := self._followers.get(job_id)) is not None:
                await _ended(process)  # before: it may be about to submit, and nobody would stop that job
            self._remove(model, store)
        finally:
            del self._deletions[job_id]

    def _remove(self, model: DescribeJob, store: Store) -> None:
        job_id = model.job_id
        self._followers.pop(job_id, None)
        if job := submitted(store, model):
            ask_to_stop(store, job.id)
        folder = Path(self.get_staging_paths(model)["input"]).parent
        aside = folder.with_name(f"{folder.name}.deleted")
        if folder.is_dir():
            os.rename(folder, aside)  # what still writes there does not make the deletion fail
        super().delete_job(job_id)
        mark(store, job_id).unlink(missing_ok=True)
        shutil.rmtree(aside, ignore_errors=True)

    def _follow_again(self) -> None:
        """Follow what was not followed to its end: the server, or a follower, was ended.

        A notebook job that has a follower, but no end, and passes for stopped, as all do at first, was not begun.
        """
        begun = (Status.IN_PROGRESS, Status.STOPPING)
        context = multiprocessing.get_context("spawn")
        with self.db_session() as session:
            open_ones = session.query(Job).filter(Job.runtime_environment_name == ENVIRONMENT, Job.end_time.is_(None))
            for record in open_ones.all():
                if record.job_id in self._deletions or (record.pid is None and record.status not in begun):
                    continue  # of the latter, files may not have been copied
                model = DescribeJob.from_orm(record)
                known = self._followers.get(model.job_id)
                if (known and known.is_alive()) or is_followed(store_of(model), model.job_id):
                    continue
                paths = self.get_staging_paths(model)
                manager = self.execution_manager_class(
                    job_id=model.job_id, staging_paths=paths, root_dir=self.root_dir, db_url=self.db_url
                )
                process = context.Process(target=manager.process)
                process.start()
                record.pid = process.pid
                self._keep(model.job_id, process)
            session.commit()

    def _keep(self, job_id: str, follower: BaseProcess) -> None:
        for ended in [one for one, process in self._followers.items() if not process.is_alive()]:
            del self._followers[ended]
        self._followers[job_id] = follower


async def _ended(process: BaseProcess) -> None:
    """End a process that follows a notebook job, while the server answers others."""
    process.terminate()
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(process.sentinel, ended.set)
    with suppress(TimeoutError):
        await asyncio.wait_for(ended.wait(), END_S)
    loop.remove_reader(process.sentinel)
    _end({"": process}, 0.0)


def _end(followers: dict[str, BaseProcess], timeout_s: float = END_S) -> None:
    """End processes that follow notebook jobs: the jobs go on."""
    for process in followers.values():
        process.terminate()
    for process in followers.values():
        process.join(timeout_s)
        if process.is_alive():
            process.kill()
            process.join()
