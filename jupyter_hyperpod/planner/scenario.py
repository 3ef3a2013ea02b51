"""Defines what is simulated: a cluster, a job on it, their failures and their recovery."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..core.elastic import MAX_NODES, ElasticRange
from ..core.errors import SpecError
from ..core.spec import COMPONENTS, JobSpec
from .causes import KINDS, LLAMA3, Cause, total
from .goodput import CONVENTIONS, NO_CHECKPOINTS, RESTART, CheckpointCosts, ClusterModel, Downtime
from .quantities import DAY_S

LONGEST = 1000.0  # times the undisturbed run


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a schedule: of a kind, once ``after_s`` seconds of the work are done."""

    after_s: float
    kind: str

    def __post_init__(self) -> None:
        if self.kind not in KINDS or not self.after_s >= 0:
            raise SpecError(f"fault {self.kind!r} after {self.after_s} s; expected one of {', '.join(KINDS)}")


@dataclass(frozen=True, slots=True)
class Timing:
    """Times that have to be measured, in seconds; `calibrate` reads them from a journal.

    ``step_s``: a step at full strength; ``regroup_s``: how long members stand still to form a generation; ``join_s``:
    how long an instance takes from its start until it is ready; ``stalls``: by kind, the whole time from the fault to
    the next step, where it is known; ``step_times``: the time of a step by the number of members.
    """

    step_s: float = 10.0
    regroup_s: float = 60.0
    join_s: float = 300.0
    stalls: Mapping[str, float] = field(default_factory=dict)
    step_times: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.step_s > 0 or min(self.regroup_s, self.join_s, *self.stalls.values()) < 0:
            raise SpecError("timing: a step takes longer than nothing, and no time is negative")


@dataclass(frozen=True, slots=True)
class Scenario:
    """One simulation. ``work_s``: the length of an undisturbed run; ``limit_s`` ends an endless one.

    ``downtime``: the cost of restarting the whole job. ``components``: as in a job; without ``inprocess`` every failure
    costs the downtime, and ``convention`` says what a failure during it does. ``repair_s`` and ``reboot_s``: for how
    long an instance is away, the mean of an exponential distribution; None where a repair is part of ``downtime``.
    ``interval``: "fixed" as in ``checkpoints``, or "observed", as jobs decide it.
    """

    cluster: ClusterModel
    work_s: float
    downtime: Downtime
    components: tuple[str, ...] = COMPONENTS
    convention: str = RESTART
    checkpoints: CheckpointCosts = NO_CHECKPOINTS
    interval: str = "fixed"
    mix: tuple[Cause, ...] = LLAMA3
    repair_s: float | None = None
    reboot_s: float = 15 * 60.0
    spares: int = 0
    elastic: ElasticRange | None = None
    timing: Timing = field(default_factory=Timing)
    state_bytes: int = 0
    micro_batches: int = 8
    faults: tuple[Fault, ...] = ()
    limit_s: float = math.inf

    def __post_init__(self) -> None:
        if not self.work_s > 0:
            raise SpecError(f"work of {self.work_s:g} s; expected more than none")
        if math.isinf(self.work_s) and math.isinf(self.limit_s):
            raise SpecError("neither the work nor the time of this simulation ends; expected a limit")
        if self.convention not in CONVENTIONS:
            raise SpecError(f"convention {self.convention!r}; expected one of {', '.join(CONVENTIONS)}")
        if not 0 <= self.spares <= MAX_NODES:
            raise SpecError(f"{self.spares} spares; expected 0 to {MAX_NODES}")
        if self.interval not in ("fixed", "observed"):
            raise SpecError(f"interval {self.interval!r}; expected fixed or observed")
        if self.micro_batches < 1 or self.state_bytes < 0:
            raise SpecError("an instance computes at least one micro-batch of a step, of a state that is not negative")
        for away_s in (self.repair_s or 0.0, self.reboot_s):
            if not 0 <= away_s < math.inf:
                raise SpecError(f"mean time {away_s:g} s; expected one that is not negative")
        total(self.mix)
        _ = self.spec

    @property
    def spec(self) -> JobSpec:
        """The job's specification, as production has it. Raises SpecError."""
        return JobSpec("job", "", self.cluster.instances, self.elastic, spares=self.spares, components=self.components)

    @property
    def in_place(self) -> bool:
        """Whether survivors go on after a failure."""
        return "inprocess" in self.components


def whole_job(
    cluster: ClusterModel,
    days: float,
    downtime: Downtime,
    convention: str,
    checkpoints: CheckpointCosts = NO_CHECKPOINTS,
) -> Scenario:
    """Every failure stops the whole job for the downtime, as in the closed form."""
    return Scenario(
        cluster, days * DAY_S, downtime, components=(), convention=convention, checkpoints=checkpoints,
        timing=Timing(step_s=1.0), limit_s=days * DAY_S * LONGEST,
    )  # fmt: skip


def in_place(
    cluster: ClusterModel,
    days: float,
    downtime: Downtime,
    spares: int = 1,
    repair_s: float = DAY_S,
    **more: Any,
) -> Scenario:
    """Recovers from failures as this project's jobs do: the whole job restarts only where it has to.

    ``more`` are further fields of `Scenario`.
    """
    fields = {"limit_s": days * DAY_S * LONGEST, "interval": "observed", **more}
    return Scenario(cluster, days * DAY_S, downtime, spares=spares, repair_s=repair_s, **fields)
