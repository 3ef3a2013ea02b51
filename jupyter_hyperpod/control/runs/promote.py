"""Promotes a job: submits its code, parameters, environment and mounts to another backend, and shows what differs.

Code is the same by its digest, the environment by its fingerprint, mounts by their names. What differs although nobody
asked for it is accepted by a person, or nothing is submitted.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...core.backend_options import TABLES
from ...core.backends import BACKENDS
from ...core.elastic import ElasticRange
from ...core.errors import Conflict, HyperpodError, NotFound, SpecError, StoreError
from ...core.mount_spec import MountSpec
from ...core.options import argument
from ...core.spec import HIDDEN, JobSpec
from ...core.units import few, plural
from ...policy import parity
from ...storage.fingerprint import record
from ...storage.source_record import FOLDER, SourceRecord
from ...storage.store import JobStore, Store
from .. import jobs, lookup
from ..option_parser import add_backend_options, chosen_backend_options
from ..parity import before_launch
from ..submit_options import add_rerun_options
from ..text_tables import Answer, Cell, Table

HELP = "submit a job's code, parameters, environment and mounts to another backend, and show what differs"
GRAVE = 3  # differences of the environment of a greater rank change no result
FILES_SEEN = 100_000
CHOSEN, ENVIRONMENT, MOUNTS, CODE, UNKNOWN = "chosen", "environment", "mounts", "code", "not compared"
_NOT_OURS = ("node_modules", "__pycache__")
_OPTIONS = ("backend", "nodes", "elastic", "name", "queue", "priority", "spares", *TABLES)


@dataclass(frozen=True, slots=True)
class PromotionChange:
    """Something that is not as it was. ``asks``: nobody asked for it, and it may change what the job does."""

    part: str
    name: str
    then: str
    now: str
    change: str = ""
    asks: bool = False


@dataclass(frozen=True, slots=True)
class Promotion:
    """What is submitted, and what of it is not as in the earlier ``job``."""

    job: JobStore
    source: str
    fields: Mapping[str, Any]
    spec: JobSpec
    changes: Sequence[PromotionChange]

    @property
    def asks(self) -> list[PromotionChange]:
        """The changes that a person has to accept."""
        return [change for change in self.changes if change.asks]

    @property
    def sentence(self) -> str:
        """What is the same, and how much is not."""
        kept = f"{self.job.id} on {self.spec.backend}: the same code (digest {self.spec.cell_digest[:12]})"
        asks = self.asks
        return f"{kept}; {plural(len(asks), 'difference')} that nobody chose" if asks else f"{kept}, nothing unasked"

    def to_json(self) -> dict[str, Any]:
        """The promotion for programs; values of environment variables are never in it."""
        return {
            "job": self.job.id,
            "backend": self.spec.backend,
            "code": self.spec.cell_digest,
            "nodes": self.spec.nodes,
            "elastic": str(self.spec.elastic) if self.spec.elastic else "",
            "name": self.spec.name,
            "queue": self.spec.queue,
            "options": dict(getattr(self.spec, self.spec.backend, None) or {}),
            "sentence": self.sentence,
            "changes": [asdict(change) for change in self.changes],
            "asks": len(self.asks),
        }

    def table(self) -> Table:
        """The changes for a terminal."""
        rows = [
            (Cell(change.part, "warn" if change.asks else "quiet"), change.name, change.then, change.now, change.change)
            for change in self.changes
        ]
        return Table(("PART", "WHAT", "THEN", "NOW", "WHAT THAT MAY CHANGE"), rows, "nothing differs")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of ``promote`` without the job."""
    add = parser.add_argument
    add("--backend", required=True, choices=tuple(BACKENDS), help="where it is to run")
    add("--nodes", type=int, metavar="N", help="nodes to start on (default: as before)")
    add("--elastic", type=argument(ElasticRange.parse), metavar="RANGE", help="fewest and most nodes, as in 2:8")
    add_backend_options(parser)
    add("--queue", metavar="NAME", help="queue of the new job (default: as before)")
    add("--priority", type=int, metavar="P", help="priority of the new job (default: as before)")
    add("--spares", type=int, metavar="K", help="spares of the new job (default: as before)")
    add_rerun_options(parser)
    add("--dry-run", action="store_true", help="show what differs, submit nothing")
    add("--accept-differences", action="store_true", help="submit although something differs that nobody chose")


def chosen(options: argparse.Namespace) -> dict[str, Any]:
    """The fields of a specification that were chosen on a command line."""
    names = ("backend", "nodes", "elastic", "name", "queue", "priority", "spares", "env")
    found = {name: value for name in names if (value := getattr(options, name)) is not None}
    return found | chosen_backend_options(options)


def run(store: Store, job_id: str, options: argparse.Namespace) -> tuple[Answer, str]:
    """Carry out ``promote``; return what is said, and the id of the new job, "" after a dry run.

    Raises the errors of `plan` and `submit`.
    """
    found = plan(store, job_id, chosen(options))
    new = "" if options.dry_run else submit(store, found, accept=options.accept_differences)
    told = found.to_json() | ({"id": new} if new else {"dry_run": True})
    return Answer(told, found.table(), [f"{'would promote' if options.dry_run else 'promoted'} {found.sentence}"]), new


def plan(store: Store, job_id: str, chosen: Mapping[str, Any]) -> Promotion:
    """What would be submitted with the ``chosen`` fields. Submits nothing.

    Raises SpecError for a choice that fits nothing, Conflict where the job cannot be the same, NotFound.
    """
    store.refuse_foreign()
    job = store.job(job_id)
    before = job.spec()
    given = {name: value for name, value in chosen.items() if value is not None}
    if given.get("backend", before.backend) == before.backend:
        raise SpecError(f"{job_id} was submitted to {before.backend}; choose another backend, or `rerun` it there")
    source = _same_source(store, job, before)
    fields = lookup.fields_of(job, given.pop("env", None)) | lookup.no_trial(before)
    fields |= dict.fromkeys(TABLES, {}) | given  # options of one scheduler mean nothing to another
    fields["elastic"] = _range(before, given)
    if "elastic" in given and "nodes" not in given:
        fields["nodes"] = fields["elastic"].maximum if fields["elastic"] else before.nodes
    fields["mounts"] = tuple(_mounts(store, job_id, before.mounts))
    fields["origin"] = {**before.origin, "promoted_from": job_id}
    spec = jobs.make_spec(fields, before.cell_digest)
    changes = [*_chosen(before, spec), *_mount_changes(before, spec), *_module_changes(job, before)]
    return Promotion(job, source, fields, spec, [*changes, *_environment(store, job, spec)])


def submit(store: Store, found: Promotion, *, accept: bool) -> str:
    """Submit a promotion; return the new job's id. Raises Conflict where something differs that nobody accepts."""
    if (asks := found.asks) and not accept:
        told = few([f"{change.name} {change.then} then, {change.now} now" for change in asks], 4)
        raise Conflict(
            f"{found.job.id} would not run as it did: {told}; look at all of it with --dry-run, then mend it, or "
            "accept it with --accept-differences"
        )
    return jobs.submit(store, found.source, found.fields, earlier=found.job)


def _same_source(store: Store, job: JobStore, spec: JobSpec) -> str:
    source = store.cell(spec.cell_digest)
    if hashlib.sha256(source.encode()).hexdigest() != spec.cell_digest:
        raise Conflict(f"the code of {job.id} is not what its digest says; it was changed in {store.cells}")
    return source


def _range(before: JobSpec, given: Mapping[str, Any]) -> ElasticRange | None:
    """The elastic range: that which was chosen, else the earlier one widened to the chosen number of nodes."""
    elastic = given.get("elastic", before.elastic)
    if isinstance(elastic, str):
        elastic = ElasticRange.parse(elastic) if elastic else None
    nodes = given.get("nodes")
    if elastic is None or nodes is None or "elastic" in given or elastic.allows(nodes):
        found: ElasticRange | None = elastic
        return found
    return ElasticRange(min(elastic.minimum, nodes), max(elastic.maximum, nodes))


def _mounts(store: Store, job_id: str, before: Sequence[MountSpec]) -> Iterator[MountSpec]:
    """The mounts of the same names, as they are in the table now."""
    now = {spec.name: spec for spec in jobs.mounts_of(store)}
    if missing := [spec for spec in before if spec.name not in now]:
        raise Conflict(
            f"{job_id} used the mount{'s' if len(missing) > 1 else ''} {few([one.name for one in missing])}, "
            f"which this store does not have any more; `mount add {missing[0].name}` brings it back"
        )
    return (now[spec.name] for spec in before)


def _chosen(before: JobSpec, spec: JobSpec) -> Iterator[PromotionChange]:
    """What was chosen otherwise, and what the other backend brings along."""
    for name in _OPTIONS:
        then, now = getattr(before, name), getattr(spec, name)
        if then != now:
            yield PromotionChange(CHOSEN, name, _text(then), _text(now))


def _mount_changes(before: JobSpec, spec: JobSpec) -> Iterator[PromotionChange]:
    now = {mount.name: mount for mount in spec.mounts}
    for then in before.mounts:
        for name in ("driver", "source", "node_path", "read_only", "options", "credentials"):
            values = getattr(then, name), getattr(now[then.name], name)
            if values[0] != values[1]:
                said = "which data are read, and where they are found"
                yield PromotionChange(MOUNTS, f"{then.name}: {name}", _text(values[0]), _text(values[1]), said, True)


def _module_changes(job: JobStore, spec: JobSpec) -> Iterator[PromotionChange]:
    """Own modules below the working directory that the job imported, and that are not as they were.

    Those of included folders are copied again from the job itself.
    """
    with suppress(OSError):
        recorded = set(os.listdir(job.path / FOLDER))
        sources = SourceRecord(job.path)
        files = list(itertools.islice(_files(spec.working_directory), FILES_SEEN + 1)) if recorded else []
        if len(files) > FILES_SEEN:
            left = f"imported modules beyond {FILES_SEEN:,} files of {spec.working_directory}"
            yield PromotionChange(UNKNOWN, left, "-", "-", "what the modules do", True)
        for path in (path for path in files[:FILES_SEEN] if path.endswith(".py")):
            then = sources.known(path)
            if then is not None and (now := Path(path).read_bytes()) != then:
                shown = os.path.relpath(path, spec.working_directory)
                yield PromotionChange(
                    CODE, f"imported {shown}", _digest(then), _digest(now), "what the module does", True
                )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def _files(folder: str) -> Iterator[str]:
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _NOT_OURS]
        yield from (os.path.join(place, name) for name in names)


def _environment(store: Store, job: JobStore, spec: JobSpec) -> Iterator[PromotionChange]:
    """What of the environment differs, and what could not be compared."""
    try:
        then = {**record.of_job(job.path), "given": sorted({*spec.env, *spec.env_from})}
    except (NotFound, StoreError, HyperpodError):
        yield PromotionChange(UNKNOWN, "the environment", "not kept", "-", "anything that packages change", True)
        return
    now, _ = before_launch.fingerprint_of(store, spec)
    now = {**now, "given": then["given"]}
    for one in parity.differences(then, now):
        if one.rank <= GRAVE:
            yield PromotionChange(ENVIRONMENT, one.name, one.there, one.here, one.change, True)
    unknown = parity.unknown(then, now)
    for name in unknown:
        yield PromotionChange(UNKNOWN, name, "-", "-", asks=name == "Python")


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={one}" for name, one in value.items()) or "none"
    return "none" if value in (None, "") else HIDDEN if value == HIDDEN else str(value)
