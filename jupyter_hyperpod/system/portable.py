"""What Linux has and another system may lack, with what stands in for it there: a client also works on a laptop.

Windows knows neither user numbers nor the bits of a mode: there, a person's files are private by their place, beneath
the person's own directory, and whoever may open them is their owner.
"""

from __future__ import annotations

import os
import shutil
import stat
import time

# flags of `os.open`; on Windows a file is text unless it is said to be binary
NOT_INHERITED = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_NOINHERIT", 0)
NO_LINK: int = getattr(os, "O_NOFOLLOW", 0)
NO_WAITING: int = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
DIRECTORY: int = getattr(os, "O_DIRECTORY", 0)
LOADED_S = time.time()  # when this process loaded this package, about
HAS_USERS = hasattr(os, "geteuid")


def user_id() -> int:
    """The number of the user of this process; 0 where users have none, as all files have there."""
    return os.geteuid() if HAS_USERS else 0


def group_id() -> int:
    """The number of the group of this process; 0 where groups have none."""
    return os.getegid() if HAS_USERS else 0


def permissions(about: os.stat_result) -> int:
    """The bits of a mode that say who may do what; where a system has none, a file is its owner's alone."""
    return stat.S_IMODE(about.st_mode) if HAS_USERS else 0o700


def set_mode(descriptor: int, mode: int) -> None:
    """Set the mode of an open file, where it has one, whatever the umask. Raises OSError."""
    if HAS_USERS:
        os.fchmod(descriptor, mode)


def free_bytes(path: str | os.PathLike[str]) -> int:
    """How much may still be written to the file system of a path. Raises OSError."""
    return shutil.disk_usage(path).free


def free_files(path: str | os.PathLike[str]) -> int | None:
    """How many files may still be made in the file system of a path; None where it does not count. Raises OSError."""
    if not hasattr(os, "statvfs"):
        return None
    found = os.statvfs(path)
    return found.f_favail if found.f_files else None


def may_access(path: str | os.PathLike[str], mode: int) -> bool:
    """Whether this process may read, write or enter a path: a combination of `os.R_OK`, `os.W_OK` and `os.X_OK`."""
    return os.access(path, mode, effective_ids=os.access in os.supports_effective_ids)
