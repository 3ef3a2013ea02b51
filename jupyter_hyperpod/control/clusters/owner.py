"""Whether the process that holds a supervisor's lock still runs; its lock names it."""

from __future__ import annotations

from ...storage.host_lease import directory_of_host
from ...storage.store import Store

LOCK = "supervisor.lock"


def owner_lives(store: Store) -> bool:
    """True while the supervisor that holds this host's lock runs, also where it no longer accepts connections."""
    return owner(store) is not None


def owner(store: Store) -> int | None:
    """The process id of that supervisor; None where there is none."""
    from ...system.processes import Identity, alive  # it opens the C library, which a submit does not need

    try:
        words = (directory_of_host(store) / LOCK).read_bytes().split()
    except OSError:
        return None
    lives = len(words) == 2 and all(word.isdigit() for word in words) and alive(Identity(*map(int, words)))
    return int(words[0]) if lives else None
