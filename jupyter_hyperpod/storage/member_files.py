"""Reads the commands that members of the operating group of a shared store leave in ``commands/members``.

Whoever may write there is not trusted: only a regular file with one name is opened, never through a link, and only its
first line is read, once. Limits hold per person and per directory, so that nobody can fill memory or a journal.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from ..core.errors import ProtocolError
from ..core.events import Command, decode_command
from ..core.member_commands import accepted
from ..core.people import Person, shown
from ..system import portable
from ..system.users import belongs, group_name, user_name
from .segments import SUFFIX

MEMBERS = "members"  # the directory in `commands/`
LINE_BYTES = 16_384
MOST_FILES = 4096  # looked at in one directory
MOST_COMMANDS = 1000  # of one person, per process that reads
MOST_PROBLEMS = 50
_DIRECTORY = portable.DIRECTORY | portable.NO_LINK | portable.NOT_INHERITED
MOST_UNFINISHED, UNFINISHED_S = 64, 30.0  # files whose first line is not there yet
_NAME = re.compile(r"control\.[0-9a-f]{8}" + re.escape(SUFFIX))


@dataclass
class MemberFiles:
    """Follows the commands of members for one job. ``report`` gets a sentence per kind of refusal, up to a limit."""

    directory: Path
    job_id: str
    report: Callable[[str], None]
    _finished: set[str] = field(default_factory=set)
    _counts: Counter[int] = field(default_factory=Counter)
    _told: set[str] = field(default_factory=set)
    _waiting: dict[str, float] = field(default_factory=dict)  # since when a file is not complete

    def poll(self) -> list[Command]:
        """Return new commands; never raises for what the directory contains."""
        try:
            directory = os.open(self.directory, os.O_RDONLY | _DIRECTORY)
        except OSError:
            return []  # the store is not shared
        try:
            return self._read_all(directory)
        except OSError as error:
            self._refuse(f"commands of members cannot be read: {error.strerror}")
            return []
        finally:
            os.close(directory)

    def _read_all(self, directory: int) -> list[Command]:
        here = os.fstat(directory)
        if not (here.st_mode & stat.S_IWGRP and here.st_mode & stat.S_ISVTX):
            return []  # the store is no longer shared
        with os.scandir(directory) as entries:
            names = [entry.name for entry in islice(entries, MOST_FILES + 1)]
        if len(names) > MOST_FILES:
            self._refuse(f"there are more than {MOST_FILES} files of members; the others are not read")
        self._finished.intersection_update(names)
        self._waiting = {name: since_s for name, since_s in self._waiting.items() if name in names}
        found = []
        for name in sorted(names[:MOST_FILES]):
            if name not in self._finished and (command := self._read(directory, name, here.st_gid)) is not None:
                found.append(command)
        return found

    def _read(self, directory: int, name: str, group: int) -> Command | None:
        if not _NAME.fullmatch(name):
            return self._finish(name, f"{shown(name)!r} is not a file of commands")
        try:
            line, owner = _first_line(directory, name)
        except ProtocolError as error:
            return self._finish(name, str(error))
        except OSError as error:
            # it may have been removed, or be made readable in a moment
            if error.errno not in (errno.ENOENT, errno.EACCES):
                return self._finish(name, f"a command was refused: {error.strerror}")
            line, owner = None, -1
        if line is None:
            return self._wait_for(name)
        who = user_name(owner)
        if belongs(owner, group) is False:
            return self._finish(name, f"a command of {who} was refused: {who} is not in the group {group_name(group)}")
        if self._counts[owner] >= MOST_COMMANDS:
            return self._finish(name, f"further commands of {who} are refused: there were {MOST_COMMANDS}")
        self._counts[owner] += 1
        try:
            command = accepted(decode_command(line), self.job_id, name.removesuffix(SUFFIX), Person(who, owner))
        except ProtocolError as error:
            return self._finish(name, str(error))
        self._finished.add(name)
        return command

    def _wait_for(self, name: str) -> Command | None:
        now_s = time.monotonic()
        if name not in self._waiting and len(self._waiting) >= MOST_UNFINISHED:
            return self._finish(name, f"a command was refused: {MOST_UNFINISHED} others are not complete")
        if now_s - self._waiting.setdefault(name, now_s) > UNFINISHED_S:
            return self._finish(name, f"a command was refused: it was not complete after {UNFINISHED_S:g} s")
        return None

    def _finish(self, name: str, problem: str) -> Command | None:
        self._finished.add(name)
        self._refuse(problem)
        return None

    def _refuse(self, problem: str) -> None:
        if problem not in self._told and len(self._told) < MOST_PROBLEMS:
            self._told.add(problem)
            self.report(problem[:300])


def _first_line(directory: int, name: str) -> tuple[bytes | None, int]:
    """The first line of a file and the user to whom it belongs; None for a line that is not complete.

    Raises ProtocolError for anything else than a regular file with one name, and for a line that is too long.
    """
    _check(os.stat(name, dir_fd=directory, follow_symlinks=False))  # opening a device may have effects
    flags = os.O_RDONLY | portable.NO_LINK | portable.NO_WAITING | portable.NOT_INHERITED
    file = os.open(name, flags, dir_fd=directory)
    try:
        found = os.fstat(file)
        _check(found)
        content = os.pread(file, LINE_BYTES + 1, 0)
    finally:
        with suppress(OSError):
            os.close(file)
    line, newline, _ = content.partition(b"\n")
    if not newline and len(content) > LINE_BYTES:
        raise ProtocolError(f"a command of {user_name(found.st_uid)} was refused: it has more than {LINE_BYTES} bytes")
    return line if newline else None, found.st_uid


def _check(found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
        what = "has several names" if stat.S_ISREG(found.st_mode) else "is not a regular file"
        raise ProtocolError(f"a command of {user_name(found.st_uid)} was refused: its file {what}")
