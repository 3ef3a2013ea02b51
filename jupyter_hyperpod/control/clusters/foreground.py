"""Stays in the foreground as long as this host serves a store, or stands by for it: in a SLURM job, or as a service."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from ...core.errors import ClusterError
from ...storage import host_lease
from ...storage.store import Store
from .. import cluster

EXIT_LEFT = 75  # EX_TEMPFAIL of sysexits.h: nothing has ended, and another host, or this one later, goes on
LOOK_S = 0.2
RETURNS_S = 10.0  # a supervisor that has died is started again within that time
LEAVES_S = 10.0
NAMES = ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1")  # not all systems have all of them
HANGS = f"the supervisor did not leave within {LEAVES_S:g} s; jobs go on with the next host that serves the store"
LEFT = "this host has left; jobs go on where nodes are left to them, and the next host that serves the store continues"


def stay(store: Store, signals: Sequence[signal.Signals], tell: Callable[[str], object], standby: bool = False) -> int:
    """Wait until the cluster has ended or another host serves the store, and return 0, after telling which.

    ``signals``: see `told`. At one, the supervisor leaves: its jobs are not ended. Then this returns `EXIT_LEFT`.
    ``standby``: that another host serves the store is no end. Raises ClusterError where the supervisor has died and
    does not come back.
    """
    seen_s = time.monotonic()
    while not signals:
        if cluster.connectable(store):
            seen_s = time.monotonic()
        elif ended := _ended(store, standby):
            tell(ended)
            return 0
        elif time.monotonic() > seen_s + RETURNS_S:
            raise ClusterError(f"the supervisor has not answered for {RETURNS_S:g} s; `cluster start` restarts it")
        time.sleep(LOOK_S)
    tell(f"{signals[0].name}: {LEFT if _leave(store) else HANGS}")
    return EXIT_LEFT


def _ended(store: Store, standby: bool) -> str:
    """Why no supervisor answers here, as a sentence, where that is no accident; else ""."""
    if not standby and (host := host_lease.served_by(store)):
        return f"{host} serves the store now"
    return "the cluster has ended" if cluster.status(store)["state"] == "stopped" else ""


def _leave(store: Store) -> bool:
    """Have the supervisor leave, and wait until it has; False where it does not."""
    until_s = time.monotonic() + LEAVES_S
    while there := cluster.connectable(store):
        if time.monotonic() > until_s:
            break
        with suppress(ClusterError):  # it may be gone before it has answered
            cluster.request(store, {"op": "leave"}, timeout_s=LEAVES_S)
        time.sleep(LOOK_S)
    return not there


@contextmanager
def told() -> Iterator[list[signal.Signals]]:
    """The signals that have come, which do nothing else meanwhile."""
    found: list[signal.Signals] = []
    before = {one: signal.signal(one, lambda number, _: found.append(signal.Signals(number))) for one in _signals()}
    try:
        yield found
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _signals() -> list[signal.Signals]:
    return [signal.Signals[name] for name in NAMES if name in signal.Signals.__members__]
