"""Submits, lists, follows and commands jobs. A submit loads nothing heavy and returns in milliseconds."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..backends import load
from ..backends.types import SHARED_NETWORK
from ..core import member_commands
from ..core.backends import DEFAULT_BACKEND
from ..core.elastic import ElasticRange
from ..core.errors import ClusterError, Conflict, HyperpodError, NotFound, ProtocolError, SpecError, StoreError
from ..core.events import FAULTS, TARGETS, TERMINAL_STATES, THROTTLE_LIMIT, THROTTLE_LIMIT_S, Command, Event
from ..core.mount_spec import MountSpec
from ..core.names import validate_job_id
from ..core.options import near_matches
from ..core.people import Person, shown
from ..core.spec import JobSpec
from ..core.views import View, new_job_view
from ..mounts import table
from ..storage import included, room
from ..storage.fingerprint import record
from ..storage.folded import FoldedJournal, is_lost
from ..storage.journal import JournalFollower, command_writer, event_writer, follow_events
from ..storage.sharing import place_of_commands
from ..storage.store import JobStore, Store
from ..system import portable, variables
from ..system.users import own_name
from . import cluster
from .clusters.shape import known_shape
from .parity import before_launch
from .remote import followed
from .report import LOST
from .sources import own_imports
from .sources.source import check_source
from .watch import is_of_submission

DEFAULT_NAME = "job"


def submit(
    store: Store,
    source: str,
    spec_fields: Mapping[str, Any] | None = None,
    *,
    earlier: JobStore | None = None,
    once: str = "",
    **more: Any,
) -> str:
    """Store the cell, create the job, wake the cluster (starting it where none runs) and return the job's id.

    `spec_fields` (or keywords) are the fields of JobSpec, all optional: ``nodes`` defaults to 1, or to the maximum of
    ``elastic`` (or its text, "2:8"), ``working_directory`` and ``python`` to this process's own. ``earlier``: the job
    whose copies of included folders are taken. ``once``: what this submission is called; where there is a job of the
    same name from a submission that was called so, its id is returned. Raises SpecError for a bad request, StoreError
    where the store refuses (then nothing of the job remains), ClusterError where the cluster does not start: the job
    then stays pending and starts with the next cluster.
    """
    fields, fill = checked(store, source, {**(spec_fields or {}), **more}, earlier)
    store.prepare()
    spec = make_spec(fields, store.put_cell(source))
    job = store.job_made(spec.name, once) if once else None
    if job is None:
        job = _create(store, spec, fill, earlier, once)
    else:
        _announce_late(job)
    _wake(store, job)
    return job.id


def checked(
    store: Store, source: str, spec_fields: Mapping[str, Any], earlier: JobStore | None = None
) -> tuple[dict[str, Any], Callable[[Path], None]]:
    """The complete fields of a submission, and what copies the folders that it includes into a job's directory.

    Writes nothing. Raises as `submit` does.
    """
    store.refuse_foreign()
    fields = complete(spec_fields)
    check_source(source, fields.get("filename", "<cell>"))
    backend = fields.get("backend", DEFAULT_BACKEND)
    followed.check_backend(backend, fields.get(backend) or {})
    fields.setdefault("mounts", mounts_of(store))
    spec = make_spec(fields, "")
    if problem := load(spec.backend).refusal(spec.backend_options, str(store.root), spec.start_minimum):
        raise ClusterError(problem)
    if earlier is not None:
        fields["include"] = earlier.spec().include
        return fields, partial(own_imports.bring_again, earlier, spec)
    folders = [included.survey(folder) for folder in fields.get("include", ())]
    fields["include"] = tuple(str(folder.folder) for folder in folders)
    return fields, partial(own_imports.bring, source, fields, folders)


def mounts_of(store: Store) -> tuple[MountSpec, ...]:
    """The mounts of a new job: the present table without the default mount. Accesses none of them."""
    default = table.default_mount(store)
    return tuple(spec for spec in table.table(store).values() if spec != default)


def make_spec(fields: Mapping[str, Any], cell_digest: str) -> JobSpec:
    """Build the specification; raises SpecError for an unknown field or an unavailable backend."""
    backend = load(fields.get("backend", DEFAULT_BACKEND))
    if fields.get("serve") and not backend.capabilities.serves:
        raise SpecError(f"deployments do not run on {backend.title}: its nodes run jobs that train, not replicas")
    if unknown := min(fields.keys() - (known := JobSpec.__dataclass_fields__).keys(), default=""):
        raise SpecError(f"{unknown!r} is no field of a job{near_matches(unknown, [*known])}")
    return JobSpec(**{**fields, "cell_digest": cell_digest})


def complete(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a specification with what a submission adds where they say nothing."""
    elastic = fields.get("elastic")
    if isinstance(elastic, str):
        elastic = ElasticRange.parse(elastic)
    defaults = {"name": DEFAULT_NAME, "nodes": elastic.maximum if elastic else 1}
    given = {name: value for name, value in fields.items() if value is not None}
    complete = {**defaults, **given, "elastic": elastic}
    complete["working_directory"] = complete.get("working_directory") or _here()
    complete["python"] = complete.get("python") or sys.executable
    complete["env"] = variables.samples_switched_off() | (complete.get("env") or {})
    return complete


def _here() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # the directory was deleted meanwhile
        return os.path.expanduser("~")


def _create(
    store: Store,
    spec: JobSpec,
    fill: Callable[[Path], None] | None = None,
    earlier: JobStore | None = None,
    once: str = "",
) -> JobStore:
    found, warnings = before_launch.fingerprint_of(store, spec)
    warnings += before_launch.since(earlier, found) + own_imports.since(store, earlier, spec) if earlier else []
    job = store.create_job(spec, fill, once)
    with suppress(OSError):  # a note that the job does not need
        record.leave(job.path, found)
    try:
        _announce(job, spec, warnings)
    except StoreError:
        store.remove_job(job.id)
        raise
    return job


def _announce(job: JobStore, spec: JobSpec, warnings: Sequence[str] = ()) -> None:
    with event_writer(job.events, "control") as journal:
        journal.append("job.submitted", {"id": job.id, "spec": spec.to_json()}, durable=True)
        for text in warnings:
            journal.append("warning.raised", {"text": text})


def _announce_late(job: JobStore) -> None:
    """Tell the journal of a job of it where the process that made it ended before it did."""
    if not any(event.kind == "job.submitted" for event in follow_events(job.events).poll()):
        _announce(job, job.spec())


def submission_warnings(store: Store, job_id: str) -> list[str]:
    """What was found before the job started, as sentences: where members have another environment."""
    found = follow(store, job_id).poll()
    return [event.data["text"] for event in found if event.kind == "warning.raised" and is_of_submission(event)]


def _wake(store: Store, job: JobStore) -> None:
    if followed.keep(store, [job]):
        return
    try:
        cluster.poke(store, job.id)
    except ClusterError:
        elsewhere = not load(job.spec().backend).capabilities.owns_nodes
        none = 0 if elsewhere and not known_shape(store) else None
        if not cluster.ensure_started(store, nodes=none, spares=none):
            cluster.poke(store, job.id)  # another host that serves the store finds the job by itself


def job_view(store: Store, job_id: str) -> View:
    """The fold of the whole journal; corrupt lines become warnings. Raises NotFound or SpecError for a wrong id."""
    return _fold(store.job(job_id))


def _fold(job: JobStore) -> View:
    journal = FoldedJournal(job)
    view = journal.catch_up()
    if view["state"] not in TERMINAL_STATES and is_lost(job):
        view["reason"] = f"{LOST}: {job.events} is empty or gone; `jupyter hyperpod delete {job.id}` removes the job"
    view["warnings"].extend({"time_s": view["updated_s"], "text": f"journal: {text}"} for text in journal.problems)
    return view


def list_jobs(store: Store) -> list[View]:
    """Every job's view, newest first. A job that cannot be read is listed with a warning."""
    return _views(store, store.job_ids())


def page(store: Store, before: str, limit: int) -> tuple[list[View], int]:
    """The ``limit`` newest of the jobs older than ``before``, as `list_jobs` has them, and how many are older still.

    Raises NotFound or SpecError for a wrong id.
    """
    ids = store.job_ids()
    if before not in ids:
        store.job(before)
        raise NotFound(f"{before} is not in the list of jobs any more")
    following = ids[ids.index(before) + 1 :]
    return _views(store, following[:limit]), len(following[limit:])


def _views(store: Store, job_ids: list[str]) -> list[View]:
    views = []
    for job_id in job_ids:
        try:
            views.append(_fold(JobStore(store.jobs / validate_job_id(job_id))))
        except SpecError:
            continue
        except (HyperpodError, OSError) as error:
            view = new_job_view(job_id)
            view["warnings"].append({"time_s": None, "text": f"the job cannot be read: {error!r}"})
            views.append(view)
    return views


def follow(store: Store, job_id: str, cursor: Mapping[str, int] | None = None) -> JournalFollower[Event]:
    """Follow a job's events from `cursor` (from the beginning where None)."""
    return follow_events(store.job(job_id).events, cursor)


def stop(store: Store, job_id: str, reason: str = "", identity: str = "") -> None:
    """Ask a job to stop; the default reason is "stopped by NAME". Raises Conflict where it has ended.

    ``identity`` is the name by which a Jupyter server knows the person, here and in the other commands.
    """
    reason = reason or f"stopped by {person(identity)}"
    _command(store, _unfinished(store, job_id), "stop", {"reason": reason}, identity)


def stop_from(store: Store, job_id: str, place: str) -> str:
    """Ask a job to stop for a person at ``place``, such as "the notebook"; returns what came of it, as a sentence."""
    try:
        stop(store, job_id, reason=f"stopped by {person()} from {place}")
    except Conflict:
        return f"{job_id} has already ended"
    return f"asked {job_id} to stop"


def scale(store: Store, job_id: str, target: int, identity: str = "") -> None:
    """Ask for another number of nodes. Raises SpecError outside the job's range, Conflict where it has ended.

    A deployment may have none where its range allows it, but not before it has answered: Conflict.
    """
    view = _unfinished(store, job_id)
    store.job(job_id).spec().check_target(target, view["id"])
    if target == 0 and view["started_s"] is None:
        raise Conflict(f"{job_id} has not answered yet; scale it to 0 replicas once it has")
    _command(store, view, "scale", {"target": target}, identity)


def fault(
    store: Store,
    job_id: str,
    kind: str,
    *,
    rank: int | None = None,
    node: str | None = None,
    target: str | None = None,
    factor: float | None = None,
    duration_s: float | None = None,
    identity: str = "",
) -> None:
    """Inject a fault at a rank, at a node or at a ``target`` (coordinator, supervisor) of a running job.

    `core.events.FAULTS` has the effect and the possible targets of each kind. ``factor`` and ``duration_s`` belong to
    ``throttle``: how many times slower, for how many seconds. Raises SpecError for an unknown kind or for anything but
    one fitting target, NotFound for a rank or node that the job lacks, Conflict where the job is not running, or for a
    partition where the cluster's nodes share a network.
    """
    _check_fault(kind, {"rank": rank, "node": node, "target": target}, factor, duration_s)
    view = _unfinished(store, job_id)
    if kind == "partition":
        _check_isolated(store, view)
    if view["state"] == "pending":
        raise Conflict(f"{job_id} has not started yet; inject the fault once it is running")
    nodes = [member["node"] for member in (*view["members"], *view["spares"])]
    if node is not None and node not in nodes:
        raise NotFound(f"{job_id} has no node {node[:80]!r}; it runs on {', '.join(nodes)}")
    if rank is not None and not 0 <= rank < view["world_size"]:
        raise NotFound(f"{job_id} has no rank {rank}; its ranks are 0 to {view['world_size'] - 1}")
    data: dict[str, Any] = {"fault": kind, "rank": rank, "node": node}
    more = {"target": target, "factor": factor, "duration_s": duration_s}
    given = {name: value for name, value in more.items() if value is not None}
    _command(store, view, "fault", data | given, identity)


def _check_fault(kind: str, aims: Mapping[str, object], factor: float | None, duration_s: float | None) -> None:
    if kind not in FAULTS:
        raise SpecError(f"fault {kind!r} is unknown; expected one of {', '.join(FAULTS)}")
    given = [name for name, value in aims.items() if value is not None]
    if len(given) != 1:
        raise SpecError(f"a fault needs exactly one aim: --rank R, --node NODE or --target {'|'.join(TARGETS)}")
    aim = str(aims["target"]) if given == ["target"] else given[0]
    if aim not in FAULTS[kind].aims:
        raise SpecError(f"{kind} cannot be aimed at a {aim}; expected {' or '.join(FAULTS[kind].aims)}")
    if kind != "throttle" and (factor is not None or duration_s is not None):
        raise SpecError(f"a factor and a duration belong to throttle, not to {kind}")
    if factor is not None and not 1 < factor <= THROTTLE_LIMIT:
        raise SpecError(f"a factor of {factor:g} is impossible; expected more than 1, at most {THROTTLE_LIMIT:g}")
    if duration_s is not None and not 0 < duration_s <= THROTTLE_LIMIT_S:
        raise SpecError(f"{duration_s:g} s is impossible; expected more than 0, at most {THROTTLE_LIMIT_S:g}")


def _check_isolated(store: Store, view: View) -> None:
    if not load(view["backend"]).capabilities.cuts_network:
        raise Conflict(
            f"a node of {view['backend']} cannot be cut off the network here; only nodes of a local cluster can be, "
            "where it was started with --isolate-network"
        )
    with suppress(ClusterError):  # without a supervisor the command waits for the next one, which may refuse it
        if not cluster.request(store, {"op": "status"})["isolated"]:
            raise Conflict(SHARED_NETWORK)


def _unfinished(store: Store, job_id: str) -> View:
    view = job_view(store, job_id)
    if view["state"] in TERMINAL_STATES:
        raise Conflict(f"{job_id} has already ended: {view['state']}{': ' + view['reason'] if view['reason'] else ''}")
    return view


def person(identity: str = "") -> Person:
    """The user of this process, whom a Jupyter server may know as ``identity``."""
    return Person(own_name(), portable.user_id(), shown(identity))


def _command(store: Store, view: View, kind: str, data: Mapping[str, Any], identity: str) -> None:
    job = store.job(view["id"])
    place = place_of_commands(job.commands)
    more = {} if place == job.commands else {"job": view["id"]}  # so that it passes for no other job's
    if more:
        if followed.is_remote(job.spec()):
            raise StoreError(f"{job.id} has its head in a pod, which knows the owner of the job alone; ask the owner")
        _check_member(kind, {**data, **more}, person(identity))
    try:
        with command_writer(place, "control") as journal:
            by = replace(person(identity), uid=journal.owner())
            journal.append(kind, {**data, **more, "by": by.to_json()}, durable=True)
    except StoreError as error:
        if not room.is_full(error):
            raise
        asked = {**data, **more, "by": person(identity).to_json()}
        if more or not room.write_command(store.root, place, "control", kind, asked):
            raise StoreError(f"{error}; {room.ADVICE}") from error
    else:
        if not more:
            room.keep_room(store.root)
    with suppress(ClusterError):
        if not followed.keep(store, [job]):
            cluster.poke(store, job.id)


def _check_member(kind: str, data: Mapping[str, Any], by: Person) -> None:
    """Raise SpecError at once for what the receiver would refuse from a member of a group."""
    command = Command("control", 1, time.time(), kind, {**data, "by": by.to_json()})
    try:
        member_commands.accepted(command, str(data["job"]), "control", by)
    except ProtocolError as error:
        raise SpecError(str(error)) from None


def wait(store: Store, job_id: str, states: Collection[str] = TERMINAL_STATES, timeout_s: float = 60.0) -> View:
    """Follow a job until its state is one of `states`, or it has ended, and return its view.

    Raises TimeoutError after `timeout_s`, with the job's state.
    """
    journal = FoldedJournal(store.job(job_id))
    view = journal.catch_up()
    deadline = time.monotonic() + timeout_s
    while True:
        journal.poll()
        if view["state"] in states or view["state"] in TERMINAL_STATES:
            return view
        if time.monotonic() >= deadline:
            raise TimeoutError(
                f"{job_id} is {view['state']} after {timeout_s:g} s, expected {' or '.join(sorted(states))}"
                f"{': ' + view['reason'] if view['reason'] else ''}"
            )
        journal.wait(max(0.0, deadline - time.monotonic()))
