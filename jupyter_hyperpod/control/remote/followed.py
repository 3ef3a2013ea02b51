"""Sees to it that a process on this machine follows each job whose head runs elsewhere. It needs no Linux."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...backends import load
from ...core.backend_options import HEAD, TABLES, has_remote_head
from ...core.backends import DEFAULT_BACKEND
from ...core.errors import ClusterError, Conflict, HyperpodError, StoreError
from ...core.events import TERMINAL_STATES
from ...core.spec import JobSpec
from ...storage.sharing import owner_elsewhere
from ...storage.store import JobStore, Store
from ...system import portable
from ...system.locks import one_at_a_time
from .. import cluster

LOCK, LOG = "follower.lock", "follower.log"
FETCHED = "fetched"  # everything of a job that is over is here
BUSY = "another process follows the job"


def is_remote(spec: JobSpec) -> bool:
    """Whether the head of a job runs elsewhere, so that a follower takes the place of the supervisor."""
    return has_remote_head(spec.backend_options)


def check_backend(backend: str, options: Mapping[str, str] | None = None) -> None:
    """Check that this machine has what jobs with these options of a backend need here. Raises ClusterError."""
    local = "" if has_remote_head(options or {}) else load(DEFAULT_BACKEND).missing()  # a supervisor needs Linux
    if problem := local or load(backend).missing():
        raise ClusterError(problem)


def follows(job: JobStore) -> bool:
    """Whether some process follows a job now."""
    try:
        with one_at_a_time(job.path / LOCK, BUSY, 0.0, where_possible=True):
            return False
    except Conflict:
        return True


def is_fetching(job: JobStore) -> bool:
    """Whether a follower still writes into the directory of a job."""
    return job.has_remote_head() and follows(job)


def keep(store: Store, jobs: Iterable[JobStore]) -> bool:
    """Have those of the jobs followed whose heads run elsewhere; whether there are any. Raises as `ensure` does."""
    remote = [] if owner_elsewhere(store.root) else [job for job in jobs if job.has_remote_head()]
    for job in remote:
        ensure(store, job)
    return bool(remote)


def resume(store: Store, views: Iterable[Mapping[str, Any]]) -> list[str]:
    """Have those jobs followed that have not ended as far as their views know, and that nothing follows; their ids."""
    resumed = []
    for view in views:
        if view["state"] in TERMINAL_STATES or HEAD not in getattr(TABLES.get(view["backend"]), "checks", ()):
            continue
        with suppress(HyperpodError):
            job = store.job(view["id"])
            if not is_fetching(job) and not (job.path / FETCHED).exists() and keep(store, [job]):
                resumed.append(job.id)
    return resumed


def ensure(store: Store, job: JobStore) -> None:
    """Have a job followed, unless that is done or all of it is here. Raises ClusterError and StoreError."""
    if (job.path / FETCHED).exists() or follows(job):
        return
    arguments = ["--store", str(store.root), "--job", job.id]
    log = _log(job.path / LOG)
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyter_hyperpod.control.remote.follower", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=store.root,
            env=cluster.daemon_environment(os.environ),
            start_new_session=portable.HAS_USERS,
            creationflags=0 if portable.HAS_USERS else getattr(subprocess, "DETACHED_PROCESS", 0),
        )
    except OSError as error:
        raise ClusterError(f"cannot start {sys.executable}: {error.strerror}") from error
    finally:
        os.close(log)
    threading.Thread(target=process.wait, name="hyperpod-reaper", daemon=True).start()


def _log(path: Path) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | portable.NOT_INHERITED, 0o600)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from error
