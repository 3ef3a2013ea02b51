"""The parts of one session, which its loop and its steps share, and the numbers that are fixed for the whole run."""

from __future__ import annotations

from dataclasses import dataclass

from ..checkpoint.manager import CheckpointManager
from ..data.batches import Batches
from ..data.sizes import BatchSizes
from ..program.between import Between
from ..program.carried import Carried
from ..program.comparison import Comparison
from ..worker.replica_sync import Group
from .clipping import GradientLimits
from .gradients import Gradients
from .integrity import Integrity
from .resync import Resync
from .state import TrainingState
from .step_record import Commits


@dataclass(frozen=True)
class Settings:
    """What a person chose once; ``limits`` clip the gradient.

    ``runs`` per step: one per optimizer. The runtime counts runs, and calls each of them a step.
    """

    seed: int
    global_batch: int
    micro_batch: int
    limits: GradientLimits
    runs: int = 1

    @property
    def micro_batches(self) -> int:
        """Micro-batches per step, where that does not change."""
        return self.global_batch // self.micro_batch


@dataclass(frozen=True)
class Parts:
    """Everything that a step needs. No part knows the session."""

    settings: Settings
    sizes: BatchSizes
    batches: Batches
    group: Group
    state: TrainingState
    carried: Carried
    gradients: Gradients
    commits: Commits
    integrity: Integrity
    checkpoints: CheckpointManager
    between: Between
    comparison: Comparison
    resync: Resync
