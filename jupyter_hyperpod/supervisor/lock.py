"""The lock that allows one supervisor per store: a file that its owner keeps locked."""

from __future__ import annotations

import os
from pathlib import Path

from ..control.cluster import SOCKET
from ..control.clusters.owner import LOCK
from ..core.errors import ClusterError
from ..storage.host_lease import directory_of_host, settle_first_host
from ..storage.store import Store, private_directory
from ..system import locks
from ..system.diagnostics import note
from ..system.processes import identify


class Lock:
    """The store's lock, held until this process ends, in whatever way. ``before``: the previous owner's pid, or 0.

    ``lost_s``: when the previous owner was lost, in seconds since the Unix epoch; None if nobody noticed.
    ``directory``: of the owner's files. Hosts have locks of their own, because they need not share them.
    """

    def __init__(self, path: Path, root: Path) -> None:
        """``root``: of the store, for people."""
        self.directory = path.parent
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._path = path
        self.before = 0
        self.lost_s: float | None = None
        try:
            taken = locks.take_lock(self._file)
        except OSError:  # a file system without locks
            taken = False
        if not taken:
            owner = (_words(self._file) or ["unknown"])[0]
            os.close(self._file)
            raise ClusterError(f"a supervisor (process {owner}) already serves {root}")
        before = (_words(self._file) or [""])[0]
        self.before = int(before) if before.isdecimal() else 0
        os.lseek(self._file, 0, os.SEEK_SET)
        os.ftruncate(self._file, 0)
        try:
            me = identify(os.getpid())
            os.write(self._file, f"{me.pid} {me.start}\n".encode())
        except OSError as error:
            note(f"the lock does not name its owner: {error}")

    def release(self) -> None:
        """Give the lock back."""
        os.close(self._file)

    def still_there(self) -> bool:
        """False when the file has been deleted: with it the store."""
        try:
            return os.stat(self._path).st_ino == os.fstat(self._file).st_ino
        except OSError:
            return False


def _words(file: int) -> list[str]:
    return os.read(file, 64).decode(errors="replace").split()


def take_lock(store: Store, succeed: bool = False, lost_s: float | None = None) -> Lock:
    """Become the only supervisor; the one before was lost at ``lost_s``. Raises ClusterError where there is one.

    ``succeed``: only replace a supervisor that died, which leaves its socket. If a user has stopped the cluster
    meanwhile, there is no socket, and this raises ClusterError too.
    """
    _require_socket(store, succeed)  # before a deleted store is created again
    directory = private_directory(directory_of_host(store.prepare()))
    lock = Lock(directory / LOCK, store.root)
    if (settled := settle_first_host(store)) != directory:  # another host was the first, and locks are not shared
        lock.release()
        lock = Lock(settled / LOCK, store.root)
    lock.lost_s = lost_s
    _require_socket(store, succeed)  # and after a wait for the lock: its holder removes the socket first
    return lock


def _require_socket(store: Store, succeed: bool) -> None:
    if succeed and not (directory_of_host(store) / SOCKET).exists():
        raise ClusterError(f"no supervisor of {store.root} has died: the last one took its leave")
