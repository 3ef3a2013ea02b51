"""Decides which processes to start and stop. Pure: the supervisor observes and acts, this module decides."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..core.spec import JobSpec
from ..core.units import plural
from ..policy.cluster.capacity import lacks
from ..policy.scaling import Claim, ScalableNode, allot

PAUSES_S = (0.0, 0.05, 0.1, 0.2, 0.5, *(1.0,) * 8, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)
QUICK_S = 10.0
QUICK_LIMIT = 5


@dataclass(frozen=True, slots=True)
class JobFacts:
    """One unfinished job. ``target`` is its owner's wish, ``commanded`` what the job was last told, ``nodes`` where its
    agents are; ``resting`` is True while nothing may be started for it (it has just ended a process)."""

    job_id: str
    spec: JobSpec
    order: float
    target: int
    commanded: int
    started: bool
    head_up: bool
    nodes: tuple[str, ...]
    resting: bool = False


@dataclass(frozen=True, slots=True)
class Begin:
    """Start agents on `nodes`, and the head where it is not up."""

    job_id: str
    nodes: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Rescale:
    """Tell the job to go on with `target` nodes."""

    job_id: str
    target: int
    reason: str


@dataclass(frozen=True, slots=True)
class Wait:
    """The job stays pending, or goes on with fewer nodes than it wants."""

    job_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Fail:
    """The job can never run."""

    job_id: str
    reason: str


Action = Begin | Rescale | Wait | Fail


def reconcile(
    jobs: Sequence[JobFacts], machines: Iterable[ScalableNode], queues: Mapping[str, int] | None = None
) -> list[Action]:
    """Return what is to be done now; doing it all and asking again returns nothing but `Wait`.

    ``queues``: how many nodes each is guaranteed.
    """
    facts = {job.job_id: job for job in jobs}
    actions: list[Action] = []
    claims, known = {job.job_id: _claim(job) for job in jobs}, list(machines)
    for decision in allot(list(claims.values()), known, queues):
        grant, job = decision.value, facts[decision.value.job_id]
        if not grant.possible:
            actions.append(Fail(job.job_id, decision.reason))
        elif not job.started and not grant.start:
            actions.append(Wait(job.job_id, decision.reason))
        elif not job.resting:
            if job.started and grant.target != job.commanded:
                actions.append(Rescale(job.job_id, grant.target, decision.reason))
            if grant.start or not job.head_up:
                actions.append(Begin(job.job_id, grant.start, decision.reason))
            elif grant.target == job.commanded and (why := lacks(claims[job.job_id], claims.values(), known)):
                actions.append(Wait(job.job_id, why))
    return actions


def _claim(job: JobFacts) -> Claim:
    return Claim(
        job_id=job.job_id,
        priority=job.spec.priority,
        order=job.order,
        minimum=min(job.spec.start_minimum, job.target),
        target=job.target,
        spares=job.spec.spares,
        running=job.started,
        commanded=job.commanded,
        held=job.nodes,
        allowed=job.spec.elastic,
        scale_up_delay_s=job.spec.scale_up_delay_s,
        queue=job.spec.queue,
        sweep=job.spec.trial.sweep if job.spec.trial else "",
        serves=job.spec.serve is not None,
    )


@dataclass(frozen=True, slots=True)
class ProcessFailures:
    """How often a kind of process of one job has ended unasked, and how often in a row by an error of its
    own soon after its start: trying again will not make that better."""

    total: int = 0
    quick: int = 0

    def after(self, lived_s: float, status: int | None) -> ProcessFailures:
        """The count after one more failure of a process that lived ``lived_s``; a killed one is not to blame."""
        to_blame = status is not None and status > 0 and lived_s < QUICK_S
        return ProcessFailures(self.total + 1, self.quick + 1 if to_blame else 0)

    def pause_s(self) -> float:
        """How long to rest before the next try."""
        return PAUSES_S[min(self.quick, len(PAUSES_S) - 1)]

    def too_many(self, max_restarts: int, quick_limit: int = QUICK_LIMIT) -> str:
        """The reason to give up, or ""."""
        if self.quick >= quick_limit:
            return f"it failed {self.quick} times in a row within {QUICK_S:g} s of its start"
        if self.total > max_restarts:
            return f"it ended {plural(self.total, 'time')}; max_restarts is {max_restarts}"
        return ""
