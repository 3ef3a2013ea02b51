"""Whether members may join later: in a job they may, and in a rehearsal a session behaves as if they might.

A rehearsal runs a cell twice in one process: the second run begins where the first one was after a few steps, with what
a member gets that joins there. See `worker.rehearse`.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from ..session.state import TrainingState
from ..worker.main import current


@dataclass
class Rehearsal:
    """The state that the first run had after ``step`` steps, with which the second run begins. ``of``: whose it is."""

    step: int
    noted: tuple[Any, Any] | None = None
    joins: bool = False
    digest: str = ""
    of: TrainingState | None = None


rehearsing: ContextVar[Rehearsal | None] = ContextVar("rehearsing", default=None)


def members_join() -> bool:
    """Whether the cell's session may get members that have not run its first steps."""
    return current() is not None or rehearsing.get() is not None


def between(state: TrainingState, before: Callable[[], object]) -> None:
    """A session's cell is between two steps, and what it carries is copied, after a call of ``before``."""
    now = rehearsing.get()
    if now is not None and not now.joins and now.of in (None, state) and state.applied == now.step:
        before()
        now.of = state  # only the first session of a cell
        skeleton, tensors = state.pack(carried=True)
        now.noted = skeleton, [tensor.clone() for tensor in tensors]


def join(state: TrainingState) -> None:
    """A session's members have met."""
    now = rehearsing.get()
    if now is not None and now.joins and now.noted is not None:
        noted, now.noted = now.noted, None  # only the first session of a cell
        state.unpack(*noted, now.step)


def end(state: TrainingState) -> None:
    """A session has ended."""
    if (now := rehearsing.get()) is not None:
        now.digest = state.digest()
