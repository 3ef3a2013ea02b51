"""What a pod with a store of its own asks of its head: what one member alone may do, and what members leave others."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from ...core.errors import ProtocolError, StoreError
from ..mirror.mirror_frames import CONTENT_BYTES, Frame
from .wire import HeadAddress, Wire, told

T = TypeVar("T")
ANSWER_S = 10.0
TRIES_S = 120.0  # a head that is lost is replaced by then, where its store is still there
PAUSE_S = 0.2


class HeadFiles:
    """The head's files of one job. Threads may use it at once. Every method raises StoreError.

    Each question is a connection: they are few. A question that got no answer is asked again, so each may arrive twice.
    """

    def __init__(self, job: Path, limit_s: float = TRIES_S) -> None:
        self._job, self._limit_s = job, limit_s

    def claim(self, name: str) -> bool:
        """Whether this process is the first of all pods that claims ``name``."""
        claimant = os.urandom(16).hex()  # so that asking again does not lose what was won
        return self._ask(lambda wire: bool(self._answer(wire, claim=name, claimant=claimant).head.get("won")))

    def recorded(self, path: str) -> bytes | None:
        """What the job's first member has recorded of ``path``."""

        def ask(wire: Wire) -> bytes | None:
            answer = self._answer(wire, recorded=path)
            return answer.content if "path" in answer.head else None

        return self._ask(ask)

    def record(self, path: str, found: bytes) -> bytes:
        """Record ``found``, where nothing is recorded of ``path``; what is recorded then."""

        def ask(wire: Wire) -> bytes:
            wire.send(Frame({"path": path, "record": 1}, found))
            return told(wire.receive()).content

        return self._ask(ask)

    def forget_session_ends(self) -> None:
        """Remove all that `leave_session_end` has left."""
        self._ask(lambda wire: self._answer(wire, forget_ends=1))

    def leave_pulled(self, content: bytes) -> None:
        """Leave the values that come back to the notebook."""

        def ask(wire: Wire) -> None:
            wire.send(Frame({"path": "pulled", "pulled": 1}, content))
            told(wire.receive())

        self._ask(ask)

    def leave_session_end(self, session: int, file: Path) -> None:
        """Leave the end of a session for members that come later."""

        def ask(wire: Wire) -> None:
            at = 0
            for piece in _pieces(file):
                wire.send(Frame({"path": file.name, "end_of": session, "at": at}, piece))
                at += len(piece)
            self._answer(wire, leave_end=session)

        self._ask(ask)

    def fetch_session_end(self, session: int, file: Path) -> None:
        """Write the end of a session to ``file``, which is removed where there is none: it may be of an earlier run."""

        def ask(wire: Wire) -> bool:
            wire.send(Frame({"fetch_end": session}))
            first = told(wire.receive())
            if "none" in first.head:
                return False
            draft = file.with_name(f"{file.name}.{os.getpid()}")
            with _local(draft):
                draft.parent.mkdir(mode=0o700, exist_ok=True)
                draft.write_bytes(b"")
            frame = first
            while "over" not in frame.head:
                with _local(draft), open(draft, "ab") as content:
                    content.write(told(frame).content)
                frame = wire.receive()
            with _local(file):
                os.replace(draft, file)
            return True

        if not self._ask(ask):
            with _local(file):
                file.unlink(missing_ok=True)

    def _answer(self, wire: Wire, **question: object) -> Frame:
        wire.send(Frame(question))
        return told(wire.receive())

    def _ask(self, ask: Callable[[Wire], T]) -> T:
        until_s = time.monotonic() + self._limit_s
        while True:
            try:
                wire = call(self._job, ANSWER_S)
                try:
                    return ask(wire)
                finally:
                    wire.close()
            except (OSError, ProtocolError) as error:
                if time.monotonic() > until_s:
                    why = getattr(error, "strerror", None) or error
                    raise StoreError(f"the head of {self._job.name} does not answer: {why}") from error
            time.sleep(PAUSE_S)


@contextmanager
def _local(path: Path) -> Iterator[None]:
    """What fails with a file of this pod is not asked again."""
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot use {path}: {error.strerror or error}") from error


def _pieces(file: Path) -> Iterator[bytes]:
    with _local(file):
        content = open(file, "rb")
    with content:
        while True:
            with _local(file):
                piece = content.read(CONTENT_BYTES)
            if not piece:
                return
            yield piece


def of_job(job: Path) -> HeadFiles | None:
    """The head's files, where the store of this process is a pod's own; None where it is the head's."""
    return HeadFiles(job) if HeadAddress.of(job) is not None else None


def call(job: Path, timeout_s: float) -> Wire:
    """Connect to the head of a job. Raises OSError, StoreError."""
    address = HeadAddress.of(job)
    if address is None:
        raise StoreError(f"{job} names no head that serves its files")
    return Wire.call(address, (job / "secret").read_bytes(), timeout_s)
