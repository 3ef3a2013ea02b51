"""The supervisor of a store with schedules is started again where it ended without being told to."""

from __future__ import annotations

from ...backends import load
from ...storage import host_lease
from ...storage.store import Store
from .. import cluster
from ..clusters.shape import known_shape


def wake_again(store: Store) -> bool:
    """Start the supervisor again where schedules are active and it ended without being told to, as when the machine
    was switched off; whether it was started. A cluster that somebody stopped stays so. Raises HyperpodError."""
    if not (store.root / "schedules").is_dir():
        return False
    from . import schedule_file  # each server asks at its start, and few stores have schedules

    found = [schedule for schedule in schedule_file.all_of(store)[0] if not schedule.paused]
    if not found or cluster.status(store)["state"] != "lost" or host_lease.elsewhere(store):
        return False
    wake(store, schedule_file.directory(store, found[0].name).spec().backend)
    return True


def wake(store: Store, backend: str) -> None:
    """Start the supervisor where none runs. Raises ClusterError."""
    elsewhere = not load(backend).capabilities.owns_nodes
    none = 0 if elsewhere and not known_shape(store) else None
    if not cluster.connectable(store):
        cluster.ensure_started(store, nodes=none, spares=none)
