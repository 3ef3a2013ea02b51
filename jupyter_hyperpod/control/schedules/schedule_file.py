"""A schedule on the disk: what it runs, when, and what came of its last times. Private to its owner, as jobs are.

<store>/schedules/<name>/schedule.json  when it runs, whether it is paused, its last runs; replaced as a whole
<store>/schedules/<name>/cell           the source, as it was when it was scheduled
<store>/schedules/<name>/spec.json, environment, include/, fingerprint.json  as in the directory of a job

Who changes one holds the lock of all schedules of the store meanwhile.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ...core.errors import Conflict, HyperpodError, NotFound, SpecError, StoreError
from ...core.names import validate_name
from ...core.options import near_matches
from ...policy.scheduled_runs import ONCE, SKIP
from ...storage.fingerprint import record
from ...storage.source_record import SourceRecord
from ...storage.store import ENVIRONMENT, JobStore, Store, private_directory, write_private
from ...system.locks import one_at_a_time
from .. import jobs
from ..parity import before_launch
from ..sources import own_imports

FOLDER, FILE, CELL = "schedules", "schedule.json", "cell"
LOCK, LOCK_WAIT_S = "schedules.lock", 120.0
RUNS_KEPT = 100
_HIDDEN = "."  # how names of directories begin that are being made or deleted


@dataclass(frozen=True, slots=True)
class ScheduledRun:
    """One time of a schedule and what came of it: the job's id, or "" where there is none; ``said`` gives the reason.

    ``due_s``: the time that had come, in seconds since the Unix epoch; ``asked``: it is when somebody asked for a run.
    """

    due_s: float
    job: str
    said: str
    asked: bool = False


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a source runs. ``settled_s``: times up to this one need nothing more. ``runs``: the newest at the end.

    ``starting``: a run that is decided on; whoever finds it here submits its job, which exists once at most.
    ``keep_runs``: how many of its jobs that have ended are kept, 0 for all.
    """

    name: str
    cron: str
    zone: str
    created_s: float
    settled_s: float
    by: str = ""
    catch_up: str = ONCE
    overlap: str = SKIP
    keep_runs: int = 0
    paused: bool = False
    starting: ScheduledRun | None = None
    runs: tuple[ScheduledRun, ...] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary; inverse of `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Schedule:
        """Build from `to_json`; unknown keys of a newer version are ignored. Raises TypeError, ValueError, KeyError."""
        known = {one.name for one in fields(cls)}
        values = {key: value for key, value in record.items() if key in known}
        values["runs"] = tuple(map(_run, values.get("runs", ())))
        values["starting"] = _run(values["starting"]) if values.get("starting") else None
        return cls(**values)

    def settled(self, run: ScheduledRun) -> Schedule:
        """The schedule after a time of it has become a run, or none. A run that was asked for settles no time."""
        settled_s = self.settled_s if run.asked else max(self.settled_s, run.due_s)
        return replace(self, starting=None, settled_s=settled_s, runs=(*self.runs, run)[-RUNS_KEPT:])


def _run(record: Mapping[str, Any]) -> ScheduledRun:
    return ScheduledRun(float(record["due_s"]), str(record["job"]), str(record["said"]), bool(record.get("asked")))


def names(store: Store) -> list[str]:
    """The names of all schedules, in order. Raises StoreError."""
    try:
        found = os.listdir(store.root / FOLDER)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise StoreError(f"cannot read {store.root / FOLDER}: {error.strerror}") from error
    return sorted(name for name in found if not name.startswith(_HIDDEN))


def directory(store: Store, name: str) -> JobStore:
    """What a schedule runs, in a directory like that of a job. Raises NotFound, SpecError."""
    path = store.root / FOLDER / validate_name(name, "schedule")
    if not path.is_dir():
        known = names(store)
        there = "`schedule list` shows them" if known else "`submit FILE --schedule CRON` makes one"
        raise NotFound(f"no schedule {name!r}{near_matches(name, known)}; {there}")
    return JobStore(path)


def read(store: Store, name: str) -> Schedule:
    """A schedule. Raises NotFound, SpecError, StoreError."""
    path = directory(store, name).path / FILE
    try:
        return Schedule.from_json(json.loads(path.read_bytes()))
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise StoreError(f"{path} is not a schedule: {error}; `schedule delete {name}` removes it") from None


def source(store: Store, name: str) -> str:
    """The source that a schedule runs. Raises NotFound, StoreError."""
    path = directory(store, name).path / CELL
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error


def write(store: Store, schedule: Schedule) -> None:
    """Replace a schedule. Raises NotFound where it has been deleted, StoreError."""
    _write(directory(store, schedule.name).path, schedule)


def _write(folder: Path, schedule: Schedule) -> None:
    write_private(folder / FILE, json.dumps(schedule.to_json()).encode())


@contextmanager
def changing(store: Store, wait_s: float = LOCK_WAIT_S) -> Iterator[None]:
    """One process at a time changes the schedules of a store. Raises Conflict, StoreError."""
    store.prepare()
    busy = f"another process has been changing the schedules of {store.root} for {wait_s:.0f} s; try again"
    with one_at_a_time(store.root / LOCK, busy, wait_s, where_possible=True):
        yield


def taken(store: Store, name: str) -> str:
    """Why a new schedule cannot have this name; "" where it can."""
    if not (store.root / FOLDER / validate_name(name, "schedule")).exists():
        return ""
    return (
        f"there is a schedule {name} already; give this one another --name, or remove that one with "
        f"`schedule delete {name}`"
    )


def create(store: Store, source: str, spec_fields: Mapping[str, Any], schedule: Schedule) -> list[str]:
    """Keep a schedule with what it runs; return what differs in the environment of its jobs, as sentences.

    Raises Conflict where there is one of that name, and the errors of `jobs.submit`.
    """
    given, fill = jobs.checked(store, source, spec_fields)
    with changing(store):
        spec = jobs.make_spec(given, store.put_cell(source))
        final = store.root / FOLDER / validate_name(schedule.name, "schedule")
        if problem := taken(store, schedule.name):
            raise Conflict(problem)
        found, warnings = before_launch.fingerprint_of(store, spec)
        building = private_directory(final.parent) / f"{_HIDDEN}new-{secrets.token_hex(4)}"
        try:
            private_directory(building)
            write_private(building / "spec.json", json.dumps(spec.to_json()).encode())
            write_private(building / CELL, source.encode())
            if spec.env:
                write_private(building / ENVIRONMENT, json.dumps(dict(spec.env)).encode())
            fill(building)
            kept = SourceRecord(building)  # a run says which of them have changed since
            for path, content in own_imports.found(source, own_imports.folders(given)).items():
                kept.of(path, content)
            with suppress(OSError):  # a note that the schedule does not need
                record.leave(building, found)
            _write(building, schedule)
            os.rename(building, final)
        except (HyperpodError, OSError) as error:
            shutil.rmtree(building, ignore_errors=True)
            if isinstance(error, OSError):
                raise StoreError(f"cannot create {final}: {error.strerror}") from error
            raise
    return warnings


def delete(store: Store, name: str) -> None:
    """Remove a schedule; its jobs stay. Raises NotFound, StoreError."""
    with changing(store):
        path = directory(store, name).path
        gone = path.with_name(f"{_HIDDEN}deleted-{secrets.token_hex(4)}")
        try:
            os.rename(path, gone)
            shutil.rmtree(gone)
        except OSError as error:
            raise StoreError(f"the schedule {name} cannot be deleted: {error.strerror or error}") from error


def all_of(store: Store) -> tuple[list[Schedule], list[str]]:
    """All schedules, and sentences about those that cannot be read."""
    found, problems = [], []
    for name in names(store):
        try:
            found.append(read(store, name))
        except NotFound:
            continue  # deleted meanwhile
        except (StoreError, SpecError) as error:
            problems.append(str(error))
    return found, problems
