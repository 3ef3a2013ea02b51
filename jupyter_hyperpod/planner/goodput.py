"""The closed form: how much longer a run takes because instances fail, and what that costs.

With MTBF M = 1 / (rate x instances), downtime d per failure, checkpoint interval t and save cost c, the ratio of wall
time to undisturbed time is, by convention:

- ``productive``: ``(1 + c/t) (1 + (d + (t+c)/2) / M)``
- ``restart``: ``M exp(d/M) (exp((t+c)/M) - 1) / t`` (Daly, A higher order estimate of the optimum checkpoint interval
  for restart dumps, 2006)
- ``serial``: ``(1 + c/t) / (1 - (d + (t+c)/2) / M)``

Without checkpoints d includes the work that is computed again, and the factors of c and t are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from ..core.elastic import MAX_NODES
from ..core.errors import SpecError
from ..core.units import format_duration
from ..policy.interval import daly_s
from .quantities import HIGHEST_RATE, HOUR_S, parse_time

PRODUCTIVE, RESTART, SERIAL = "productive", "restart", "serial"
CONVENTIONS = {
    PRODUCTIVE: "failures happen only in productive time",
    RESTART: "a failure during a repair starts the repair again (Daly)",
    SERIAL: "a failure during a repair adds a whole repair of its own, one after another",
}
STAGES = ("detect", "diagnose", "repair", "restart", "recompute")
LONGEST = 1e6  # times the undisturbed run: a longer one counts as endless


@dataclass(frozen=True, slots=True)
class Downtime:
    """What one failure costs, in seconds by stage; an unsplit total counts as ``repair``. Raises SpecError."""

    detect: float = 0.0
    diagnose: float = 0.0
    repair: float = 0.0
    restart: float = 0.0
    recompute: float = 0.0

    def __post_init__(self) -> None:
        for stage in STAGES:
            if not 0 <= getattr(self, stage) < math.inf:
                raise SpecError(f"downtime: {stage} is {getattr(self, stage)} s; expected a time that is not negative")

    @classmethod
    def parse(cls, text: str) -> Downtime:
        """Parse ``"280min"`` or ``"detect=5min,repair=4h,restart=35min"``; raises SpecError."""
        if "=" not in text:
            return cls(repair=parse_time(text))
        given: dict[str, float] = {}
        for part in text.split(","):
            name, _, value = part.partition("=")
            if name.strip() not in STAGES or name.strip() in given:
                raise SpecError(f"downtime {text!r}: expected each of {', '.join(STAGES)} once, as in repair=4h")
            given[name.strip()] = parse_time(value)
        return cls(**given)

    @property
    def total_s(self) -> float:
        """All stages together."""
        return math.fsum(getattr(self, stage) for stage in STAGES)


@dataclass(frozen=True, slots=True)
class ClusterModel:
    """``instances`` of ``gpus`` each; ``rate``: failures per instance-hour; ``price``: a GPU-hour. Raises SpecError."""

    instances: int
    rate: float
    gpus: int = 8
    price: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.instances <= MAX_NODES:
            raise SpecError(f"{self.instances} instances; expected 1 to {MAX_NODES}")
        if not 0 <= self.rate <= HIGHEST_RATE:
            raise SpecError(f"rate {self.rate:g}/h; expected 0 to {HIGHEST_RATE:g} failures per instance-hour")
        if not 1 <= self.gpus <= 1024:
            raise SpecError(f"{self.gpus} GPUs an instance; expected 1 to 1024")
        if not 0 <= self.price < math.inf:
            raise SpecError(f"price {self.price:g}; expected one that is not negative")

    @property
    def mtbf_s(self) -> float:
        """Mean time between failures of any instance; infinite where none fails."""
        return HOUR_S / (self.rate * self.instances) if self.rate else math.inf


@dataclass(frozen=True, slots=True)
class CheckpointCosts:
    """Training stands still for ``cost_s`` every ``interval_s`` (None: Daly's interval). Raises SpecError."""

    cost_s: float = 0.0
    interval_s: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.cost_s < math.inf:
            raise SpecError(f"checkpoint cost {self.cost_s:g} s; expected a time that is not negative")
        if self.interval_s is not None and not 0 < self.interval_s < math.inf:
            raise SpecError(f"checkpoint interval {self.interval_s:g} s; expected a time longer than nothing")

    def every_s(self, mtbf_s: float) -> float | None:
        """The interval in use; None without checkpoints, or where nothing can be lost."""
        if self.interval_s is not None:
            return self.interval_s
        return daly_s(self.cost_s, mtbf_s) if self.cost_s and math.isfinite(mtbf_s) else None


NO_CHECKPOINTS = CheckpointCosts()


def stretch(
    cluster: ClusterModel, downtime_s: float, convention: str, saved: CheckpointCosts = NO_CHECKPOINTS
) -> float:
    """Wall time over undisturbed time. Raises SpecError for an unknown convention and for a run that never ends."""
    if convention not in CONVENTIONS:
        raise SpecError(f"convention {convention!r}; expected one of {', '.join(CONVENTIONS)}")
    mtbf_s = cluster.mtbf_s
    every_s = saved.every_s(mtbf_s)
    overhead = 1.0 + saved.cost_s / every_s if every_s else 1.0
    lost_s = (every_s + saved.cost_s) / 2 if every_s else 0.0
    share = (downtime_s + lost_s) / mtbf_s
    if convention == PRODUCTIVE:
        ratio = overhead * (1 + share)
    elif convention == SERIAL:
        ratio = overhead / (1 - share) if share < 1 else math.inf
    else:
        ratio = _restarted(downtime_s, mtbf_s, every_s, saved.cost_s)
    if not ratio <= LONGEST:
        raise SpecError(
            f"{cluster.instances} instances fail every {format_duration(mtbf_s)} and each failure costs "
            f"{format_duration(downtime_s + lost_s)}: where {CONVENTIONS[convention]}, this run never ends"
        )
    return ratio


def _restarted(downtime_s: float, mtbf_s: float, every_s: float | None, cost_s: float) -> float:
    if math.isinf(mtbf_s):
        return 1.0 + cost_s / every_s if every_s else 1.0
    segment = (every_s + cost_s) / mtbf_s if every_s else 0.0
    if downtime_s / mtbf_s + segment > math.log(LONGEST) * 2:
        return math.inf
    grown = mtbf_s * math.expm1(segment) / every_s if every_s else 1.0
    return math.exp(downtime_s / mtbf_s) * grown


@dataclass(frozen=True, slots=True)
class Regime:
    """One way of recovering: the cost of a failure, and the resulting ``days`` and ``cost`` of the run."""

    downtime_s: float
    stretch: float
    days: float
    gpu_hours: float
    cost: float

    @property
    def goodput(self) -> float:
        """Useful time over wall time."""
        return 1 / self.stretch


@dataclass(frozen=True, slots=True)
class RegimeComparison:
    """Two regimes on one cluster. ``reduction`` of training time and ``saving`` of money by the automatic one."""

    cluster: ClusterModel
    convention: str
    work_gpu_hours: float
    interval_s: float | None
    manual: Regime
    automatic: Regime

    @property
    def undisturbed_days(self) -> float:
        """How long the work takes where nothing fails."""
        return undisturbed_days(self.cluster, self.work_gpu_hours)

    @property
    def reduction(self) -> float:
        """How much less training time."""
        return 1 - self.automatic.stretch / self.manual.stretch

    @property
    def saving(self) -> float:
        """How much less money."""
        return self.manual.cost - self.automatic.cost


def undisturbed_days(cluster: ClusterModel, gpu_hours: float) -> float:
    """How long the work takes where nothing fails. Raises SpecError."""
    days = gpu_hours / (cluster.instances * cluster.gpus * 24)
    if not 0 < days < math.inf:
        raise SpecError(f"{gpu_hours:g} GPU-hours of work; expected more than none")
    return days


def compare(
    cluster: ClusterModel,
    manual: Downtime,
    automatic: Downtime,
    gpu_hours: float,
    convention: str = PRODUCTIVE,
    saved: CheckpointCosts = NO_CHECKPOINTS,
) -> RegimeComparison:
    """Both regimes on the same cluster and the same work. Raises SpecError."""
    if manual.total_s < automatic.total_s:
        raise SpecError(
            f"manual recovery takes {format_duration(manual.total_s)} and automatic recovery longer, "
            f"{format_duration(automatic.total_s)}: are the two exchanged?"
        )
    regimes = [regime(cluster, downtime, gpu_hours, convention, saved) for downtime in (manual, automatic)]
    return RegimeComparison(cluster, convention, gpu_hours, saved.every_s(cluster.mtbf_s), *regimes)


def regime(
    cluster: ClusterModel, downtime: Downtime, gpu_hours: float, convention: str, saved: CheckpointCosts
) -> Regime:
    """The run of this work where every failure costs this downtime. Raises SpecError."""
    ratio = stretch(cluster, downtime.total_s, convention, saved)
    days = undisturbed_days(cluster, gpu_hours)
    return Regime(downtime.total_s, ratio, days * ratio, gpu_hours * ratio, gpu_hours * ratio * cluster.price)


def same_reduction(comparison: RegimeComparison, manual_s: Iterable[float]) -> list[tuple[float, float]]:
    """Other pairs (manual, automatic) of downtimes with the same reduction, first convention, no checkpoints."""
    load = 1 / comparison.cluster.mtbf_s
    kept = 1 - comparison.reduction
    pairs = ((slow_s, (kept * (1 + load * slow_s) - 1) / load) for slow_s in manual_s if load)
    return [(slow_s, quick_s) for slow_s, quick_s in pairs if quick_s > 0]
