"""Notices a cell that trains on each node by itself: people who are new to jobs take that for training on all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

SOON = 20  # steps of optimizers after which it is said while the cell runs
ALONE = (
    "the cell trains without a session: each of the {members} members does the whole training by itself, and nothing "
    "is shared between them. To train one model on all of them, give model, optimizer and data to hp.Session"
)


class LoneTraining:
    """Counts the steps that optimizers take while no session and no process group is there.

    ``members``: how many run the cell; ``sessions``: how many sessions have begun by now; ``warn``: told once.
    """

    def __init__(self, members: int, sessions: Callable[[], int], warn: Callable[[str], None]) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._members, self._sessions, self._warn, self._steps = members, sessions, warn, 0
        self._hook = register_optimizer_step_post_hook(self._count)

    def _count(self, *_: Any) -> None:
        import torch.distributed

        if self._sessions() or (torch.distributed.is_available() and torch.distributed.is_initialized()):
            self._steps = 0
            self._hook.remove()
            return
        self._steps += 1
        if self._steps == SOON:
            self.end()

    def end(self) -> None:
        """Say it where it is so and has not been said."""
        self._hook.remove()
        if self._steps:
            self._steps = 0
            self._warn(ALONE.format(members=self._members))
