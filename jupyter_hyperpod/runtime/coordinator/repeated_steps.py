"""Compares the losses of steps that are computed again, after all members were lost, with those of the first time."""

from __future__ import annotations

from ...core.units import plural
from .actions import Actions, WriteEvent

KEPT = 10_000  # steps, the newest
DIFFERS = (
    "step {step} was computed again and its loss is {now!r}, where it was {before!r} before: the run does not go on as "
    "it was. Something in the program is not seeded or is kept outside the session, or a node computes other bits than "
    "those before, such as one with another processor or other packages"
)

AGAIN = (
    "every member that held the training state is lost, and no checkpoint is there: the training begins again, and "
    "{steps} are computed a second time. A second node keeps the state in memory, and checkpoint= of hp.Session on disk"
)


class RepeatedSteps:
    """The losses of the steps of one job, as hexadecimal text, by session of the cell and step."""

    def __init__(self) -> None:
        self._losses: dict[tuple[int, int], str] = {}
        self._is_said = False

    def committed(self, session: int, step: int, loss: str) -> Actions:
        """A step is committed; one that differs is said once."""
        before = self._losses.pop((session, step), loss)
        self._losses[session, step] = loss
        if len(self._losses) > KEPT:
            del self._losses[next(iter(self._losses))]
        if before != loss and not self._is_said:
            self._is_said = True
            text = DIFFERS.format(step=step, now=float.fromhex(loss), before=float.fromhex(before))
            yield WriteEvent("warning.raised", {"text": text})

    @staticmethod
    def begins_again(steps: int) -> Actions:
        """Nobody has the state of a session that has committed so many steps."""
        if steps:
            yield WriteEvent("warning.raised", {"text": AGAIN.format(steps=plural(steps, "step"))})

    def forget(self) -> None:
        """The cell goes back to a checkpoint by its own decision, and may take another way from there."""
        self._losses.clear()
