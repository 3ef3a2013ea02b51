"""Results of simulations: means over repetitions with 95 % confidence intervals."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .quantities import DAY_S, HOUR_S
from .scenario import Scenario

# Student's t, 97.5 %, by degrees of freedom; beyond them the first terms of its expansion are exact to three digits
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass
class Tally:
    """One simulated run, in seconds. ``stages`` add up to ``wall_s``; ``restarts``: of the whole job.

    ``said`` are the first decisions: when, which policy, and its reason.
    """

    wall_s: float = 0.0
    useful_s: float = 0.0
    finished: bool = True
    restarts: int = 0
    incidents: Counter[str] = field(default_factory=Counter)
    stages: dict[str, float] = field(default_factory=dict)
    said: list[tuple[float, str, str]] = field(default_factory=list)

    @property
    def goodput(self) -> float:
        """Useful time over wall time."""
        return self.useful_s / self.wall_s if self.wall_s else 0.0


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean, and half the width of its 95 % confidence interval; a single repetition has none: 0."""

    mean: float
    margin: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Estimate:
        """Estimate the mean that samples were drawn around."""
        mean = statistics.fmean(samples)
        if len(samples) < 2:
            return cls(mean, 0.0)
        return cls(mean, student(len(samples) - 1) * statistics.stdev(samples) / math.sqrt(len(samples)))


def student(degrees: int) -> float:
    """The 97.5 % quantile of Student's t."""
    return _T[degrees - 1] if degrees <= len(_T) else 1.95996 + 2.3722 / degrees + 2.8225 / degrees**2


@dataclass(frozen=True, slots=True)
class Outcome:
    """All repetitions of a scenario. ``incidents`` by cause and ``stages`` (seconds) are those of an average run."""

    seed: int
    repetitions: int
    goodput: Estimate
    wall_s: Estimate
    cost: Estimate
    failures: Estimate
    restarts: Estimate
    incidents: dict[str, Estimate]
    stages: dict[str, Estimate]
    unfinished: int
    said: tuple[tuple[float, str, str], ...]

    def share(self, stage: str) -> float:
        """The part of the time that a stage took."""
        return self.stages[stage].mean / self.wall_s.mean

    def record(self) -> dict[str, Any]:
        """As JSON."""
        found = asdict(self)
        names = ("seed", "repetitions", "unfinished", "goodput", "cost", "failures", "restarts")
        return {name: found[name] for name in names} | {
            "days": {name: seconds / DAY_S for name, seconds in found["wall_s"].items()},
            "incidents": found["incidents"],
            "stages_s": found["stages"],
            "said": [{"time_s": at_s, "policy": policy, "reason": reason} for at_s, policy, reason in self.said],
        }


def summarise(scenario: Scenario, tallies: Sequence[Tally], seed: int) -> Outcome:
    """Means and intervals over runs; causes in the order of their counts, stages in that of their time."""
    cluster = scenario.cluster
    hourly = (cluster.instances + scenario.spares) * cluster.gpus * cluster.price
    return Outcome(
        seed,
        len(tallies),
        goodput=Estimate.of([tally.goodput for tally in tallies]),
        wall_s=Estimate.of([tally.wall_s for tally in tallies]),
        cost=Estimate.of([tally.wall_s / HOUR_S * hourly for tally in tallies]),
        failures=Estimate.of([tally.incidents.total() for tally in tallies]),
        restarts=Estimate.of([tally.restarts for tally in tallies]),
        incidents=_by_name([tally.incidents for tally in tallies]),
        stages=_by_name([tally.stages for tally in tallies]),
        unfinished=sum(not tally.finished for tally in tallies),
        said=tuple(tallies[0].said),
    )


def _by_name(counted: Sequence[Mapping[str, float]]) -> dict[str, Estimate]:
    """The largest first."""
    names = dict.fromkeys(name for one in counted for name in one)
    found = {name: Estimate.of([one.get(name, 0.0) for one in counted]) for name in names}
    return dict(sorted(found.items(), key=lambda item: -item[1].mean))
