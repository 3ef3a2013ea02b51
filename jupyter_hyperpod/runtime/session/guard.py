"""The guard of a session: judges each reduced step before it is applied, with equal results on all members."""

from __future__ import annotations

import math
from collections import deque
from typing import Any

from ...core.errors import TrainingError
from ...policy.guard import BY_DEFAULT, Guard, StepFinding, StepReading, hint, judge
from ...policy.recovery import RecoveryPlan
from ..context import Context
from ..protocol import facts
from ..worker.replica_sync import Group


class StepGuard:
    """The history that the guard needs is part of the training state: see `as_dict`."""

    def __init__(self, guard: Guard | None, group: Group) -> None:
        self.guard = guard
        self._group = group
        self._recent: deque[float] = deque(maxlen=guard.window if guard else 0)
        self._skipped = 0  # in a row
        self._warned = False

    def judge(self, reading: StepReading, plan: RecoveryPlan | None) -> str:
        """Return why the update of this step is not to be applied, or nothing. Raises TrainingError to stop the job.

        ``plan``: the plan of the step; None in a replay, which other members have already reported.
        """
        guard = self.guard or BY_DEFAULT
        if guard.non_finite == "ignore":
            self._warn_once(reading)
        decision = judge(guard, reading, self._recent, self._skipped)
        if decision.value is None:
            self._skipped = 0
            if math.isfinite(reading.loss):
                self._recent.append(reading.loss)
            return ""
        text = decision.reason
        if plan is not None:
            text += _origin(decision.value, plan) + hint(reading)
            self._report(reading, decision.value, text, plan)
        if decision.value.action == "stop":
            raise TrainingError(text)
        self._skipped += 1
        return decision.reason

    def as_dict(self) -> dict[str, Any]:
        """The guard's history, so that a newcomer judges as its peers do."""
        return {"recent": list(self._recent), "skipped": self._skipped}

    def load(self, state: dict[str, Any]) -> None:
        """Load a peer's history."""
        self._recent.clear()
        self._recent.extend(state["recent"])
        self._skipped = state["skipped"]

    def _report(self, reading: StepReading, finding: StepFinding, text: str, plan: RecoveryPlan) -> None:
        """Report to the coordinator. All members do, because one may be lost; the first report opens the incident."""
        rank = _owner(finding, plan)
        owner = plan.owners[rank] if rank is not None else None
        self._group.send(facts.AnomalyFound(reading.step, finding.cause, finding.action, owner, text))

    def _warn_once(self, reading: StepReading) -> None:
        if self._warned or math.isfinite(reading.loss):
            return
        self._warned = True
        if self._group.rank == 0:
            text = (
                f"the loss of step {reading.step} is not finite, and the step is applied as it is, "
                "as hp.Guard(non_finite='ignore') asks"
            )
            self._group.journal("warning.raised", {"text": text})


def _owner(finding: StepFinding, plan: RecoveryPlan) -> int | None:
    """The rank that computed the first of the micro-batches."""
    for rank, nodes in enumerate(plan.holdings):
        if finding.micro_batches and any(low <= finding.micro_batches[0] < high for low, high in nodes):
            return rank
    return None


def _origin(finding: StepFinding, plan: RecoveryPlan) -> str:
    rank = _owner(finding, plan)
    if rank is None or plan.world_size == 1:
        return ""
    node = Context.node_of(plan.owners[rank])
    return f" (micro-batch {finding.micro_batches[0]} was computed by rank {rank} on {node})"
