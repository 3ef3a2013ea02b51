"""Reads the journals of unfinished jobs for a new supervisor, in slices, so that it answers requests in between."""

from __future__ import annotations

import time
from collections.abc import Iterator

from ..core.errors import HyperpodError
from .entry import JobEntry

READ_S = 0.05  # per turn, before requests are answered


class Recall:
    """Reads what happened to the jobs before this supervisor started."""

    def __init__(self) -> None:
        self._jobs: dict[str, tuple[JobEntry, int]] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def __contains__(self, job_id: object) -> bool:
        return job_id in self._jobs

    def __iter__(self) -> Iterator[str]:
        return iter(self._jobs)

    def entries(self) -> Iterator[JobEntry]:
        """The jobs that are not read to the end."""
        return (entry for entry, _ in self._jobs.values())

    def add(self, entry: JobEntry, before: int) -> None:
        """Read this job's journal; ``before`` is the process id of the supervisor that looked after it, or 0."""
        self._jobs[entry.job.id] = entry, before

    def read(self, budget_s: float = READ_S) -> Iterator[tuple[JobEntry, int, Exception | None]]:
        """Read for ``budget_s``, all jobs in turn; yield those that are done, with the error of one that cannot be."""
        until_s = time.monotonic() + budget_s
        for job_id, (entry, before) in list(self._jobs.items()):
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return
            del self._jobs[job_id]
            try:
                done = entry.recall(left_s)
            except (HyperpodError, OSError, ValueError, TypeError) as error:
                yield entry, before, error
                continue
            if done:
                yield entry, before, None
            else:
                self._jobs[job_id] = entry, before  # behind the others

    def finish(self) -> Iterator[JobEntry]:
        """Read all that is left, however long it takes."""
        for entry in self.entries():
            entry.recall()
            yield entry
