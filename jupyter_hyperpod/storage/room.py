"""Room that a store keeps aside, so that a job can be stopped and its end is journaled while the disk is full.

<store>/reserve/ holds a few small files whose blocks are allocated. A record is written over the content of one, which
needs no more room, and the file is moved into the journal. On a file system that never overwrites (btrfs, ZFS) that
may fail as any other write does.
"""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..core.errors import StoreError
from ..core.events import Command, Event, encode
from ..system import portable
from . import segments
from .access import file_mode

RESERVE = "reserve"
FILES = 8
FILE_BYTES = 1 << 14
FULL_BYTES = 1 << 16  # with less a file system counts as full: journals are written in pieces of this size
FULL = (errno.ENOSPC, errno.EDQUOT)
ADVICE = (
    "free space there: `jupyter hyperpod prune` deletes jobs that ended long ago, `jupyter hyperpod delete JOB` one "
    "that has ended, and `jupyter hyperpod cluster stop` ends all that run"
)


def keep_room(root: Path) -> None:
    """Fill the reserve of the store in ``root``, as far as there is room. Only its owner does."""
    place = root / RESERVE
    with suppress(OSError):
        if os.stat(root).st_uid != portable.user_id():
            return
        place.mkdir(mode=0o700, exist_ok=True)
        there = set(os.listdir(place))
        for name in map(str, range(FILES)):
            if name not in there:
                _fill(place / name)


def _fill(path: Path) -> None:
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | portable.NOT_INHERITED, 0o600)
        try:
            if os.write(file, b"\0" * FILE_BYTES) < FILE_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(file)
        finally:
            os.close(file)
        os.rename(temporary, path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise


def is_full(error: StoreError) -> bool:
    """Whether a store has refused for want of room."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in FULL


def write_command(root: Path, directory: Path, writer: str, kind: str, data: Mapping[str, Any]) -> bool:
    """Write a command into ``directory`` with the room kept aside in the store ``root``; False where none is left.

    The user id of ``by`` becomes that of the file's owner, who is the owner of the store.
    """
    by = {**data["by"], "uid": os.stat(root).st_uid}
    return _put(root, directory, writer, Command, kind, {**data, "by": by})


def write_event(root: Path, directory: Path, writer: str, kind: str, data: Mapping[str, Any]) -> bool:
    """Write an event into ``directory`` with the room kept aside; False where none is left."""
    return _put(root, directory, writer, Event, kind, data)


def _put(
    root: Path, directory: Path, writer: str, record: type[Event | Command], kind: str, data: Mapping[str, Any]
) -> bool:
    name = f"{writer}.{secrets.token_hex(4)}"
    line = encode(record(name, 1, time.time(), kind, data))
    claimed = _claim(root / RESERVE) if len(line) <= FILE_BYTES else None
    if claimed is None:
        return False
    try:
        file = os.open(claimed, os.O_WRONLY | portable.NOT_INHERITED)
        try:
            if os.write(file, line) < len(line):
                return False
            os.ftruncate(file, len(line))
            portable.set_mode(file, file_mode(directory))
            os.fsync(file)
        finally:
            os.close(file)
        os.rename(claimed, directory / segments.first_name(name))
    except OSError:
        return False
    finally:
        claimed.unlink(missing_ok=True)
    return True


def _claim(place: Path) -> Path | None:
    """A file of the reserve that no other process takes."""
    claimed = place / f".claimed.{secrets.token_hex(4)}"
    for name in map(str, range(FILES)):
        with suppress(OSError):
            os.rename(place / name, claimed)
            return claimed
    return None


def full(root: Path) -> str:
    """A sentence where the file system of a store has no room left, else ""."""
    try:
        if portable.free_bytes(root) >= FULL_BYTES and portable.free_files(root) != 0:
            return ""
    except OSError:
        return ""
    return f"the disk of the store {root} is full, and journals cannot be written"


def warning(root: Path, times_s: Iterable[float | None] = ()) -> str:
    """What people are told who look at a store without room: all of it may be old; "" where there is room.

    ``times_s``: of the newest entries that are shown.
    """
    problem = full(root)
    if not problem:
        return ""
    newest_s = max((time_s or 0.0 for time_s in times_s), default=0.0)
    since = f"; the newest entry is of {time.strftime('%F %T', time.localtime(newest_s))}" if newest_s else ""
    return f"{problem}{since}; what is shown may be old; {ADVICE}"
