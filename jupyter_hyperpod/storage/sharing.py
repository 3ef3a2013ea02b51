"""Shares a store with a group of the operating system, by modes alone, and undoes it.

| | owner | group that reads | group that operates |
|---|---|---|---|
| the store, `jobs/`, a job, `events/`, `output/`, `cluster/`, `cluster/events/` | 2750 | list and read | |
| `cells/` | 2710 | read by digest | |
| `spec.json`, `view.json`, files of events and output, cells | 0640 | read | |
| `commands/`: what the owner asks for | 0710 | | pass |
| `commands/members/`: what members ask for | 1730 | | write a file of their own |
| all else: secrets, environment, sources, lock, socket, mounts | 0600, 0700 | | |

The owner alone may write everywhere else, so that no member can change what the owner's processes execute.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from ..core.errors import Foreign, StoreError
from ..system import portable
from ..system.users import group_name, user_name
from .member_files import MEMBERS

SETTINGS = "sharing.json"
_FILES = ("spec.json", "view.json")
_DIRECTORIES = ("events", "output")


@dataclass(frozen=True, slots=True)
class Sharing:
    """The numbers of the groups that read and that operate; ``operate`` is None where only the owner does."""

    read: int
    operate: int | None = None

    def __str__(self) -> str:
        operators = "its owner alone" if self.operate is None else f"the group {group_name(self.operate)}"
        return f"the group {group_name(self.read)} reads, {operators} stops, scales and disturbs jobs"


def sharing_of(root: Path) -> Sharing | None:
    """With whom the store is shared; None where it is private. Raises StoreError for settings that cannot be read."""
    path = root / SETTINGS
    try:
        raw = json.loads(path.read_bytes())
        read, operate = raw["read"], raw["operate"]
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, LookupError, TypeError) as error:
        raise StoreError(f"{path} does not say with whom the store is shared: {error!r}") from error
    if type(read) is not int or type(operate) not in (int, type(None)):
        raise StoreError(f"{path} does not say with whom the store is shared: expected numbers of groups")
    return Sharing(read, operate)


def owner_elsewhere(root: Path) -> str:
    """The name of the store's owner, where that is neither the user of this process nor this process root's."""
    try:
        owner = os.stat(root).st_uid
    except OSError:
        return ""
    return "" if portable.user_id() in (0, owner) else user_name(owner)


def place_of_commands(commands: Path) -> Path:
    """Where the user of this process leaves a command for a job. Raises Foreign where the user may not operate."""
    try:
        owner = os.stat(commands).st_uid
    except OSError as error:
        raise StoreError(f"cannot read {commands}: {error.strerror}") from error
    if portable.user_id() in (0, owner):
        return commands
    members = commands / MEMBERS
    if not portable.may_access(members, os.W_OK | os.X_OK):
        raise Foreign(
            f"the job belongs to {user_name(owner)}, and you may not operate it; ask {user_name(owner)} to run "
            "`jupyter hyperpod share GROUP:operate` with a group of yours"
        )
    return members


def share(root: Path, sharing: Sharing) -> None:
    """Open the store to a group, its jobs included. Raises StoreError where that is impossible."""
    _own(root)
    _settings(root, sharing)
    for job in _jobs(root):
        open_job(job, sharing)
    _directory(root / "cells", sharing.read, 0o2710)
    _directory(root / "cluster" / "events", sharing.read)
    for path in (root / "cluster", root / "jobs", root):
        _set(path, sharing.read, 0o2750)


def unshare(root: Path) -> None:
    """Make the store private again. Raises StoreError."""
    _own(root)
    _set(root, portable.group_id(), 0o700)  # first: from here on nobody gets in
    _remove(root / SETTINGS)
    for job in _jobs(root):
        _close_job(job)
    for path in (root / "cells", root / "cluster" / "events"):
        _directory(path, portable.group_id(), 0o700, 0o600)
    for path in (root / "cluster", root / "jobs"):
        _set(path, portable.group_id(), 0o700)


def open_job(job: Path, sharing: Sharing) -> None:
    """Open a job's directory, from its content outwards. Raises StoreError."""
    for name in _FILES:
        _set(job / name, sharing.read, 0o640)
    for name in _DIRECTORIES:
        _directory(job / name, sharing.read)
    commands = job / "commands"
    if sharing.operate is None:
        _close_members(commands)
    else:
        _make(commands / MEMBERS)
        _set(commands / MEMBERS, sharing.operate, 0o1730)
        _set(commands, sharing.operate, 0o710)
    _set(job, sharing.read, 0o2750)


def closed_above(root: Path, group: int) -> Path | None:
    """The nearest directory above the store that members of a group cannot pass; None where there is none."""
    for path in root.resolve().parents:
        found = path.stat()
        if not (found.st_mode & stat.S_IXOTH or (found.st_gid == group and found.st_mode & stat.S_IXGRP)):
            return path
    return None


def _own(root: Path) -> None:
    if not root.is_dir():
        raise StoreError(f"there is no store in {root}")
    if not portable.HAS_USERS:
        raise StoreError("a store is shared by the modes of its files, which this system does not have")
    if os.stat(root).st_uid != portable.user_id():
        raise Foreign(f"the store {root} belongs to {user_name(os.stat(root).st_uid)}, who alone may share it")


def _settings(root: Path, sharing: Sharing) -> None:
    temporary = root / f".{SETTINGS}.{os.getpid()}"
    try:
        temporary.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | portable.NOT_INHERITED
        with open(os.open(temporary, flags, 0o600), "w") as file:
            json.dump(asdict(sharing), file)
        _set(temporary, sharing.read, 0o640)
        os.replace(temporary, root / SETTINGS)
    except (OSError, StoreError) as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"cannot write {root / SETTINGS}: {error.strerror}") from error


def _close_job(job: Path) -> None:
    _set(job, portable.group_id(), 0o700)
    _close_members(job / "commands")
    for name in _FILES:
        _set(job / name, portable.group_id(), 0o600)
    for name in _DIRECTORIES:
        _directory(job / name, portable.group_id(), 0o700, 0o600)


def _close_members(commands: Path) -> None:
    _set(commands, portable.group_id(), 0o700)
    _set(commands / MEMBERS, portable.group_id(), 0o700)
    shutil.rmtree(commands / MEMBERS, ignore_errors=True)  # a member's own directory in it may stay, unread


def _jobs(root: Path) -> Iterator[Path]:
    with _errors(root / "jobs"):
        names = os.listdir(root / "jobs") if (root / "jobs").is_dir() else []
    yield from (root / "jobs" / name for name in names if not name.startswith("."))


def _directory(path: Path, group: int, mode: int = 0o2750, file_mode: int = 0o640) -> None:
    """A directory and its files. New files get the right mode once the directory has its own."""
    _set(path, group, mode)
    with _errors(path):
        names = os.listdir(path) if path.is_dir() else []
    for name in names:
        _set(path / name, group, file_mode, directories=False)


def _make(path: Path) -> None:
    with _errors(path):
        path.mkdir(mode=0o700, exist_ok=True)


def _remove(path: Path) -> None:
    with _errors(path):
        path.unlink(missing_ok=True)


def _set(path: Path, group: int, mode: int, directories: bool = True) -> None:
    try:
        found = os.lstat(path)
        if not (stat.S_ISREG(found.st_mode) or (directories and stat.S_ISDIR(found.st_mode))):
            return
        os.chown(path, -1, group, follow_symlinks=False)
        os.chmod(path, mode)
        done = stat.S_IMODE(os.lstat(path).st_mode) == mode
    except FileNotFoundError:
        return
    except PermissionError as error:
        raise StoreError(_not_yours(path, group)) from error
    except OSError as error:
        raise StoreError(f"cannot share {path}: {error.strerror}") from error
    if not done:  # the kernel drops setgid without a word
        raise StoreError(_not_yours(path, group))


def _not_yours(path: Path, group: int) -> str:
    name = group_name(group)
    return f"{path} cannot be given to the group {name}: you must be in it, and have logged in since; `id` shows that"


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(f"cannot share {path}: {error.strerror or error}") from error
