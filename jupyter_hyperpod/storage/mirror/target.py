"""The receiving side: frames become files. What a file has already is never written twice, so a cut loses nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ...core.errors import ProtocolError, StoreError
from ...system import portable
from ..access import file_mode, like_its_parent
from ..segments import JournalSegment
from ..source_record import FOLDER as SOURCES
from ..store import private_directory, write_private, write_readable
from .mirror_frames import Frame
from .source import EVENTS, FOLDERS, grows, is_of_head

_SHOWN = tuple(f"{folder}/" for folder in FOLDERS if folder != SOURCES)  # to those who may read the store, too
PART = r"[A-Za-z0-9_][A-Za-z0-9._+~@-]{0,250}"
_OWN = r"[^/\0.][^/\0]{0,254}"  # people name the files of their folders as they like
FROM_HEAD = re.compile(rf"(?:events|resources|output|logs|sources)/{PART}|view\.json|pulled\.json|ended")
BEGINS = rf"sources/{PART}|spec\.json|secret|environment|fingerprint\.json|include/(?:{_OWN}/)*{_OWN}"
FROM_CLIENT = re.compile(rf"(?:events/(?:control|follower)\.|commands/){PART}|{BEGINS}")


class MirrorTarget:
    """One job's directory, into which only paths of ``allowed`` are written."""

    def __init__(self, job: Path, allowed: re.Pattern[str]) -> None:
        self._job, self._allowed = job, allowed

    def known(self) -> dict[str, int]:
        """Path -> how many bytes are here of files that grow, as the other side has to know."""
        found = {}
        for folder in FOLDERS:
            with suppress(OSError):
                for name in os.listdir(self._job / folder):
                    if grows(folder, name) and is_of_head(folder, name):
                        found[f"{folder}/{name}"] = os.stat(self._job / folder / name).st_size
        return found

    def take(self, frame: Frame) -> None:
        """Write what a frame brings. Raises ProtocolError for what must not be written, and StoreError."""
        if "there" in frame.head:
            self._forget(frame.head["there"])
        elif "path" in frame.head:
            path = frame.head["path"]
            if not self._allowed.fullmatch(path) or ".." in path.split("/"):
                raise ProtocolError(f"the other side sent the file {path[:80]!r}, which is none of a job's")
            if not self._job.is_dir():
                raise StoreError(f"{self._job} is gone: it was deleted, or its file system is")
            if "/" in path:
                self._make_folders(path)
            if frame.head.get("whole"):
                shown = path == "view.json" or path.startswith(_SHOWN)
                (write_readable if shown else write_private)(self._job / path, frame.content)
            else:
                self._extend(self._job / path, frame.head.get("at", 0), frame.content)

    def _make_folders(self, path: str) -> None:
        folder = self._job / path.split("/")[0]
        if path.startswith(_SHOWN) and not folder.is_dir():
            with suppress(OSError):
                like_its_parent(private_directory(folder))
        private_directory((self._job / path).parent)

    def _extend(self, path: Path, at: int, content: bytes) -> None:
        try:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | portable.NOT_INHERITED | portable.NO_LINK, 0o600)
            try:
                has = os.fstat(file).st_size
                if not has and (mode := file_mode(path.parent)) != 0o600:
                    portable.set_mode(file, mode)
                if has < at:
                    raise ProtocolError(f"{path.name} has {has} bytes here, and what was sent begins at {at}")
                os.lseek(file, has, os.SEEK_SET)
                left = memoryview(content)[has - at :]
                while left:
                    left = left[os.write(file, left) :]
            finally:
                os.close(file)
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror or error}") from error

    def _forget(self, there: object) -> None:
        """Remove files that the other side has no more: the oldest output, and segments that were joined.

        What a journal lacks otherwise is kept: that other store is being deleted.
        """
        for folder, names in there.items() if isinstance(there, Mapping) else ():
            if folder not in FOLDERS or not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise ProtocolError("the other side named a folder that is none of a job's")
            with suppress(OSError):
                for name in set(os.listdir(self._job / folder)).difference(names):
                    kept = folder == EVENTS and not is_joined(name, names)
                    if names and not kept and is_of_head(folder, name):
                        (self._job / folder / name).unlink(missing_ok=True)


def is_joined(name: str, names: list[str]) -> bool:
    """Whether another of the ``names`` holds the records of a segment."""
    segment = JournalSegment.of(name)
    others = filter(None, map(JournalSegment.of, names))
    return segment is not None and any(
        other.writer == segment.writer and other.last is not None and other.first <= segment.first <= other.last
        for other in others
    )
