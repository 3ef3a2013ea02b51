"""Journals the record of each step: rank 0 writes it, the others keep it in case rank 0 is lost."""

from __future__ import annotations

import math
import time
from collections import deque
from typing import Any

from ...policy.recovery import RecoveryPlan
from ...storage.apart.wire import HeadAddress
from ..data.sizes import BatchSizes
from ..protocol import facts
from ..worker.main import current
from ..worker.replica_sync import Group

KEPT_S = 5.0  # longer than a pod's process waits before it brings what is new


class Commits:
    """Journals committed steps of one session.

    Where each pod has a store of its own, the newest records of a lost rank 0 may be lost with it: the others keep
    those of ``kept_s``.
    """

    def __init__(self, group: Group, sizes: BatchSizes, kept_s: float | None = None) -> None:
        self._group = group
        self._kept_s = _kept_s() if kept_s is None else kept_s
        self._kept: deque[tuple[float, dict[str, Any]]] = deque()  # when each was applied here, and its record
        self._journaled = 0  # the last step that this process has journaled
        self._sizes = sizes
        self._record: dict[str, Any] | None = None
        self._assignment: list[Any] = []  # the one journaled last

    def note(
        self, step: int, index: int, loss: float, plan: RecoveryPlan, took_s: float, redone: int, skipped: str = ""
    ) -> None:
        """Record a step that was applied here, a run of that of the loop with this ``index``."""
        self._record = {
            "step": step,
            "session": self._group.session,
            "generation": plan.generation,
            "loss": finite(loss),
            "loss_hex": loss.hex(),
            "step_time_s": took_s,
            "samples": self._sizes.samples(index),
            "world_size": plan.world_size,
            "assignment": [
                [owner, sorted(leaf for low, high in nodes for leaf in range(low, high))]
                for owner, nodes in zip(plan.owners, plan.holdings, strict=True)
            ],
            "redone": redone,
            **({"skipped": skipped} if skipped else {}),
            **self._sizes.record(index),
        }
        if self._kept_s:
            now_s = time.monotonic()
            self._kept.append((now_s, dict(self._record)))
            while self._kept[0][0] < now_s - self._kept_s:
                self._kept.popleft()
            while len(self._kept) > 1 and self._kept[-2][1]["step"] >= step:  # the cell has gone back
                del self._kept[-2]
        if plan.rank == 0:
            self.journal()
            self._group.send(facts.StepCommitted(step, plan.generation, took_s, loss.hex()))

    def journal(self) -> None:
        """Write the record of the last step, unless that has been done."""
        if self._record is not None:
            self._write(self._record)
            self._record = None

    def journal_for(self) -> None:
        """Write what an earlier rank 0, which is lost, may not have written, or brought to the head of the job."""
        last = self._record["step"] if self._record is not None else math.inf
        for _, record in self._kept:
            if self._journaled < record["step"] < last:
                self._write(record)
        self.journal()

    def _write(self, record: dict[str, Any]) -> None:
        before, self._assignment = self._assignment, record["assignment"]
        self._journaled = record["step"]
        shown = {name: value for name, value in record.items() if name != "assignment" or value != before}
        self._group.journal("step.committed", shown)

    def drop(self) -> None:
        """Drop the records: the last step came from other members, which journal it."""
        self._record = None
        self._kept.clear()


def _kept_s() -> float:
    worker = current()
    return KEPT_S if worker is not None and HeadAddress.of(worker.context.job.path) is not None else 0.0


def finite(value: float) -> float | None:
    """The value, or None if it is not finite, since JSON has no NaN and infinity."""
    return value if math.isfinite(value) else None
