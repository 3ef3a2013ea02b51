"""Waits that benchmarks of several schedulers have in common."""

from __future__ import annotations

import time

from jupyter_hyperpod.core.errors import ClusterError
from jupyter_hyperpod.storage.store import Store

LOOK_S = 0.5


def until_each_says_why(store: Store, many: int, word: bytes, began_s: float, most_s: float) -> float:
    """Seconds from ``began_s`` until the supervisor's journals of so many jobs have the word for what a job waits for.

    Raises ClusterError where that takes longer than ``most_s``.
    """
    deadline = time.monotonic() + most_s
    known: set[str] = set()
    while True:
        known |= {job_id for job_id in store.job_ids() if job_id not in known and _has(store, job_id, word)}
        if len(known) >= many:
            return time.time() - began_s
        if time.monotonic() > deadline:
            raise ClusterError(f"what {many - len(known)} of {many} jobs wait for is not known within {most_s:g} s")
        time.sleep(LOOK_S)


def _has(store: Store, job_id: str, word: bytes) -> bool:
    return any(word in path.read_bytes() for path in store.job(job_id).events.glob("supervisor.*"))
