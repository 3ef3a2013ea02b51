"""Journals the record of each step: rank 0 writes it, the others keep it in case rank 0 is lost."""

from __future__ import annotations

import math
from typing import Any

from ...policy.recovery import RecoveryPlan
from ..data.sizes import BatchSizes
from ..protocol import facts
from ..worker.replica_sync import Group


class Commits:
    """Journals committed steps of one session."""

    def __init__(self, group: Group, sizes: BatchSizes) -> None:
        self._group = group
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
        if plan.rank == 0:
            self.journal()
            self._group.send(facts.StepCommitted(step, plan.generation, took_s, loss.hex()))

    def journal(self) -> None:
        """Write the record of the last step, unless that has been done."""
        if self._record is not None:
            before, self._assignment = self._assignment, self._record["assignment"]
            if before == self._assignment:
                del self._record["assignment"]
            self._group.journal("step.committed", self._record)
            self._record = None

    def drop(self) -> None:
        """Drop the record: the last step came from other members, which journal it."""
        self._record = None


def finite(value: float) -> float | None:
    """The value, or None if it is not finite, since JSON has no NaN and infinity."""
    return value if math.isfinite(value) else None
