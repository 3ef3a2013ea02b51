"""Users of the operating system: their names, and the one of this process."""

from __future__ import annotations

import os
import pwd


def user_name(uid: int) -> str:
    """The login name of a user; ``uid-N`` where the system has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid-{uid}"


def own_name() -> str:
    """The login name of the user of this process."""
    return user_name(os.geteuid())
