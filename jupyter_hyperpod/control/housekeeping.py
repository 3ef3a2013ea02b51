"""Deletes jobs that have ended: some by name, or all that ended long ago. Checkpoints elsewhere are left alone.

Shares the store with a group, too.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass

from ..backends import load
from ..core.errors import Conflict, HyperpodError, SpecError, StoreError
from ..core.events import TERMINAL_STATES
from ..core.units import few, format_bytes, format_duration, parse_duration, plural
from ..core.views import View
from ..storage.folded import FoldedJournal, is_lost
from ..storage.store import DELETED, Store
from . import cluster, lookup
from .remote import followed
from .teams import share
from .text_tables import Answer, Table

VERBS = {
    "delete": "delete jobs that have ended: their journals, output, specification and code",
    "prune": "delete all jobs that ended long ago",
    "share": "share the store with a group of this system, or show with whom it is shared",
}
DEFAULT_AGE = "30d"


@dataclass(frozen=True, slots=True)
class EndedJob:
    """A job that may be deleted; ``ended_s`` since the Unix epoch, ``size`` on the disk in bytes."""

    job_id: str
    state: str
    ended_s: float
    size: int


def add_options(verb: str, parser: argparse.ArgumentParser) -> None:
    """Declare the options of one of `VERBS`."""
    if verb == "delete":
        parser.add_argument("jobs", nargs="+", metavar="JOB", help="a job's id, or a name: its newest job")
        return
    if verb == "share":
        parser.add_argument(
            "groups",
            nargs="*",
            metavar="GROUP[:ROLE]",
            help="ROLE: read (default) or operate: stop, scale, fault",
        )
        parser.add_argument("--private", action="store_true", help="share it with nobody: the default of each store")
        return
    parser.add_argument(
        "--older-than", default=DEFAULT_AGE, metavar="TIME", help="such as 12h or 30d, since its end (default: 30d)"
    )
    parser.add_argument(
        "--state", action="append", choices=sorted(TERMINAL_STATES), help="only jobs that ended so; may be repeated"
    )
    parser.add_argument("--keep", type=int, default=0, metavar="N", help="keep the newest N of them, however old")
    parser.add_argument("--dry-run", action="store_true", help="show what would be deleted")


def run(verb: str, options: argparse.Namespace, store: Store) -> Answer:
    """Carry out a verb. Raises SpecError, NotFound, Conflict for a job that has not ended, or StoreError."""
    if verb == "delete":
        return delete_jobs(store, [lookup.job_id(store, name) for name in options.jobs])
    if verb == "share":
        return share.share(store, options.groups, options.private)
    return _prune(store, options)


def delete_jobs(store: Store, job_ids: list[str]) -> Answer:
    """Delete jobs that have ended, all or none. Raises NotFound, Conflict for one that has not ended, or StoreError."""
    store.refuse_foreign()
    found = [_ended(store, job_id) for job_id in dict.fromkeys(job_ids)]  # all or none: a typo deletes nothing
    for job in found:
        delete(store, job.job_id)
    store.forget_cells()
    return Answer([_record(job) for job in found], lines=[_sentence(found, "deleted")])


def _prune(store: Store, options: argparse.Namespace) -> Answer:
    age_s, now_s = parse_duration(options.older_than), time.time()
    choose = old_jobs if options.dry_run else delete_old
    old = choose(store, age_s, options.state or TERMINAL_STATES, options.keep)
    rows = [(job.job_id, job.state, format_duration(now_s - job.ended_s), format_bytes(job.size)) for job in old]
    nothing = f"no job ended more than {options.older_than} ago"
    table = Table(("JOB", "STATE", ">ENDED AGO", ">SIZE"), rows, nothing)
    lines = [_sentence(old, "would be deleted" if options.dry_run else "deleted")] if old else []
    return Answer([_record(job) for job in old], table, lines)


def old_jobs(store: Store, age_s: float, states: Collection[str] = TERMINAL_STATES, keep: int = 0) -> list[EndedJob]:
    """Jobs that ended in one of these ``states`` more than ``age_s`` ago, but for the newest ``keep`` of that kind."""
    now_s = time.time()
    ended = sorted(_all_ended(store, states), key=lambda job: job.ended_s, reverse=True)
    return [job for job in ended[max(0, keep) :] if now_s - job.ended_s > age_s]


def delete_old(store: Store, age_s: float, states: Collection[str] = TERMINAL_STATES, keep: int = 0) -> list[EndedJob]:
    """Delete `old_jobs`, and return them. Raises StoreError."""
    store.refuse_foreign()
    old = old_jobs(store, age_s, states, keep)
    for job in old:
        delete(store, job.job_id)
    store.forget_cells()
    return old


def delete(store: Store, job_id: str) -> None:
    """Remove the directory of a job that has ended. Raises StoreError."""
    store.refuse_foreign()
    path = store.job(job_id).path
    gone = path.with_name(f"{DELETED}{secrets.token_hex(4)}")
    try:
        os.rename(path, gone)  # at once for everybody; a deletion that is interrupted leaves no half of a job
        for left in store.jobs.glob(f"{DELETED}*"):
            if left != gone:
                with suppress(OSError):  # a directory that a member made in it stays
                    shutil.rmtree(left)
        shutil.rmtree(gone)
    except OSError as error:
        raise StoreError(f"{job_id} cannot be deleted: {error.strerror or error}") from error


def _ended(store: Store, job_id: str) -> EndedJob:
    job = store.job(job_id)
    view = FoldedJournal(job).catch_up()
    if view["state"] not in TERMINAL_STATES and is_lost(job):
        return _lost(store, job_id)
    if view["state"] not in TERMINAL_STATES:
        raise Conflict(f"{job_id} is {view['state']}; `jupyter hyperpod stop {job_id}` ends it, then delete it")
    if followed.is_fetching(job):
        raise Conflict(f"{job_id} has ended, and what its head has written is being fetched; delete it after that")
    return EndedJob(job_id, view["state"], _end_s(view), _size(store, job_id))


def _lost(store: Store, job_id: str) -> EndedJob:
    """A job without a journal, where no process of it is known. Raises Conflict where there may be one."""
    path = store.jobs / job_id
    on = [node["node"] for node in cluster.status(store)["nodes"] if job_id in node["jobs"]]
    if on:
        raise Conflict(
            f"the journal of {job_id} is lost, and its processes run on {few(on)}; `jupyter hyperpod stop {job_id}` "
            "ends them within half a minute, then delete it"
        )
    with suppress(SpecError, StoreError):  # a job whose specification is lost, too, is started by nobody
        backend = load(store.job(job_id).spec().backend)
        if not backend.capabilities.owns_nodes:
            raise Conflict(
                f"the journal of {job_id} is lost, and nodes of {backend.title} may still run it; end it there, such "
                f"as with {backend.title}'s own command, then remove {path}"
            )
    return EndedJob(job_id, "lost", os.stat(path).st_mtime, _size(store, job_id))


def _all_ended(store: Store, states: Collection[str]) -> Iterator[EndedJob]:
    for job_id in store.job_ids():
        try:
            view = FoldedJournal(store.job(job_id)).catch_up()
        except HyperpodError:
            continue  # deleted meanwhile
        if view["state"] in TERMINAL_STATES and view["state"] in states:
            yield EndedJob(job_id, view["state"], _end_s(view), _size(store, job_id))


def _end_s(view: View) -> float:
    return float(view["ended_s"] or view["updated_s"] or 0.0)


def _size(store: Store, job_id: str) -> int:
    total = 0
    for folder, _, names in os.walk(store.jobs / job_id):
        for name in names:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except OSError:
                continue
    return total


def _record(job: EndedJob) -> dict[str, object]:
    return {"id": job.job_id, "state": job.state, "ended_s": job.ended_s, "bytes": job.size}


def _sentence(found: list[EndedJob], what: str) -> str:
    named = found[0].job_id if len(found) == 1 else plural(len(found), "job")
    return f"{what}: {named}, {format_bytes(sum(job.size for job in found))}"
