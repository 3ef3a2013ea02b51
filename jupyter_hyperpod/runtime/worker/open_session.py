"""Refuses a session that begins before the one before it has ended: the members of a job would wait for ever.

Warns of variables that the cell has set too late.
"""

from __future__ import annotations

from ...core.errors import TrainingError
from ...storage.environment import kernel_choices
from ..program.frames import callers
from .main import Worker, current

OPEN = (
    "this hp.Session begins while the one with the loop of line {line} is open, and the members of a job train one "
    "session at a time. End that one first: with hp.Session(...) as session: ends it behind its block. Models that "
    "train together belong into one session: hp.Session(torch.nn.ModuleList([one, other]), [optimizer, "
    "other_optimizer], ...)"
)
CAUGHT = (
    "this hp.Session begins after the one with the loop of line {line} was left by {error}, which the cell caught, so "
    "its members have not ended it together. Leave the loop by break, or by session.stop(reason), in its place"
)
LATE = (
    "the cell sets {names}, which libraries read once, often before a cell begins: it may have no effect here and "
    "another one on other nodes, so that results differ in their last bits. Give it to the job instead: {remedy}"
)


def begin() -> None:
    """A session begins. Raises TrainingError where another one has not ended."""
    if (worker := current()) is not None:
        _warn_of_late(worker)
        if worker.unfinished:
            raise TrainingError(worker.unfinished)
        worker.loop_line = _line()
        worker.unfinished = OPEN.format(line=worker.loop_line)


def _warn_of_late(worker: Worker) -> None:
    now = kernel_choices()
    if late := sorted(name for name in now if now[name] != worker.kernel_choices.get(name)):
        remedy = " ".join(f"--env {name}=…" for name in late)
        worker.journal("warning.raised", {"text": LATE.format(names=", ".join(late), remedy=remedy)})
    worker.kernel_choices = now


def left_by(error: BaseException) -> None:
    """The session that has begun is left by an error, which the cell may catch."""
    if (worker := current()) is not None and worker.unfinished:
        worker.unfinished = CAUGHT.format(line=worker.loop_line, error=type(error).__name__)


def ended() -> None:
    """All members have ended the session."""
    if (worker := current()) is not None:
        worker.unfinished = ""


def _line() -> int:
    frames = callers()
    return frames[0].f_lineno if frames else 0
