"""The view of a job, folded from its journal: read from the snapshot that was written last, and followed from there.

``view.json`` in the job's directory is a view at some event; the view itself says at which (``seen``). It is a cache:
without it, or where another version of the fold has written it, the journal is folded from its beginning.
`journal_keeper.py` writes it again while a job runs.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress

from ..core.errors import StoreError
from ..core.events import TERMINAL_STATES, Event
from ..core.views import FOLD, UNFOLDABLE, View, apply, new_job_view
from . import segments
from .journal import JournalFollower, follow_events, replay_events, unread_bytes
from .store import JobStore, write_readable

SNAPSHOT = "view.json"
PROBLEMS_KEPT = 100
AT_ONCE_BYTES = 16 << 20
SUBMITTED_S = 5.0  # longer than it takes from a job's directory to the first event
WORTH_EVENTS = 1000  # so many events take longer to fold than a snapshot takes to write


class FoldedJournal:
    """A job's view that follows its journal. ``view`` belongs to the caller; reading changes it in place.

    ``problems``: in words, what could not be read. ``folded``: how many events were folded since the snapshot.
    """

    def __init__(self, job: JobStore) -> None:
        """Read the snapshot; `catch_up` or `poll` reads what the journal holds after it."""
        self.job = job
        self.problems: list[str] = []
        self.view = _read_snapshot(job) or new_job_view(job.id)
        self.folded = 0
        self._begin()

    def _begin(self) -> None:
        self._follower: JournalFollower[Event] = follow_events(self.job.events, self.view["seen"])
        self._told = 0

    def catch_up(self) -> View:
        """Fold what is there and return the view, in memory that does not grow with the journal."""
        if unread_bytes(self.job.events, self.view["seen"]) > AT_ONCE_BYTES:
            for event in replay_events(self.job.events, self.view["seen"]):
                self._fold(event)
            self._begin()
        self.poll()
        if self.folded > WORTH_EVENTS and self.view["state"] in TERMINAL_STATES:
            with suppress(StoreError, ValueError):  # then the next reader folds again
                self.save()
        return self.view

    def poll(self) -> list[Event]:
        """Fold and return the new events."""
        return self._take(self._follower.poll())

    def wait(self, timeout_s: float) -> list[Event]:
        """Fold and return new events; wait for them for `timeout_s`."""
        return self._take(self._follower.wait(timeout_s))

    def _take(self, events: list[Event]) -> list[Event]:
        for event in events:
            self._fold(event)
        told, self._told = self._told, len(self._follower.problems)
        self.problems += self._follower.problems[told:]
        return events

    def _fold(self, event: Event) -> None:
        self.folded += 1
        try:
            apply(self.view, event)
        except UNFOLDABLE as error:
            if len(self.problems) < PROBLEMS_KEPT:
                self.problems.append(f"{event.kind} number {event.seq} of {event.writer} cannot be shown: {error!r}")

    def save(self) -> None:
        """Write the snapshot. Raises StoreError."""
        content = json.dumps({"fold": FOLD, "view": self.view}, separators=(",", ":"), allow_nan=False)
        write_readable(self.job.path / SNAPSHOT, content.encode())
        self.folded = 0


def is_lost(job: JobStore) -> bool:
    """Whether a job has no journal, although it was submitted long enough ago to have one."""
    try:
        age_s = time.time() - os.stat(job.path).st_ctime
    except OSError:
        return False
    return age_s > SUBMITTED_S and not segments.names(job.events)


def _read_snapshot(job: JobStore) -> View | None:
    """The snapshot, where this version of the fold has written it."""
    try:
        content = json.loads((job.path / SNAPSHOT).read_bytes())
        view: View = content["view"]
        fits = content["fold"] == FOLD and view["id"] == job.id and view.keys() == new_job_view(job.id).keys()
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None
    return view if fits else None
