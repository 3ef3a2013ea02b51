"""Decides what happens to a step whose loss or gradient cannot be right. All members judge the same numbers.

A loss is a spike when its modified z-score against the losses before it, 0.6745 (x - median) / MAD, exceeds a threshold
(Iglewicz and Hoaglin, "How to Detect and Handle Outliers", 1993). Outliers hardly change median and MAD, unlike mean
and deviation. PaLM's authors report that skipping the data of a spike helps (Chowdhery et al., 2022, section 5.1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from ..core.errors import SpecError
from ..core.units import few, plural
from .decision import Decision

ACTIONS = ("stop", "skip", "ignore")
NON_FINITE_GRADIENT, NON_FINITE_LOSS, LOSS_SPIKE = "non-finite gradient", "non-finite loss", "loss spike"
NORMAL = 0.6745  # the MAD of a standard normal distribution
LEAST_RISE = 0.05  # of the median: on a flat curve every ripple would be many MADs high
MASKED = (
    ". Where all targets of a micro-batch are ignored, their mean is 0/0: return the summed loss and the number "
    "of targets, return loss_sum, count"
)
NAMED = 8  # at most this many micro-batches are named


@dataclass(frozen=True, slots=True)
class Guard:
    """``hp.Session(guard=hp.Guard(…))``: what happens to a step with numbers that cannot be right.

    ``non_finite`` (the loss or the gradient of the step) and ``loss_spike`` are each one of: ``"stop"``, the job fails
    and names the micro-batch and its rank; ``"skip"``, the step is committed but its update is not applied,
    and the record says why; ``"ignore"``. A spike is a loss more than ``threshold`` robust deviations above the median
    of the last ``window`` losses, once there are ``warm_up`` of them. More than ``patience`` skipped steps in a row
    stop the job: so many are no accident of the data. Raises SpecError.

    A session without a guard stops at a loss that is not finite and checks nothing else: `BY_DEFAULT`.
    """

    non_finite: str = "stop"
    loss_spike: str = "skip"
    window: int = 64
    warm_up: int = 16
    threshold: float = 10.0
    patience: int = 10

    def __post_init__(self) -> None:
        for name in ("non_finite", "loss_spike"):
            if (action := getattr(self, name)) not in ACTIONS:
                raise SpecError(f"{name} is {action!r}; expected one of {', '.join(ACTIONS)}")
        if not 2 <= self.warm_up <= self.window:
            raise SpecError(f"warm_up is {self.warm_up} and window {self.window}; expected 2 <= warm_up <= window")
        if not self.threshold > 0 or self.patience < 0:
            raise SpecError(f"threshold is {self.threshold:g} and patience {self.patience}; expected them positive")


BY_DEFAULT = Guard(loss_spike="ignore")


@dataclass(frozen=True, slots=True)
class StepReading:
    """The numbers of a reduced step: mean ``loss``, whether the gradient is ``finite``, and ``losses`` by micro-batch.

    ``losses[i]`` is NaN where loss or gradient of micro-batch i are not finite. ``metrics``: means of what the loss
    function returned beside the loss. ``stops``: a member wants this step to be the last one.
    """

    step: int
    loss: float
    finite: bool
    losses: tuple[float, ...]
    metrics: Mapping[str, float] = field(default_factory=dict)
    stops: bool = False


@dataclass(frozen=True, slots=True)
class StepFinding:
    """What is wrong with a step, what happens to it, and the ``micro_batches`` that caused it."""

    cause: str
    action: str
    micro_batches: tuple[int, ...]


def judge(guard: Guard, reading: StepReading, recent: Sequence[float], skipped: int) -> Decision[StepFinding | None]:
    """Judge one step by the last accepted losses, oldest first; ``skipped`` steps in a row were skipped before it."""
    found = _non_finite(guard, reading) or _spike(guard, reading, recent)
    if found is None:
        return Decision(None, f"step {reading.step} is sound")
    finding, what = found
    if finding.action == "skip" and skipped >= guard.patience:
        finding = StepFinding(finding.cause, "stop", finding.micro_batches)
        return Decision(
            finding, f"{what}; skipped before it in a row: {plural(skipped, 'step')}, patience is {guard.patience}"
        )
    end = "the job stops" if finding.action == "stop" else "its update is not applied"
    return Decision(finding, f"{what}: {end}")


def _non_finite(guard: Guard, reading: StepReading) -> tuple[StepFinding, str] | None:
    if guard.non_finite == "ignore" or (reading.finite and math.isfinite(reading.loss)):
        return None
    culprits = tuple(i for i, loss in enumerate(reading.losses) if not math.isfinite(loss))
    what, cause = ("loss", NON_FINITE_LOSS) if reading.finite else ("gradient", NON_FINITE_GRADIENT)
    where = f"that of {name_micro_batches(culprits)} is not" if culprits else "each micro-batch's is: the sum overflows"
    return StepFinding(cause, guard.non_finite, culprits), f"the {what} of step {reading.step} is not finite, {where}"


def _spike(guard: Guard, reading: StepReading, recent: Sequence[float]) -> tuple[StepFinding, str] | None:
    if guard.loss_spike == "ignore" or len(recent) < guard.warm_up:
        return None
    usual = median(recent)
    spread = median(abs(loss - usual) for loss in recent)
    rise = reading.loss - usual
    if rise <= max(guard.threshold * spread / NORMAL, LEAST_RISE * abs(usual)):
        return None
    highest = max(range(len(reading.losses)), key=lambda i: reading.losses[i])
    score = "more than any" if spread == 0 else f"{NORMAL * rise / spread:.0f}"
    text = (
        f"the loss of step {reading.step} is {reading.loss:.4g}, the median of the {len(recent)} before it {usual:.4g} "
        f"(robust deviations: {score}, limit {guard.threshold:g}), highest in micro-batch {highest} "
        f"({reading.losses[highest]:.4g})"
    )
    return StepFinding(LOSS_SPIKE, guard.loss_spike, (highest,)), text


def hint(reading: StepReading) -> str:
    """A frequent cause of NaN in the loss of some micro-batches, as a sentence; "" where it does not apply."""
    bad = sum(math.isnan(loss) for loss in reading.losses)
    rare = 0 < bad < len(reading.losses) or bad == 1 or (bad and reading.step == 1)  # later, training has diverged
    return MASKED if rare and math.isnan(reading.loss) else ""


def name_micro_batches(indices: Sequence[int]) -> str:
    """For people: the first few by number."""
    return f"micro-batch{'es' if len(indices) > 1 else ''} {few(indices, NAMED)}"
