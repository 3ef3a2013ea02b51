"""Inspects a mount, as a script in its own process, so that a mount that hangs blocks only that process.

    python -I -S inspection.py OPERATION PATH [ARGUMENT …]

prints a line when it begins, then one JSON object per line. Standard library only and no relative import, so that
nothing else has to be loaded. `probe` starts it, bounds its time and reads its output.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

with suppress(ModuleNotFoundError):  # Windows has no such locks
    import fcntl

LISTED = 10_000
SMALL_FILES = 200
LARGE_BYTES = 16 << 20
RENAMES = 200
LET_GO_S = 2.0


def look(path: str) -> dict[str, object]:
    """The space of the mount, and whether its root can be listed and written to."""
    about = os.statvfs(path)
    with os.scandir(path) as entries:
        next(entries, None)
    return {
        "total_bytes": about.f_frsize * about.f_blocks,
        "free_bytes": about.f_frsize * about.f_bavail,
        "writable": os.access(path, os.W_OK),
    }


def listing(path: str) -> dict[str, object]:
    """The entries of a directory, or the one file: name, kind, size, time of the last change, mode."""
    if not stat.S_ISDIR(os.stat(path).st_mode):
        return {"entries": [_entry(os.path.basename(path), os.stat(path))], "truncated": False, "directory": False}
    found: list[dict[str, object]] = []
    with os.scandir(path) as entries:
        for entry in entries:
            if len(found) == LISTED:
                return {"entries": found, "truncated": True, "directory": True}
            try:
                found.append(_entry(entry.name, entry.stat(follow_symlinks=False)))
            except FileNotFoundError:  # removed meanwhile
                continue
    return {"entries": sorted(found, key=lambda one: str(one["name"])), "truncated": False, "directory": True}


def _entry(name: str, about: os.stat_result) -> dict[str, object]:
    kinds = ((stat.S_ISDIR, "directory"), (stat.S_ISREG, "file"), (stat.S_ISLNK, "link"))
    kind = next((kind for test, kind in kinds if test(about.st_mode)), "other")
    mode = f"{stat.S_IMODE(about.st_mode):04o}"
    return {"name": name, "kind": kind, "bytes": about.st_size, "changed_ns": about.st_mtime_ns, "mode": mode}


def usage(path: str, limit_s: str) -> dict[str, object]:
    """The bytes of all files below `path`; ``whole`` is False where the time ended before all were counted."""
    deadline, total, files = time.monotonic() + float(limit_s), 0, 0
    for directory, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(directory, name)).st_size
                files += 1
            except OSError:
                continue
        if time.monotonic() > deadline:
            return {"used_bytes": total, "files": files, "whole": False}
    return {"used_bytes": total, "files": files, "whole": True}


def semantics(path: str, other: str = "") -> None:
    """Print how the file system at `path` really behaves, one line per check; `other` is another mount of the same."""
    room = os.path.join(path, f".hyperpod-check-{secrets.token_hex(4)}")
    os.mkdir(room, 0o700)
    twin = os.path.join(other, os.path.basename(room)) if other else room
    try:
        for name, check in CHECKS:
            began_s = time.monotonic()
            try:
                result, detail = "pass", check(room, twin)
            except (AssertionError, OSError) as error:
                result, detail = "fail", str(error) or type(error).__name__
            line = {"check": name, "result": result, "detail": detail, "took_s": time.monotonic() - began_s}
            print(json.dumps(line), flush=True)
    finally:
        shutil.rmtree(room, ignore_errors=True)


def write(path: str, content: bytes) -> None:
    """Write a new file and sync it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(descriptor)


def read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _rename(room: str, twin: str) -> str:
    """A reader in another process, if given on another mount, never finds the name missing or the content torn."""
    target, size = os.path.join(room, "renamed"), 64 << 10
    write(target, b"0" * size)
    with child(lambda: _look_for_tears(os.path.join(twin, "renamed"), size)) as finish:
        for number in range(RENAMES):
            write(target + ".new", str(number % 10).encode() * size)
            os.rename(target + ".new", target)
        reads, torn = (int(word) for word in finish().split())
    assert torn == 0, f"{torn} of {reads} reads during {RENAMES} renames found no file, a torn one or an old handle"
    return f"{RENAMES} renames, {reads} reads, none torn" + (", across two mounts" if room != twin else "")


def _look_for_tears(path: str, size: int) -> Iterator[str]:
    reads = torn = 0
    while True:
        try:
            content = read(path)
            torn += len(content) != size or content != content[:1] * size
        except OSError:
            torn += 1
        reads += 1
        yield f"{reads} {torn}"


@contextmanager
def child(work: Callable[[], Iterator[str]]) -> Iterator[Callable[[], str]]:
    """Run the iterator `work` in a forked process until the caller asks for the last text that it yielded."""
    stop_read, stop_write = os.pipe()
    said_read, said_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(stop_write)
            os.set_blocking(stop_read, False)
            said = ""
            for text in work():
                said = text
                try:
                    os.read(stop_read, 1)
                    break
                except BlockingIOError:
                    continue
            os.write(said_write, said.encode())
            status = 0
        finally:
            os._exit(status)
    os.close(stop_read)
    os.close(said_write)
    ended: list[str] = []

    def finish() -> str:
        if not ended:
            os.close(stop_write)
            ended.append(os.read(said_read, 1 << 16).decode())
            os.close(said_read)
            os.waitpid(pid, 0)
        return ended[0]

    try:
        yield finish
    finally:
        finish()


def _fsync(room: str, twin: str) -> str:
    write(os.path.join(room, "synced"), b"x" * 4096)
    directory = os.open(room, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
    try:
        os.fsync(directory)
    except OSError as error:
        return f"of files; of directories not: {os.strerror(error.errno or 0)}"
    finally:
        os.close(directory)
    return "of files and directories"


def _exclusive(room: str, twin: str) -> str:
    path = os.path.join(room, "exclusive")
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        os.close(os.open(os.path.join(twin, "exclusive"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return "the second creation is refused"
    raise AssertionError("a file that was there was created again")


def _mmap(room: str, twin: str) -> str:
    path = os.path.join(room, "mapped")
    write(path, bytes(mmap.PAGESIZE))

    def poke() -> Iterator[str]:
        with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
            memory[:5] = b"hello"
            memory.flush()
        yield "done"

    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        with child(poke) as finish:
            assert finish() == "done", "another process could not write to a shared mapping"
        assert memory[:5] == b"hello", "what another process wrote to a shared mapping is not seen"
    assert read(path)[:5] == b"hello", "what was written to a shared mapping is not in the file"
    return "two processes see each other's writes, and so does the file"


def _flock(room: str, twin: str) -> str:
    return _locked(room, twin, lambda descriptor: fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB))


def _lockf(room: str, twin: str) -> str:
    return _locked(room, twin, lambda descriptor: fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB))


def _locked(room: str, twin: str, lock: Callable[[int], None]) -> str:
    write(os.path.join(room, "locked"), b"")

    def attempt() -> Iterator[str]:
        descriptor = os.open(os.path.join(twin, "locked"), os.O_RDWR)
        try:
            lock(descriptor)
            yield "had"
        except (BlockingIOError, PermissionError):
            yield "refused"

    descriptor = os.open(os.path.join(room, "locked"), os.O_RDWR)
    try:
        try:
            lock(descriptor)
        except OSError as error:
            if error.errno in (errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOLCK):
                raise AssertionError(f"not supported: {error.strerror}") from error
            raise
        with child(attempt) as finish:
            assert finish() == "refused", "a lock that one process holds was given to another"
    finally:
        os.close(descriptor)
    deadline, had = time.monotonic() + LET_GO_S, False
    while not had and time.monotonic() < deadline:  # FUSE releases the lock only after close has returned
        with child(attempt) as finish:
            had = finish() == "had"
    assert had, f"a lock that was let go cannot be had within {LET_GO_S:g} s"
    return "one holder at a time" + (", across two mounts" if room != twin else "")


def _link(room: str, twin: str) -> str:
    path = os.path.join(room, "linked")
    write(path, b"one")
    os.link(path, path + ".too")
    assert os.stat(path).st_nlink == 2, "the number of links is not counted"
    return "counted"


def _modes(room: str, twin: str) -> str:
    path = os.path.join(room, "mode")
    write(path, b"")
    for mode in (0o600, 0o640, 0o444):
        os.chmod(path, mode)
        found = stat.S_IMODE(os.stat(path).st_mode)
        assert found == mode, f"mode {mode:04o} became {found:04o}"
    return "kept"


def _append(room: str, twin: str) -> str:
    path = os.path.join(room, "appended")

    def lines(letter: bytes) -> Callable[[], Iterator[str]]:
        def work() -> Iterator[str]:
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            for _ in range(100):
                os.write(descriptor, letter * 99 + b"\n")
            os.close(descriptor)
            yield "done"

        return work

    with child(lines(b"a")) as first, child(lines(b"b")) as second:
        first(), second()
    found = read(path).split(b"\n")[:-1]
    whole = sum(line in (b"a" * 99, b"b" * 99) for line in found)
    assert whole == 200, f"of 200 lines that two processes appended {whole} are there whole"
    return "two processes lose nothing of each other"


def _unlinked(room: str, twin: str) -> str:
    path = os.path.join(room, "unlinked")
    write(path, b"still here")
    with open(path, "rb") as file:
        os.unlink(path)
        assert file.read() == b"still here", "an open file lost its content when its name was removed"
    return "readable until closed"


def _small(room: str, twin: str) -> str:
    began_s = time.monotonic()
    for number in range(SMALL_FILES):
        descriptor = os.open(os.path.join(room, f"small-{number}"), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.write(descriptor, b"x" * 100)
        os.close(descriptor)
    return f"{SMALL_FILES / (time.monotonic() - began_s):.0f} created per second"


def _large(room: str, twin: str) -> str:
    path, content = os.path.join(room, "large"), os.urandom(1 << 20) * (LARGE_BYTES >> 20)
    began_s = time.monotonic()
    write(path, content)
    wrote_s = time.monotonic() - began_s
    began_s = time.monotonic()
    assert read(path) == content, "what was read is not what was written"
    read_s = time.monotonic() - began_s
    return f"written with {LARGE_BYTES / wrote_s / 1e6:.0f} MB/s, read with {LARGE_BYTES / read_s / 1e6:.0f} MB/s"


CHECKS: tuple[tuple[str, Callable[[str, str], str]], ...] = (
    ("atomic rename", _rename),
    ("fsync", _fsync),
    ("exclusive create", _exclusive),
    ("shared mmap", _mmap),
    ("flock across processes", _flock),
    ("fcntl locks across processes", _lockf),
    ("hard links", _link),
    ("modes", _modes),
    ("append", _append),
    ("unlinked but open", _unlinked),
    ("small files", _small),
    ("large file", _large),
)


def main(operation: str, path: str, *arguments: str) -> int:
    """Run one operation; an error is printed as ``{"error", "errno"}``."""
    print("asking", flush=True)
    try:
        if operation == "check":
            semantics(path, *arguments)
            return 0
        result = {"look": look, "list": listing, "usage": usage}[operation](path, *arguments)  # type: ignore[operator]
    except OSError as error:
        print(json.dumps({"error": error.strerror or str(error), "errno": error.errno}))
        return 1
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
