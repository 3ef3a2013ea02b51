"""Results of simulations: means over repetitions with 95 % confidence intervals."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
    """One simulated run, in seconds. ``stages`` add up to ``wall_s``; ``restarts``: of the whole job."""

    wall_s: float = 0.0
    useful_s: float = 0.0
    finished: bool = True
    restarts: int = 0
    interval_s: float | None = None
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

    def covers(self, value: float) -> bool:
        """Whether a value lies in the interval."""
        return abs(value - self.mean) <= self.margin


def student(degrees: int) -> float:
    """The 97.5 % quantile of Student's t."""
    return _T[degrees - 1] if degrees <= len(_T) else 1.95996 + 2.3722 / degrees + 2.8225 / degrees**2


@dataclass(frozen=True, slots=True)
class Outcome:
    """All repetitions of a scenario. ``incidents`` by cause and ``stages`` (seconds) are those of an average run."""

    scenario: Scenario
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
        named = {"goodput": self.goodput, "cost": self.cost, "failures": self.failures, "restarts": self.restarts}
        figures: dict[str, Any] = {name: _pair(value) for name, value in named.items()}
        figures["days"] = _pair(Estimate(self.wall_s.mean / DAY_S, self.wall_s.margin / DAY_S))
        return {
            "seed": self.seed,
            "repetitions": self.repetitions,
            "unfinished": self.unfinished,
            **figures,
            "incidents": {name: _pair(value) for name, value in self.incidents.items()},
            "stages_s": {name: _pair(value) for name, value in self.stages.items()},
            "said": [{"time_s": at_s, "policy": policy, "reason": reason} for at_s, policy, reason in self.said],
        }


def summarise(scenario: Scenario, tallies: Sequence[Tally], seed: int) -> Outcome:
    """Means and intervals over runs; causes in the order of their counts, stages in that of their time."""
    cluster = scenario.cluster
    hourly = (cluster.instances + scenario.spares) * cluster.gpus * cluster.price
    seen, spent = [tally.incidents for tally in tallies], [tally.stages for tally in tallies]
    return Outcome(
        scenario,
        seed,
        len(tallies),
        goodput=Estimate.of([tally.goodput for tally in tallies]),
        wall_s=Estimate.of([tally.wall_s for tally in tallies]),
        cost=Estimate.of([tally.wall_s / HOUR_S * hourly for tally in tallies]),
        failures=Estimate.of([tally.incidents.total() for tally in tallies]),
        restarts=Estimate.of([tally.restarts for tally in tallies]),
        incidents={name: Estimate.of([one[name] for one in seen]) for name in _names(seen)},
        stages={name: Estimate.of([one.get(name, 0.0) for one in spent]) for name in _names(spent)},
        unfinished=sum(not tally.finished for tally in tallies),
        said=tuple(tallies[0].said),
    )


def _names(counted: Sequence[Mapping[str, float]]) -> list[str]:
    whole: dict[str, float] = {}
    for one in counted:
        for name, amount in one.items():
            whole[name] = whole.get(name, 0.0) + amount
    return sorted(whole, key=lambda name: -whole[name])


def _pair(estimate: Estimate) -> dict[str, float]:
    return {"mean": estimate.mean, "margin": estimate.margin}
