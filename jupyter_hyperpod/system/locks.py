"""Locks on files, with a deadline: one process at a time, and the kernel releases a lock when its holder ends."""

from __future__ import annotations

import importlib
import math
import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..core.errors import Conflict, StoreError
from . import portable

with suppress(ModuleNotFoundError):  # Windows locks in its own way
    import fcntl

POLL_S = 0.01
_BYTE_LOCK = struct.Struct("hhqqi4x")  # struct flock of fcntl(2)


def take_lock(descriptor: int, wait_s: float | None = 0.0, poll_s: float = POLL_S) -> bool:
    """Lock an open file; False where another holder keeps it for longer than `wait_s` (None: wait without a limit).

    Raises OSError where the file system has no locks.
    """
    if not portable.HAS_USERS:
        return _wait(lambda: _lock_on_windows(descriptor), (PermissionError,), wait_s, poll_s)
    if wait_s is None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        return True
    return _wait(lambda: fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB), (BlockingIOError,), wait_s, poll_s)


def _lock_on_windows(descriptor: int) -> None:
    """Lock the first byte of an open file, which need not be there. Raises PermissionError where it is locked."""
    windows = importlib.import_module("msvcrt")
    os.lseek(descriptor, 0, os.SEEK_SET)
    windows.locking(descriptor, windows.LK_NBLCK, 1)


def take_byte_lock(descriptor: int, number: int, wait_s: float = 0.0, poll_s: float = POLL_S) -> bool:
    """Lock one byte, as `take_lock` locks a file; the lock belongs to the open file, so threads exclude each other."""
    lock = _BYTE_LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, number, 1, 0)
    held = (BlockingIOError, PermissionError)  # fcntl(2) allows either
    return _wait(lambda: fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, lock), held, wait_s, poll_s)


def release_byte_lock(descriptor: int, number: int) -> None:
    """Undo `take_byte_lock`."""
    fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _BYTE_LOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, number, 1, 0))


def _wait(attempt: Callable[[], object], held: tuple[type[OSError], ...], wait_s: float | None, poll_s: float) -> bool:
    deadline_s = time.monotonic() + (math.inf if wait_s is None else wait_s)
    while True:
        try:
            attempt()
        except held:
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(poll_s)
        else:
            return True


def open_lock(path: str | Path, mode: int = 0o600) -> int:
    """Return a descriptor of the lock file `path`, which is made where it is absent. Raises StoreError."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | portable.NOT_INHERITED, mode)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from error


@contextmanager
def one_at_a_time(
    path: str | Path, busy: str, wait_s: float | None, mode: int = 0o600, where_possible: bool = False
) -> Iterator[int]:
    """Let one process at a time into the block, by a lock on the file `path`, whose descriptor it gets.

    Raises Conflict with the sentence `busy` where another process is in it for longer than `wait_s`, and StoreError
    where the file cannot be written. With `where_possible`, a file system without locks lets every process in.
    """
    descriptor = open_lock(path, mode)
    try:
        try:
            taken = take_lock(descriptor, wait_s)
        except OSError:
            if not where_possible:
                raise
            taken = True
        if not taken:
            raise Conflict(busy)
        yield descriptor
    finally:
        os.close(descriptor)
