"""The end of a session that is over, for members that join in a later session of the same cell.

Such a member runs the cell from its start, and cannot live through sessions that are over: it loads their ends. Members
hold a copy of a session's end until the cell opens the next one; then rank 0 writes it beside the job's journal.

A file is the length of its head (8 bytes), the head (JSON), and the bytes of the tensors in their order.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from ...core.errors import StoreError, TrainingError
from ...core.units import few, format_bytes
from ..comm import state_codec
from ..comm.reduction import as_bytes
from ..worker.main import current
from .store import write

KEPT_BYTES = 1 << 30  # a larger state is not held twice
NOT_KEPT = (
    "members that are lost from now on are not replaced: the state at the end of session {session} of this cell, which "
    "a newcomer needs, {why}. Give the later session a cell of its own"
)
OTHER_END = (
    "session {session} of this cell was over when this member came, and its code has not come to the same end after "
    "step {step}{names}. The code around the steps depends on more than what the session carries: keep such values in "
    "the session, session.state.name = ..., or give the later session a cell of its own"
)


@dataclass
class SessionEnd:
    """A session, from 1, after its last step. ``results``: of its evaluations.

    ``late``: what the program has changed, as `LateChanges` shows it at the end. ``why`` the state is not kept.
    """

    session: int
    step: int
    digest: str
    stopped: bool
    results: Mapping[str, Any]
    late: Mapping[str, Any] = field(default_factory=dict)
    skeleton: Any = None
    tensors: list[torch.Tensor] = field(default_factory=list)
    why: str = ""

    def write(self, path: Path) -> None:
        """Write it for newcomers. Raises OSError."""
        head = {"step": self.step, "digest": self.digest, "stopped": self.stopped, "results": self.results}
        head["late"] = self.late
        text = json.dumps(head | {"skeleton": state_codec.encode(self.skeleton).decode()}).encode()
        path.parent.mkdir(mode=0o700, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}")
        write(draft, [len(text).to_bytes(8, "big"), text, *map(as_bytes, self.tensors)])
        os.replace(draft, path)


def other_end(end: SessionEnd, names: Sequence[str]) -> str:
    """Why a member whose cell has come to another end cannot join; ``names``: what differs, if that is known."""
    found = f": {few(names)}" if names else ""
    return OTHER_END.format(session=end.session, step=end.step, names=found)


def read(path: Path, session: int) -> SessionEnd | None:
    """The end of a session, None where it is not over or was not kept. Raises OSError and ValueError."""
    try:
        file = open(path, "rb")
    except FileNotFoundError:
        return None
    with file:
        head = json.loads(file.read(int.from_bytes(file.read(8), "big")))
        skeleton = state_codec.decode(head.pop("skeleton").encode())
        tensors = state_codec.blank(skeleton)
        for tensor in tensors:
            view = as_bytes(tensor)
            if file.readinto(view) != len(view):
                raise ValueError(f"{file.name} is shorter than expected")
    return SessionEnd(session, **head, skeleton=skeleton, tensors=tensors)


def keep(end: SessionEnd, skeleton: Any, tensors: Sequence[torch.Tensor], replica: int) -> None:
    """A session is over on all members: hold the packed state until the cell opens the next one."""
    if (worker := current()) is None:
        return
    end.session, size = worker.sessions, state_codec.size_bytes(tensors)
    if size > KEPT_BYTES:
        end.why = f"has {format_bytes(size)}, more than {format_bytes(KEPT_BYTES)}"
    if replica > 1:
        end.why = "is shared by the ranks of a replica"
    if not end.why:
        whole = torch.contiguous_format
        end.skeleton, end.tensors = skeleton, [t.detach().cpu().clone(memory_format=whole) for t in tensors]
    worker.end = end


def next_begins(warn: Callable[[str], None], is_newcomer: bool) -> None:
    """The cell opens a session: rank 0 writes the end of the one before, which newcomers need."""
    if (worker := current()) is None:
        return
    end: SessionEnd | None = worker.end
    worker.end = None
    if not worker.is_first():
        return
    if not is_newcomer and not worker.sessions:  # the cell begins: an earlier run of it may have ended some
        worker.context.job.forget_session_ends()
    if end is None:
        return
    if not end.why:
        try:
            end.write(worker.context.job.session_end(end.session))
            worker.context.job.leave_session_end(end.session)
        except (OSError, StoreError) as error:
            end.why = f"could not be written: {getattr(error, 'strerror', None) or error}"
    if end.why:
        warn(NOT_KEPT.format(session=end.session, why=end.why))


def passed_over() -> SessionEnd | None:
    """The end of the session that a newcomer's cell has come to, if that is over: the session is not entered then.

    Raises TrainingError for a file that cannot be read.
    """
    if (worker := current()) is None:
        return None
    number = worker.sessions + 1
    try:
        end = read(worker.context.job.find_session_end(number), number)
    except (OSError, ValueError, StoreError) as error:
        raise TrainingError(f"the end of session {number} of this cell cannot be read: {error}") from error
    if end is not None:
        worker.sessions = number
        worker.progress.touch("user", end.step)
    return end
