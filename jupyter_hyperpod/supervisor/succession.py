"""This host's turn at a store that several hosts share: how a supervisor gets it, keeps it and loses it."""

from __future__ import annotations

import argparse
import os
import time

from ..control.cluster import ANSWERS
from ..core.errors import ClusterError, StoreError
from ..storage import host_lease
from ..storage.host_lease import LEASE_S, RENEW_S, LeaseRecord, Observation
from ..storage.store import Store
from .lock import Lock


class Succession:
    """``turn``: the number of this supervisor's turn, 0 before it has one. ``before``: the host that it took over from.

    ``asked``: that host was alive and was asked to hand over. ``over``: another host has taken its turn since, or
    the host for which this one stood by has stopped the cluster. Times are on the monotonic clock, in seconds.
    """

    def __init__(self, store: Store, place: str = ".", host: str = "") -> None:
        """``place``: of this host's sockets, beneath the cluster's directory. ``host``: another name than its own."""
        self._store = store
        self._place = place
        self._host = host or host_lease.this_host()
        self._machine = f"of {host}" if host else host_lease.this_machine()
        self._observed = Observation()
        self._renewed_s = 0.0
        self._beat = 0
        self._missed: dict[int, float] = {}  # turns that another process has claimed -> when that was seen first
        self.turn = 0
        self.before = ""
        self.asked = self.over = False
        self._stood_by = False

    @property
    def served(self) -> str:
        """The host that serves the store or has served it last."""
        record = host_lease.read(self._store)
        return record.host if record is not None else ""

    def said(self) -> str:
        """What people read of a turn that has begun."""
        return f"{self._host} took over from {self.before}" if self.before else ANSWERS

    def try_to_take(self, now_s: float, at_once: bool = False, asked: bool = True) -> bool:
        """Take a turn if no other host has one; ``at_once``: even where another host is alive. Raises StoreError.

        ``asked``: then, whether that host is asked to hand over; not where it is known to be dead.
        Call it several times per second: it takes `LEASE_S` until another host counts as lost.
        """
        record = host_lease.read(self._store)
        other = record is not None and record.host != "" and not record.is_of(self._host, self._machine)
        silent_s = self._observed.silent_s(record, now_s)
        if other and silent_s < LEASE_S and not at_once:
            self._stood_by = True
            return False
        if self._stood_by and record is not None and not record.host and not at_once:
            self.over = True
            return False
        turn = (record.turn if record is not None else 0) + 1
        while not host_lease.claim(self._store, turn):
            if now_s - self._missed.setdefault(turn, now_s) < LEASE_S:
                return False
            turn += 1  # the process that claimed it has ended before it wrote the record
        self.turn, self.before = turn, record.host if record is not None and other else ""
        self.asked = at_once and asked and self.before != ""
        self._write(now_s)
        host_lease.forget_claims(self._store, turn)
        return True

    def renew(self, now_s: float) -> bool:
        """Say that this host is alive, where it is time to; False where another host has taken its turn since."""
        if self.over or now_s - self._renewed_s < RENEW_S:
            return not self.over
        if not self.holds():
            return False
        try:
            self._write(now_s)
        except StoreError:
            pass  # the disk may be full: a record that exists needs no more room
        return True

    def holds(self) -> bool:
        """Whether no other host has taken its turn since, as of now."""
        record = host_lease.read(self._store)
        self.over = self.over or (record is not None and record.turn > self.turn)
        return not self.over

    def leave(self) -> None:
        """No host serves the store any more."""
        if self.turn and self.holds():
            try:
                host_lease.write(self._store, LeaseRecord(self.turn, "", 0, 0))
            except StoreError:
                pass  # another host has to wait for the end of the lease

    def _write(self, now_s: float) -> None:
        self._beat += 1
        record = LeaseRecord(self.turn, self._host, os.getpid(), self._beat, self._machine, self._place)
        host_lease.write(self._store, record)
        self._renewed_s = now_s


class ServedElsewhere(ClusterError):
    """Another host serves the store."""


def take_turn(store: Store, place: str, take_over: bool = False) -> Succession:
    """The turn of a supervisor that starts; ``take_over``: even though another host is alive, which then leaves.

    ``place``: see `Succession`. Raises ServedElsewhere where another host is alive or takes over now.
    """
    succession = Succession(store, place)
    if not take_over and (host := host_lease.served_by(store)):
        raise ServedElsewhere(f"the supervisor of {store.root} is on {host}")
    until_s = time.monotonic() + 2 * LEASE_S
    while not succession.try_to_take(time.monotonic(), at_once=True, asked=take_over):  # or it is not alive
        if time.monotonic() > until_s:
            raise ServedElsewhere(f"another host is taking over {store.root} at this moment")
        time.sleep(host_lease.LOOK_S)
    return succession


def begin_turn(lock: Lock, options: argparse.Namespace) -> Succession:
    """The turn of a supervisor with this command line. Raises ClusterError where another host serves the store.

    One that follows a supervisor of this host, after another host has taken over, only ends what is left here.
    """
    store: Store = options.store
    place = str(lock.directory.relative_to(store.cluster))
    if options.standby:
        return Succession(store, place)
    try:
        return take_turn(store, place, options.take_over)
    except ServedElsewhere:
        if not options.succeed:
            raise
        found = Succession(store, place)
        found.over = True
        return found
