"""Watches what the cell does to the training state between two steps, and refuses what a newcomer could not repeat.

After a step the cell may change the state, as a clipped weight or its own scheduler does: then the reduced gradients
alone do not lead a newcomer from one step to the next, and it needs the state itself. From there to the next step it
may change settings, such as learning rates, but not the weights: a newcomer that comes in the middle of that step gets
the weights as they are, and runs that part of its cell, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...core.errors import TrainingError
from ..session.checksum import ChecksummedTensors, fold
from ..session.state import TrainingState
from .analysis.stepped_code import reads_cell

CAREFUL_STEPS = 3  # whose states are compared by checksums: torch does not count what is written through .data
REFUSED = (
    "the cell changed the model before step.run(), in step {step}: a member that joins in the middle of that step "
    "would make the change twice. Make it after step.run(), at the end of the loop"
)


@dataclass(frozen=True)
class Observed:
    """The state at one moment; ``checksum`` is None where it was not computed."""

    versions: int
    settings: list[dict[str, Any]]
    checksum: int | None
    momenta: tuple[Any, ...] = ()

    def same_settings(self, other: Observed) -> bool:
        """Whether the optimizer has the same settings, to the bit, and running statistics the same momenta."""
        return self.momenta == other.momenta and plain_settings(self.settings) == plain_settings(other.settings)

    def same(self, other: Observed) -> bool:
        """Whether nothing has changed."""
        return (self.versions, self.checksum) == (other.versions, other.checksum) and self.same_settings(other)


class Between:
    """``repeatable``: the number of last steps after which the cell left the state alone.

    Where no ``members_join``, outside a job, nothing is refused.
    """

    def __init__(self, state: TrainingState, members_join: bool) -> None:
        self._state = state
        self._members_join = members_join
        self._seen: Observed | None = None
        self._careful = True
        self._watched = ChecksummedTensors([], ordered=True)
        self._is_new = False  # a step was applied since the cell was between two steps
        self._prepared = False  # the cell changed something before the step that runs, or ran last
        self._asked: tuple[frozenset[str], list[int], bool] | None = None  # `reads_cell` of these names and hooks
        self._writes_before: int | None = None
        self.writes: int | None = None  # to parameters, by the cell since the last step was applied; None: not known
        self.repeatable = 0

    def applied(self, needed: bool) -> None:
        """A step was applied; ``needed``: a newcomer may need its gradient."""
        self._careful = needed or self._state.applied <= CAREFUL_STEPS
        self._seen, self._is_new = self._look(), True
        self._writes_before = self._state.writes()

    def reached(self) -> None:
        """The cell is between two steps: it has done what follows a step."""
        before, self._seen = self._seen, self._look()
        alone = before is not None and before.same(self._seen) and not self._reads_cell()
        if self._is_new:
            self.repeatable = self.repeatable + 1 if alone and not self._prepared else 0
            self._is_new = self._prepared = False
        elif before is not None and not alone:  # what follows an epoch: others may hold the state from before that
            self.repeatable, self._prepared = 0, True
        self._state.seal_settings(self._seen.settings)

    def begins(self) -> None:
        """The cell begins the next step. Raises TrainingError where it has changed the model meanwhile."""
        before, self._seen = self._seen, None
        earlier, self._writes_before = self._writes_before, None
        self.writes = None if earlier is None else self._state.writes() - earlier
        if before is None:
            return
        now = self._look()
        if now.versions != before.versions or not now.same_settings(before):
            self.repeatable, self._prepared = 0, True
        if now.checksum is not None and now.checksum != before.checksum and self._members_join:
            raise TrainingError(REFUSED.format(step=self._state.applied + 1))

    def forget(self) -> None:
        """The state came from another member or from a checkpoint."""
        self._seen, self.repeatable, self._prepared = None, 0, False
        self._writes_before = self.writes = None

    def _reads_cell(self) -> bool:
        """Whether a step of the optimizer reads what the cell changes, or the cell steps it."""
        changed, counts = self._state.carried.variables.changed, self._state.watch.hooks
        if self._asked is None or self._asked[0] != changed or self._asked[1] != counts:
            self._asked = changed, counts, reads_cell(*self._state.stepped, changed)
        return self._asked[2] or self._state.watch.is_stepped_by_program

    def _look(self) -> Observed:
        found = None
        self._watched = self._watched.of(list(self._state.trained().values()) if self._careful else [])
        if self._careful:
            found = fold(self._watched.checksums())
        return Observed(self._state.versions(), self._state.settings(), found, self._state.momenta())


def plain_settings(settings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Settings with tensors, such as a learning rate of a captured optimizer, as lists."""
    return [
        {name: getattr(value, "tolist", lambda v=value: v)() for name, value in group.items()} for group in settings
    ]
