"""Users and groups of the operating system: their names, their members, and the user of this process."""

from __future__ import annotations

import getpass
import os
from contextlib import suppress

with suppress(ModuleNotFoundError):  # Windows knows users and groups by name only
    import grp
    import pwd

from . import portable


def user_name(uid: int) -> str:
    """The login name of a user; ``uid-N`` where the system has none."""
    if not portable.HAS_USERS:
        return getpass.getuser()
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid-{uid}"


def own_name() -> str:
    """The login name of the user of this process."""
    return user_name(portable.user_id())


def group_name(gid: int) -> str:
    """The name of a group; ``gid-N`` where the system has none."""
    try:
        return grp.getgrgid(gid).gr_name
    except (KeyError, NameError):
        return f"gid-{gid}"


def group_id(name: str) -> int | None:
    """The number of a group that is named, or given as a number; None for an unknown name."""
    try:
        return grp.getgrnam(name).gr_gid
    except (KeyError, ValueError, NameError):
        return int(name) if name.isascii() and name.isdigit() and int(name) < 2**32 - 1 else None


def belongs(uid: int, gid: int) -> bool | None:
    """Whether the system's list of users puts a user in a group; None for a user whom the list lacks."""
    try:
        user = pwd.getpwuid(uid)
    except (KeyError, NameError):
        return None
    return gid in os.getgrouplist(user.pw_name, user.pw_gid)
