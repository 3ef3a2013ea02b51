"""The operations of a file browser on a mount's files, as a script: each runs in its own process, as in `inspection`.

    python -I -S file_operations.py OPERATION ROOT PATH [ARGUMENT …]

prints a line when it begins, then one JSON object; `read` prints the content after that, `write` takes it from its
standard input. Links never lead it outside of ROOT, also where another user exchanges one meanwhile. Standard library
only and no relative import. `probe` starts it, bounds its time and reads its output.
"""

from __future__ import annotations

import errno
import heapq
import json
import os
import secrets
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import quote

BLOCK_BYTES = 1 << 20
NEW_FILE = 0o666  # minus the umask
FD_DIRECTORY = "/proc/self/fd"  # of Linux; elsewhere paths are checked, but not held
# what a system may lack; on Windows a file is text unless it is said to be binary
NO_LINK = getattr(os, "O_NOFOLLOW", 0)
NOT_INHERITED = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
DIRECTORY = getattr(os, "O_PATH", 0) | getattr(os, "O_DIRECTORY", 0) | NOT_INHERITED
MOST_HELD = 16
_HELD: dict[tuple[str, tuple[str, ...]], int] = {}  # open directories


def within(root: str, path: str, follow: bool) -> str:
    """Return a path to `path` below `root`, with a final link followed. Raises OSError outside of `root`.

    Its directory is held open, so that nobody can exchange it for a link to another place afterwards.
    """
    base, real = _real(root, path, follow)
    *directories, name = real.split("/")
    return f"{_held(base, tuple(directories))}/{name or '.'}"


def _held(base: str, directories: tuple[str, ...]) -> str:
    """A path to a directory below `base` that stays the same directory. Raises OSError where one of them is a link."""
    if not os.path.isdir(FD_DIRECTORY):
        return os.path.join(base, *directories)
    if (base, directories) not in _HELD:
        descriptor = os.open(base, DIRECTORY)
        for name in directories:
            before = descriptor
            try:
                descriptor = os.open(name, DIRECTORY | NO_LINK, dir_fd=before)
            finally:
                os.close(before)
        if len(_HELD) == MOST_HELD:
            os.close(_HELD.pop(next(iter(_HELD))))
        _HELD[base, directories] = descriptor
    return f"{FD_DIRECTORY}/{_HELD[base, directories]}"


def _real(root: str, path: str, follow: bool) -> tuple[str, str]:
    """The real path of `root`, and that of `path` relative to it: no part of it was a link, or led upwards."""
    base = os.path.realpath(root)
    parts = path.split("/") if path else []
    if any(part in ("", ".", "..") for part in parts):
        raise OSError(errno.EINVAL, "no path below the mount")
    joined = os.path.join(base, *parts)
    if parts and not follow:
        found = os.path.join(os.path.realpath(os.path.dirname(joined)), parts[-1])
    else:
        found = os.path.realpath(joined)
    if found != base and not found.startswith(base.rstrip("/") + "/"):
        raise OSError(errno.EXDEV, "a link leads out of the mount there")
    return base, "" if found == base else found[len(base.rstrip("/")) + 1 :]


def look(root: str, path: str) -> dict[str, object]:
    """One file or directory: name, kind, size, time of the last change, whether it may be written to."""
    return _entry(within(root, path, True), os.path.basename(path))


def page(root: str, path: str, after: str, limit: str) -> dict[str, object]:
    """Entries of a directory in the order of their names, a limited number, beginning behind `after`.

    Names that are not UTF-8 are left out: they have no URL.
    """
    place = within(root, path, True)
    with _scanned(place) as found:
        names = (one.name for one in found if one.name > after and _is_text(one.name))
        chosen = heapq.nsmallest(int(limit) + 1, names)
    entries = []
    for name in chosen[: int(limit)]:
        with suppress(OSError):  # removed meanwhile, or a dangling link
            entries.append(_entry(within(root, f"{path}/{name}".lstrip("/"), True), name))
    return {"entries": entries, "after": chosen[int(limit) - 1] if len(chosen) > int(limit) else None}


@contextmanager
def _scanned(place: str) -> Iterator[Iterator[os.DirEntry[str]]]:
    """The entries of a directory that is no link."""
    descriptor = os.open(place, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | NO_LINK | NOT_INHERITED)
    try:
        with os.scandir(descriptor) as found:
            yield found
    finally:
        os.close(descriptor)


def read(root: str, path: str) -> dict[str, object]:
    """Print the record of `look` for the file, then its bytes; fewer bytes where it cannot be read to its end."""
    place = within(root, path, True)
    # opening a pipe would block until another process opens its other end
    with open(os.open(place, os.O_RDONLY | NO_LINK | getattr(os, "O_NONBLOCK", 0) | NOT_INHERITED), "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise OSError(errno.EISDIR if stat.S_ISDIR(about.st_mode) else errno.EINVAL, "no file")
        print(json.dumps(_told(os.path.basename(path), about, os.access(place, os.W_OK))), flush=True)
        left = about.st_size
        with suppress(OSError):
            while left and (block := file.read(min(left, BLOCK_BYTES))):
                sys.stdout.buffer.write(block)
                left -= len(block)
            sys.stdout.buffer.flush()
    return {}


def write(root: str, path: str) -> dict[str, object]:
    """Write a file from standard input. It appears once it is complete; an existing file keeps its mode."""
    place = within(root, path, True)
    if os.path.isdir(place):
        raise OSError(errno.EISDIR, "a directory")
    mode = _mode_of(place)
    temporary = os.path.join(os.path.dirname(place), f".{_short(place)}.{secrets.token_hex(4)}.part")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOT_INHERITED, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file, BLOCK_BYTES)
            file.flush()
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        os.rename(temporary, place)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
    return look(root, path)


def make(root: str, path: str) -> dict[str, object]:
    os.mkdir(within(root, path, False))
    return look(root, path)


def move(root: str, path: str, to: str) -> dict[str, object]:
    """Rename; never replaces anything."""
    place, goal = within(root, path, False), within(root, to, False)
    if os.path.lexists(goal):
        raise OSError(errno.EEXIST, "there already")
    os.rename(place, goal)
    return look(root, to)


def remove(root: str, path: str) -> dict[str, object]:
    """Remove a file, a link or an empty directory."""
    place = within(root, path, False)
    if os.path.isdir(place) and not os.path.islink(place):
        os.rmdir(place)
    else:
        os.unlink(place)
    return {"removed": True}


def discard(root: str, path: str) -> dict[str, object]:
    """Move a file or a whole directory into this user's trash on the mount, as desktops do.

    ``.Trash-UID`` of the freedesktop.org Trash specification 1.0.
    """
    base, real = _real(root, path, False)
    place = within(root, path, False)
    os.lstat(place)  # a missing file is an error before anything is written
    trash = os.path.join(base, f".Trash-{os.getuid()}")
    for one in (trash, os.path.join(trash, "files"), os.path.join(trash, "info")):
        try:
            os.mkdir(one, 0o700)
        except FileExistsError:
            pass
        except OSError as error:
            raise OSError(error.errno, f"its trash cannot be made at the mount's top ({error.strerror})") from None
        about = os.lstat(one)
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
            raise OSError(errno.EPERM, f"{os.path.basename(one)} is no directory of yours: nothing goes there")
    name = f"{_short(place)}.{secrets.token_hex(4)}"
    about_it = os.path.join(trash, "info", f"{name}.trashinfo")
    words = f"Path={quote(real)}\nDeletionDate={time.strftime('%Y-%m-%dT%H:%M:%S')}\n"
    with open(os.open(about_it, os.O_WRONLY | os.O_CREAT | os.O_EXCL | NOT_INHERITED, 0o600), "w") as file:
        file.write(f"[Trash Info]\n{words}")
    try:
        os.rename(place, os.path.join(trash, "files", name))
    except BaseException:
        os.unlink(about_it)
        raise
    return {"discarded": name}


def _short(place: str) -> str:
    """A file's name, shortened so that a suffix still fits."""
    return os.path.basename(place).encode(errors="surrogateescape")[:200].decode(errors="ignore")


def _mode_of(place: str) -> int:
    """The mode that an existing file keeps or a new file gets. Raises OSError where this user may not write to it."""
    try:
        mode = stat.S_IMODE(os.stat(place).st_mode)
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return NEW_FILE & ~mask
    if not os.access(place, os.W_OK):
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))
    return mode


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _entry(place: str, name: str) -> dict[str, object]:
    return _told(name, os.lstat(place), os.access(place, os.W_OK))


def _told(name: str, about: os.stat_result, writable: bool) -> dict[str, object]:
    kinds = ((stat.S_ISDIR, "directory"), (stat.S_ISREG, "file"))
    return {
        "name": name,
        "kind": next((kind for test, kind in kinds if test(about.st_mode)), "other"),
        "bytes": about.st_size,
        "changed_ns": about.st_mtime_ns,
        "writable": writable,
    }


OPERATIONS = {one.__name__: one for one in (look, page, read, write, make, move, remove, discard)}


def main(operation: str, *arguments: str) -> int:
    """Run one operation; an error is printed as ``{"error", "errno"}``."""
    print("asking", flush=True)
    try:
        result = OPERATIONS[operation](*arguments)
    except OSError as error:
        print(json.dumps({"error": error.strerror or str(error), "errno": error.errno}))
        return 1
    if result:
        print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
