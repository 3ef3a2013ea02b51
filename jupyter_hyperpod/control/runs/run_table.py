"""RunTable: a row of each job of a store. A job that has ended is read once, and again when somebody wrote on it."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ...core.errors import HyperpodError
from ...core.events import TERMINAL_STATES
from ...core.spec import JobSpec
from ...core.views import View
from ...storage.folded import FoldedJournal, is_lost
from ...storage.store import JobStore, Store
from ...system.users import user_name
from ..report import LOST
from . import run_record
from .row_cache import CachedRow, RowCache

READ_S = 0.4  # of jobs that are new here, in one answer; the rest follows in the next ones
FIRST_S = 0.1  # the same in the first answer: a person sees the newest jobs soon
GOODPUT_S = 0.3  # of journals that are read for the goodput, the same
SETTLED_S = 2.0  # a directory that changed later may change again without another time
METRICS_SHOWN = 24
TEXT_SHOWN = 300
DIGEST = 16  # characters by which a source is named
SOURCES_KEPT_BYTES = 64 << 20

Row = dict[str, Any]
LASTING = ("person", "queue", "code", "sweep", "parameters")
COLUMNS = (
    *(
        "id",
        "name",
        "priority",
        "backend",
        "step",
        "submitted_s",
        "started_s",
        "ended_s",
        "state",
        "reason",
        "notebook",
    ),
    *("nodes", "steps", "loss", "metrics", "incidents", "goodput", "tags", "note", "archived", *LASTING),
)


@dataclass
class _Known:
    """What is known of a job. ``stamp``: the time of its journal's directory when it was read, 0 for "read again"."""

    row: Row
    version: int
    stamp: int = 0
    journal: FoldedJournal | None = None  # of a job that has not ended
    wants_goodput: bool = False


class RunTable:
    """The rows, in numbered versions. May be used from any thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._jobs = str(store.jobs)  # thousands of paths are looked at per answer: a `Path` for each takes longer
        self._instance = secrets.token_hex(4)
        self._version = 0
        self._known: dict[str, _Known] = {}
        self._gone: dict[str, int] = {}
        self._digests: dict[str, str] = {}  # what rows name, and the whole digest
        self._sources: dict[str, str] = {}
        self._source_bytes = 0
        self._cache = RowCache(store.root, COLUMNS)
        self._lock = threading.Lock()
        self._filling = threading.Lock()

    def changes(self, since: int = 0, instance: str = "") -> dict[str, Any]:
        """The rows that differ from the version ``since`` of the same ``instance``, or all of them.

        ``unread``: how many jobs the next answers will add; ``unfinished``: how many rows still lack their goodput.
        Raises StoreError.
        """
        if since and instance == self._instance and self._filling.acquire(blocking=False):
            try:
                self._fill()
            finally:
                self._filling.release()
        with self._lock:
            unread = self._refresh()
            since = since if instance == self._instance else 0
            return {
                "instance": self._instance,
                "version": self._version,
                "whole": since == 0,
                "rows": [known.row for known in self._known.values() if known.version > since],
                "gone": [job_id for job_id, version in self._gone.items() if version > since] if since else [],
                "unread": unread,
                "unfinished": sum(known.wants_goodput for known in self._known.values()),
            }

    def states(self, job_ids: Iterable[str]) -> dict[str, str]:
        """The states of some jobs; one that is not there has none."""
        found = {}
        for job_id in dict.fromkeys(job_ids):
            if (self._store.jobs / job_id).is_dir():
                with self._lock:  # others may ask between two journals
                    self._look(job_id, self._version + 1)
                    if known := self._known.get(job_id):
                        found[job_id] = str(known.row["state"])
        return found

    def sources_with(self, words: Iterable[str]) -> dict[str, list[str]]:
        """Word -> the sources that contain it, whatever its case, by the names that rows have for them."""
        with self._lock:
            digests = dict(self._digests)
        texts = {name: self._source(name, digest) for name, digest in digests.items()}
        return {word: [name for name, text in texts.items() if word.casefold() in text] for word in words}

    def _source(self, name: str, digest: str) -> str:
        if (text := self._sources.get(name)) is not None:
            return text
        try:
            text = self._store.cell(digest).casefold()
        except (HyperpodError, OSError, UnicodeDecodeError):
            return ""  # it may be there the next time
        if self._source_bytes + len(text) <= SOURCES_KEPT_BYTES:
            self._sources[name] = text
            self._source_bytes += len(text)
        return text

    def _refresh(self) -> int:
        """Read what is new; return how many jobs wait for the next time."""
        ids = self._store.job_ids()
        there = set(ids)
        self._cache.load()
        for job_id in [job_id for job_id in self._known if job_id not in there]:
            del self._known[job_id]
            self._gone[job_id] = self._version = self._version + 1
        left_s, unread, version = READ_S if self._known else FIRST_S, 0, self._version + 1
        for job_id in ids:
            if job_id in self._known:
                self._look(job_id, version)
            elif left_s > 0:  # time for jobs that are new here only: with many others, none would be read any more
                began_s = time.monotonic()
                self._look(job_id, version)
                left_s -= time.monotonic() - began_s
            else:
                unread += 1
        self._cache.flush(there)
        return unread

    def _look(self, job_id: str, version: int) -> None:
        """Read what is new of one job."""
        with suppress(HyperpodError, OSError):  # deleted meanwhile, or no job
            known = self._known.get(job_id)
            fresh = self._read(job_id, known)
            if fresh is not known:
                fresh.version = self._version = version
                self._known[job_id] = fresh
                self._gone.pop(job_id, None)

    def _read(self, job_id: str, known: _Known | None) -> _Known:
        """What is known of a job now; the same object where its row is the same."""
        if known is not None and known.journal is not None:
            if not known.journal.poll():
                return known
            return self._new(JobStore(self._store.jobs / job_id), known.journal, known)
        stamp = _stamp(f"{self._jobs}/{job_id}/events")
        if known is not None and stamp and known.stamp == stamp:
            return known
        if known is None and (cached := self._cache.get(job_id, stamp)):
            if cached.digest:
                self._digests[cached.digest[:DIGEST]] = cached.digest
            return _Known(cached.row, 0, stamp)
        job = JobStore(self._store.jobs / job_id)
        fresh = self._new(job, FoldedJournal(job), known)
        fresh.stamp = stamp
        self._remember(job_id, fresh)
        if known is not None and fresh.row == known.row:
            known.stamp, known.journal = stamp, fresh.journal
            return known
        return fresh

    def _remember(self, job_id: str, known: _Known) -> None:
        """Put a row into the cache that no event of this journal will change."""
        if known.journal is None and not known.wants_goodput:
            digest = self._digests.get(known.row["code"], "")
            self._cache.put(job_id, CachedRow(known.stamp, digest, known.row))

    def _new(self, job: JobStore, journal: FoldedJournal, before: _Known | None) -> _Known:
        view = journal.catch_up()
        ended = view["state"] in TERMINAL_STATES
        row = self._row(job, view, before.row if before else None)
        wants = ended and view["step"] > 0 and row["goodput"] is None
        return _Known(row, 0, 0, None if ended else journal, wants)

    def _row(self, job: JobStore, view: View, before: Row | None) -> Row:
        if before is None:
            lasting_values = self._lasting(job)
        else:
            lasting_values = {name: before[name] for name in LASTING}
        lost = view["state"] not in TERMINAL_STATES and is_lost(job)
        labels, session = view["labels"], view["session"] or {}
        return {
            "id": job.id,
            "name": view["name"] or job.id.rpartition("-")[0],
            **{name: view[name] for name in ("priority", "backend", "step", "submitted_s", "started_s", "ended_s")},
            "state": "lost" if lost else view["state"],
            "reason": (LOST if lost else _reason(view))[:TEXT_SHOWN],
            "notebook": str(view["origin"].get("notebook", ""))[:TEXT_SHOWN],
            "nodes": view["world_size"] or view["nodes_wanted"],
            "steps": session.get("total_steps"),
            "loss": _number(view["loss"]),
            "metrics": dict(_numbers(view["metrics"])),
            "incidents": len(view["incidents"]),
            "goodput": before["goodput"] if before else None,
            "tags": labels["tags"],
            "note": labels["note"],
            "archived": labels["archived"],
            **lasting_values,
        }

    def _lasting(self, job: JobStore) -> Row:
        """What never changes of a job."""
        found: Row = {"person": "", "queue": "", "code": "", "sweep": "", "parameters": {}}
        with suppress(OSError):
            found["person"] = user_name(job.path.stat().st_uid)
        with suppress(HyperpodError):
            spec: JobSpec = job.spec()
            digest = spec.cell_digest
            self._digests[digest[:DIGEST]] = digest
            chosen = run_record.chosen(spec)
            if spec.trial is not None:
                found["sweep"] = spec.trial.sweep
                chosen["trial"] = f"{spec.trial.number} of {spec.trial.sweep}"
                chosen |= {name: str(value) for name, value in spec.trial.values.items()}
            shown = {name: value[:TEXT_SHOWN] for name, value in chosen.items()}
            found |= {"queue": spec.queue, "code": digest[:DIGEST], "parameters": shown}
        return found

    def _fill(self) -> None:
        """Read the goodput of some jobs that have ended, the newest first."""
        with self._lock:
            waiting = [(job_id, known) for job_id, known in self._known.items() if known.wants_goodput]
        waiting.sort(key=lambda one: one[1].row["submitted_s"] or 0.0, reverse=True)
        began_s = time.monotonic()
        for job_id, known in waiting:
            if time.monotonic() - began_s > GOODPUT_S:
                return
            goodput = None
            with suppress(HyperpodError, OSError):
                goodput = run_record.read_journal(JobStore(self._store.jobs / job_id)).time.goodput
            with self._lock:
                known.wants_goodput = False
                if goodput is not None:
                    known.row = known.row | {"goodput": round(goodput, 5)}
                    known.version = self._version = self._version + 1
                self._remember(job_id, known)


def _stamp(journal: str) -> int:
    """The time of a journal's directory, which each new file in it changes; 0 while it may change again unseen."""
    changed_ns = os.stat(journal).st_mtime_ns
    return changed_ns if abs(time.time() - changed_ns / 1e9) > SETTLED_S else 0


def _reason(view: View) -> str:
    error = view["error"]
    if error:
        return f"{error['type']}: {error['message']}" if error.get("message") else str(error["type"])
    return str(view["reason"])


def _number(value: Any) -> float | None:
    """A finite number with the digits that people read."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) == float("inf") or value != value:
        return None
    return float(f"{value:.6g}")


def _numbers(metrics: View) -> Iterable[tuple[str, float]]:
    found = ((str(name)[:60], _number(value)) for name, value in metrics.items())
    kept = [(name, value) for name, value in found if value is not None]
    return kept[:METRICS_SHOWN]
