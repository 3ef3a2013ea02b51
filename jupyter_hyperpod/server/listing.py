"""The list of jobs as browsers have it: the whole for one that begins, then the changed fields, each encoded once."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Iterable
from typing import Any

from ..core.views import BULK, View, new_job_view
from .topic import Topic, dumps

JOBS = "jobs"
LIST_S = 0.3  # between two messages about the list
MOVING_S = 1.0  # the same where only what moves with each step has changed
CHANGES_KEPT = 16
TREND_POINTS = 24
TREND_S = 5.0
LISTED = tuple(name for name in new_job_view("") if name not in BULK)
MOVING = frozenset(
    {"step", "loss", "step_time_s", "samples_per_s", "samples", "redone", "metrics", "checkpoint", "updated_s", "trend"}
)


def listed_fields(topic: Topic, before: View | None, now_s: float) -> View:
    """A job's entry in the list; its ``trend``, some losses of its history, is as new as `TREND_S`."""
    fields = topic.copy_fields(LISTED)
    if before is not None and now_s - before["trend"]["drawn_s"] < TREND_S and fields["ended_s"] is None:
        return fields | {"trend": before["trend"]}
    history = topic.copy_fields(("history",))["history"]
    return fields | {"trend": {"drawn_s": now_s, "points": trend_of(history)}}


def trend_of(history: list[Any]) -> list[list[Any]]:
    """At most `TREND_POINTS` of a history, evenly, with its ends: steps and losses of five digits.

    `src/derive.ts` has its twin, for a job that is followed: the same job is drawn the same.
    A loss that is no finite number is None. One job with strange events must not keep the others from the list.
    """
    count = min(len(history), TREND_POINTS)
    rows = [history[at * (len(history) - 1) // max(1, count - 1)] for at in range(count)]
    return [[row[0], _rounded(row[1])] for row in rows]


def _rounded(loss: Any) -> float | None:
    if not isinstance(loss, int | float) or not math.isfinite(loss):
        return None
    return float(f"{loss:.5g}")


class JobsList:
    """What readers are told of the list, in numbered versions; 0 before it was read. May be used from any thread."""

    def __init__(self) -> None:
        self.version = 0
        self._jobs: dict[str, View] = {}
        self._others: View = {}
        self._changes: deque[str] = deque(maxlen=CHANGES_KEPT)  # the last one made `version`
        self._whole = (0, "")
        self._told_s = float("-inf")
        self._lock = threading.Lock()

    def tell(self, jobs: Iterable[View], older: int, before: str, now_s: float) -> bool:
        """Make a new version where these ``jobs``, newest first, differ, and it is time; returns whether it did.

        ``older`` jobs are left out; they are older than the job ``before``.
        """
        if now_s - self._told_s < LIST_S:
            return False
        after = {job["id"]: job for job in jobs}
        changed = [fields for job in after.values() if (fields := _changed(self._jobs.get(job["id"]), job))]
        others = {"older": older, "before": before}
        order = [] if list(after) == list(self._jobs) else [list(after)]
        calm = not order and others == self._others and all(fields.keys() - {"id"} <= MOVING for fields in changed)
        if self.version and calm and (not changed or now_s - self._told_s < MOVING_S):
            return False
        message: dict[str, Any] = {"type": "jobs.changed", "jobs": [_shown(fields) for fields in changed]}
        message |= {"order": order[0]} if order else {}
        text = dumps(message | others)
        with self._lock:
            self._changes.append(text)
            self._jobs, self._others, self._told_s = after, others, now_s
            self.version += 1
        return True

    def after(self, version: int) -> tuple[int, list[str]]:
        """The messages for a reader that has a ``version``, and the version that it has then."""
        with self._lock:
            if self._has_changes_after(version):
                return self._changes_after(version)
            if self.version and self._whole[0] != self.version:
                jobs = [_shown(job) for job in self._jobs.values()]
                self._whole = self.version, dumps({"type": JOBS, "jobs": jobs} | self._others)
            return self.version, [self._whole[1]] if self.version else []

    def ready(self, version: int) -> tuple[int, list[str]] | None:
        """The same where it is in memory, encoded; None where it takes waiting or the whole list."""
        if not self._lock.acquire(blocking=False):  # a thread may encode the whole list just now
            return None
        try:
            return self._changes_after(version) if self._has_changes_after(version) else None
        finally:
            self._lock.release()

    def _has_changes_after(self, version: int) -> bool:
        return version > 0 and self.version - version <= len(self._changes)

    def _changes_after(self, version: int) -> tuple[int, list[str]]:
        return self.version, list(self._changes)[len(self._changes) - (self.version - version) :]


def _changed(before: View | None, after: View) -> View:
    """The fields of a job that differ, with its id; all where it is new, none where nothing differs."""
    if before is None:
        return after
    if before is after:
        return {}
    fields = {name: value for name, value in after.items() if before[name] != value}
    return {"id": after["id"]} | fields if fields else {}


def _shown(fields: View) -> View:
    """Without what only this server needs."""
    return fields | {"trend": fields["trend"]["points"]} if "trend" in fields else fields


class JobsReader:
    """The position of one socket in the list of jobs; the twin of `topic.TopicReader`."""

    def __init__(self, jobs: JobsList) -> None:
        self._jobs = jobs
        self._version = 0

    @property
    def pending(self) -> bool:
        return self._version != self._jobs.version

    def take_ready(self) -> list[str] | None:
        """The next messages where they are in memory, encoded; None where `take` has to make them."""
        ready = self._jobs.ready(self._version)
        if ready is None:
            return None
        self._version, messages = ready
        return messages

    def take(self) -> list[str]:
        """The next messages for the socket."""
        self._version, messages = self._jobs.after(self._version)
        return messages

    def close(self) -> None:
        """Nothing to release."""
