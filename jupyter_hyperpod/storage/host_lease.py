"""Which host serves a store that several hosts share: a record in the store that the host's supervisor renews.

Hosts that share a file system need not share its locks, and their clocks differ. So a host proves that it is alive by
changing the record every `RENEW_S`, and another host judges by its own clock how long the record has stood still:
after `LEASE_S` it may take its turn. Turns are numbered. A file per number, which only one host can create, decides
between two that try at once; the record with the greatest number is the one that counts. The record is written in its
place, never replaced: network file systems show the new content of a file to everybody that opens it again.
"""

from __future__ import annotations

import json
import os
import socket
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from ..core.errors import StoreError
from ..system import portable
from .store import Store, create_first, private_directory

RECORD, FIRST_HOST, CLAIMS, OTHER_HOSTS = "lease", "host", "turns", "on"
RENEW_S = 0.5
LEASE_S = 3.0
LOOK_S = 0.05
CLAIMS_KEPT = 16
_SIZE = 512  # bytes of a record, filled with blanks
_NAME_BYTES = 255


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """``host`` serves the store in its ``turn``; ``beat`` changes with each renewal. No ``host``: it has left.

    ``machine``: see `this_machine`. ``place``: where its sockets are, beneath the cluster's directory.
    """

    turn: int
    host: str
    pid: int
    beat: int
    machine: str = ""
    place: str = "."

    def is_of(self, host: str, machine: str) -> bool:
        """Whether a host of this name or this boot wrote it."""
        return _same(self.host, self.machine, host, machine)

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode().ljust(_SIZE - 1) + b"\n"


def this_host() -> str:
    """The name by which people and other hosts know this one. It may change, as that of a laptop does."""
    return socket.gethostname()[:_NAME_BYTES]


def this_machine() -> str:
    """What tells this boot of this machine, or this container on it, from all others."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{os.stat('/proc/self/ns/pid').st_ino}"
    except OSError:
        return ""


def is_here(host: str, machine: str) -> bool:
    """Whether a host of this name and boot is the one on which this process runs."""
    return _same(host, machine, this_host(), this_machine())


def _same(host: str, machine: str, other_host: str, other_machine: str) -> bool:
    """A host may be renamed or rebooted, but not both at once."""
    return host == other_host or (machine != "" and machine == other_machine)


def is_elsewhere(record: LeaseRecord | None) -> bool:
    """Whether another host serves the store, or served it last."""
    return record is not None and record.host != "" and not is_here(record.host, record.machine)


def read(store: Store) -> LeaseRecord | None:
    """The record; None where there is none, or where it is being written."""
    try:
        found = json.loads((store.cluster / RECORD).read_bytes())
        who = int(found["turn"]), str(found["host"]), int(found["pid"]), int(found["beat"])
        return LeaseRecord(*who, str(found.get("machine", "")), str(found.get("place", ".")))
    except (OSError, ValueError, LookupError, TypeError):
        return None


def write(store: Store, record: LeaseRecord) -> None:
    """Write the record in its place. Raises StoreError."""
    path = store.cluster / RECORD
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | portable.NOT_INHERITED | portable.NO_LINK, 0o600)
        try:
            os.pwrite(file, record.encode(), 0)
        finally:
            os.close(file)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror}") from error


def claim(store: Store, turn: int) -> bool:
    """True for the one host that may take this turn. Raises StoreError."""
    return create_first(private_directory(store.cluster / CLAIMS) / str(turn))


def forget_claims(store: Store, turn: int) -> None:
    """Remove the files of turns long before ``turn``."""
    with suppress(OSError):
        for path in (store.cluster / CLAIMS).iterdir():
            if path.name.isdecimal() and int(path.name) <= turn - CLAIMS_KEPT:
                path.unlink(missing_ok=True)


def directory_of_host(store: Store) -> Path:
    """Where the supervisor of this host keeps its lock, its sockets and its log.

    The first host of a store has the directory of the cluster; sockets and locks of another host would be in its way.
    """
    record = read(store)
    if record is not None and record.host and is_here(record.host, record.machine):
        return store.cluster / record.place
    try:
        host, _, machine = (store.cluster / FIRST_HOST).read_text().strip().partition(" ")
    except OSError:
        return store.cluster
    return store.cluster if not host or is_here(host, machine) else store.cluster / OTHER_HOSTS / this_host()


def settle_first_host(store: Store) -> Path:
    """As `directory_of_host`, for a supervisor that holds its lock: the first one writes down its host.

    Raises StoreError.
    """
    create_first(store.cluster / FIRST_HOST, f"{this_host()} {this_machine()}\n".encode())
    return private_directory(directory_of_host(store))


class Observation:
    """How long a record has stood still, on this process's monotonic clock."""

    def __init__(self) -> None:
        self._seen: LeaseRecord | None = None
        self._since_s = -1.0

    def silent_s(self, record: LeaseRecord | None, now_s: float) -> float:
        """Seconds for which the record has been seen without a change."""
        if record != self._seen or self._since_s < 0:
            self._seen, self._since_s = record, now_s
        return now_s - self._since_s


def elsewhere(store: Store) -> str:
    """The other host that serves the store, or served it last; "" where there is none."""
    record = read(store)
    return record.host if record is not None and is_elsewhere(record) else ""


class OtherHost:
    """Whether another host serves a store, for a process that asks again and again: it never waits."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._observed = Observation()

    def serves(self, now_s: float) -> bool:
        """True while another host gives signs of life; ``now_s`` on the monotonic clock."""
        record = read(self._store)
        return self._observed.silent_s(record, now_s) < LEASE_S and is_elsewhere(record)


def served_by(store: Store, patience_s: float = LEASE_S) -> str:
    """The other host whose supervisor serves the store; "" where there is none.

    Waits until that host gives a sign of life, which takes about `RENEW_S`, or for ``patience_s``.
    """
    first = read(store)
    if not is_elsewhere(first):
        return ""
    until_s = time.monotonic() + patience_s
    while time.monotonic() < until_s:
        now = read(store)
        if now is not None and now != first:
            return now.host if is_elsewhere(now) else ""
        time.sleep(LOOK_S)
    return ""
