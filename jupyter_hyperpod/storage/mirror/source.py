"""The sending side: what a job's files have more than the other side has, in frames.

Files of lines grow at their end, and only whole lines are sent: a writer may take a torn line back. All other files are
small and are sent anew when they have changed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import StoreError
from ..folded import SNAPSHOT
from ..resources.node_uses import FOLDER as RESOURCES
from ..segments import SUFFIX, as_written
from ..source_record import FOLDER as SOURCES
from ..store import ENDED_MARK
from ..values import PULLED
from .mirror_frames import CONTENT_BYTES, Frame

EVENTS, LOG = "events", ".log"
FOLDERS = (EVENTS, RESOURCES, "output", "logs", SOURCES)
SINGLE = (SNAPSHOT, ENDED_MARK)
LAST = ("coordinator.", "supervisor.")  # writers that say how a job ends
OF_CLIENT = ("control.", "follower.")  # writers on the machine that submits: their files travel the other way


def _every(_: str) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class MirrorScope:
    """What is carried of a job's directory: of ``folders`` the files whose paths ``takes``, and single files.

    ``early`` ones are sent before those that say how the job ends. ``tells_names``: the other side removes others.
    """

    folders: Sequence[str]
    early: Sequence[str] = ()
    singles: Sequence[str] = ()
    tells_names: bool = False
    takes: Callable[[str], bool] = _every


# a notebook that sees the end takes the values that come back
OF_HEAD = MirrorScope(FOLDERS, (PULLED,), SINGLE, tells_names=True)


class MirrorSource:
    """One job's directory. ``known``: path -> how many bytes the other side has of files that grow."""

    def __init__(self, job: Path, known: Mapping[str, int], scope: MirrorScope = OF_HEAD) -> None:
        self._job, self._known, self._scope = job, dict(known), scope
        self._sent: dict[str, tuple[int, int]] = {}  # of files that are sent whole: when changed, and the size
        self._there: dict[str, list[str]] = {}

    def news(self, ended: bool = False) -> Iterator[Frame]:
        """What has changed since the last call; who reads it to its end has all that was there when it began.

        ``ended``: nobody writes any more, so that the last line of a log is sent though it has no end.

        How the job ends comes after all that was written before that: a reader that sees the end has every step.
        Raises StoreError where the job is gone.
        """
        last = [f"{EVENTS}/{name}" for name in self._names(EVENTS) if name.startswith(LAST)]
        until = {path: self._size(path) for path in last}  # before the names of the others are read
        there = {folder: self._names(folder) for folder in self._scope.folders}
        if not (self._job / "spec.json").exists():
            raise StoreError(f"{self._job} is gone: it was deleted, or its file system is")
        for folder, names in there.items():
            for name in names:
                if folder != EVENTS or not name.startswith(LAST):
                    path = f"{folder}/{name}"
                    yield from self._growth(path) if grows(folder, name) else self._whole(path)
                    if ended and name.endswith(LOG):
                        yield from self._rest(path)
        for name in self._scope.early:
            yield from self._whole(name)
        for path, size in until.items():
            yield from self._growth(path, size)
        for name in self._scope.singles:
            yield from self._whole(name)
        if self._scope.tells_names and there != self._there:
            self._there = there
            yield Frame({"there": there})

    def sent(self, path: str) -> int:
        """How many bytes of a file that grows the other side has, or is being sent."""
        return self._known.get(path, 0)

    def _names(self, folder: str) -> list[str]:
        with suppress(OSError), os.scandir(self._job / folder) as entries:
            files = [one.name for one in entries if one.is_file(follow_symlinks=False)]
            mine = (name for name in files if is_of_head(folder, name) and self._scope.takes(f"{folder}/{name}"))
            return sorted(mine, key=as_written)
        return []

    def _size(self, path: str) -> int:
        with suppress(OSError):
            return os.stat(self._job / path).st_size
        return 0

    def _growth(self, path: str, until: int | None = None) -> Iterator[Frame]:
        """The whole lines that are new, of the first ``until`` bytes of a file."""
        at = self._known.get(path, 0)
        end = self._size(path) if until is None else until
        if end <= at:
            return
        with suppress(OSError):
            with open(self._job / path, "rb") as file:
                file.seek(at)
                waiting = b""
                while piece := file.read(min(CONTENT_BYTES, end - at - len(waiting))):
                    lines, newline, waiting = (waiting + piece).rpartition(b"\n")
                    if newline:
                        yield Frame({"path": path, "at": at}, lines + newline)
                        at += len(lines) + 1
                        self._known[path] = at

    def _rest(self, path: str) -> Iterator[Frame]:
        at = self._known.get(path, 0)
        with suppress(OSError), open(self._job / path, "rb") as file:
            file.seek(at)
            if rest := file.read(CONTENT_BYTES):
                self._known[path] = at + len(rest)
                yield Frame({"path": path, "at": at}, rest)

    def _whole(self, path: str) -> Iterator[Frame]:
        with suppress(OSError):
            found = os.stat(self._job / path)
            mark = found.st_mtime_ns, found.st_size
            if self._sent.get(path) != mark:
                content = (self._job / path).read_bytes()
                self._sent[path] = mark
                yield Frame({"path": path, "whole": 1}, content)


def grows(folder: str, name: str) -> bool:
    """Whether a file only ever grows, by whole lines. What a job has read may have any name."""
    return folder != SOURCES and name.endswith((SUFFIX, LOG))


def is_of_head(folder: str, name: str) -> bool:
    """Whether a file is written where the head is, and complete."""
    return not name.startswith(".") and not (folder == EVENTS and name.startswith(OF_CLIENT))
