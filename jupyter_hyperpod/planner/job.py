"""One simulated job: its progress, and what its time goes into."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from dataclasses import dataclass, field
from functools import lru_cache

from ..policy.scaling import Claim
from .rules import Stages

TRAINING, FEWER, SAVING, AGAIN = "training", "fewer instances", "checkpoints", "computed again"
WAITING, QUEUED = "waiting for instances", "queued"
EPSILON_S = 1e-6


@dataclass(slots=True)
class Halt:
    """A stage in which the job stands still, and how many seconds of it are left."""

    stage: str
    left_s: float


@lru_cache(maxsize=64)
def _unnamed(instances: int) -> tuple[str, ...]:
    """This many instances; their names do not matter."""
    return ("",) * instances


@dataclass(slots=True)
class Job:
    """A job in simulated time; `advance` lets time pass, everything else changes what the job does."""

    target: int
    minimum: int
    work_s: float
    spares: int
    cost_s: float
    members: int = 0
    ready: int = 0
    coming: int = 0
    started: bool = False
    waiting: bool = False
    stateful: bool = True
    speed: float = 1.0
    position_s: float = 0.0
    saved_s: float = 0.0
    every_s: float | None = None
    stop: deque[Halt] = field(default_factory=deque)
    stages: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    _phase_s: float = 0.0  # since the end of the last checkpoint

    @property
    def held(self) -> int:
        """Instances it has, spares included."""
        return self.members + self.ready + self.coming

    @property
    def training(self) -> bool:
        """Whether it computes now."""
        return self.started and not self.stop and not self.waiting

    @property
    def done(self) -> bool:
        """Whether all its work is done."""
        return self.position_s >= self.work_s - EPSILON_S

    def claim(self) -> Claim:
        """The nodes that it wants of the cluster."""
        return Claim(
            "job", 0, 0.0, self.minimum, self.target, self.spares, self.started, self.target, _unnamed(self.held)
        )

    def halt(self, stages: Stages, serial: bool) -> None:
        """Stand still for some stages. The present stages end now; with ``serial`` they come first."""
        if not serial:
            self.stop.clear()
        self.stop.extend(Halt(name, seconds) for name, seconds in stages if seconds > 0)

    def go_back(self, to_s: float) -> None:
        """Go back to an earlier point of the work."""
        lost_s = self.position_s - to_s
        self.stages[TRAINING] -= lost_s
        self.stages[AGAIN] += lost_s
        self.position_s = self.saved_s = to_s
        self._phase_s = 0.0

    def next_change_s(self, mark_s: float) -> float:
        """Seconds until a stage ends, or until the work has come to ``mark_s``, if nothing happens."""
        if self.stop:
            return self.stop[0].left_s
        if not self.training:
            return math.inf
        missing_s = max(0.0, mark_s - self.position_s) / self.speed
        if self.every_s is None or math.isinf(missing_s):
            return missing_s
        trained_s = self._trained(self._phase_s) + missing_s
        pauses = max(0, math.ceil(trained_s / self.every_s - EPSILON_S) - 1)
        return trained_s + pauses * self.cost_s - self._phase_s

    def advance(self, seconds: float) -> None:
        """Let time pass; never beyond `next_change_s`."""
        if self.stop:
            halt = self.stop[0]
            self.stages[halt.stage] += seconds
            halt.left_s -= seconds
            if halt.left_s <= EPSILON_S:
                self.stop.popleft()
        elif not self.started:
            self.stages[QUEUED] += seconds
        elif self.waiting:
            self.stages[WAITING] += seconds
        else:
            self._train(seconds)

    def _train(self, seconds: float) -> None:
        trained_s = seconds
        if self.every_s is not None:
            period_s = self.every_s + self.cost_s
            end_s = self._phase_s + seconds
            before_s = self._trained(self._phase_s)
            trained_s = self._trained(end_s) - before_s
            if whole := math.floor(end_s / period_s + EPSILON_S):
                self.saved_s = self.position_s + self.speed * (whole * self.every_s - before_s)
                end_s = max(0.0, end_s - whole * period_s)
            self._phase_s = end_s
        gained_s = self.speed * trained_s
        self.position_s += gained_s
        if self.every_s is None:
            self.saved_s = self.position_s
        self.stages[TRAINING] += gained_s
        self.stages[FEWER] += trained_s - gained_s
        self.stages[SAVING] += seconds - trained_s

    def _trained(self, phase_s: float) -> float:
        """Of the seconds since a checkpoint, those that were not spent on checkpoints."""
        assert self.every_s is not None
        whole, rest_s = divmod(phase_s, self.every_s + self.cost_s)
        return float(whole) * self.every_s + min(rest_s, self.every_s)
