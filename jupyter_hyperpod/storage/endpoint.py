"""The file by which the processes of a job find its coordinator, and a coordinator finds that it was replaced.

A coordinator on another host may take over while this one still runs: its host was silent for a while. Each coordinator
bears the number of its host's turn (`storage.host_lease`). The file names the newest; an older one may not decide
anything any more, and agents leave it for the newer one.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import HyperpodError, StoreError
from ..system.addresses import LOOPBACK
from .host_lease import this_machine
from .store import write_private


class Replaced(HyperpodError):
    """A coordinator with a newer turn serves the job."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a coordinator listens; ``turn`` is 0 for those of earlier versions. ``clients``: a gateway's port for them.

    ``elsewhere``: on another machine, at an address that is this machine's own there, so it cannot be reached.
    """

    host: str
    port: int
    turn: int
    elsewhere: bool = False
    clients: int = 0


def read(path: Path) -> Endpoint | None:
    """The job's coordinator; None where the job has ended. Raises OSError or ValueError where there is none yet."""
    found = json.loads(path.read_bytes())
    if "ended" in found:
        return None
    try:
        host, machine = str(found["host"]), str(found.get("machine", ""))
        elsewhere = host == LOOPBACK and machine not in ("", this_machine())
        return Endpoint(host, int(found["port"]), int(found.get("turn", 0)), elsewhere, int(found.get("clients", 0)))
    except (LookupError, TypeError) as error:
        raise ValueError(f"{path} names no coordinator: {error!r}") from error


class OwnEndpoint:
    """The file, for a coordinator of this ``turn``."""

    def __init__(self, path: Path, turn: int) -> None:
        self._path = path
        self._turn = turn

    def announce(self, host: str, port: int, clients: int = 0) -> None:
        """Say where this coordinator listens; ``clients``: the port for those of a gateway.

        Raises Replaced or StoreError.
        """
        self.check()
        record = {"host": host, "port": port, "pid": os.getpid(), "turn": self._turn, "machine": this_machine()}
        record |= {"clients": clients} if clients else {}
        write_private(self._path, json.dumps(record).encode())

    def touch(self) -> None:
        """Give the supervisor a sign of life. Raises Replaced."""
        self.check()
        with suppress(OSError):
            os.utime(self._path)

    def end(self, state: str) -> None:
        """Leave word that the job has ended, for those that come too late or had lost their connection."""
        try:
            write_private(self._path, json.dumps({"ended": state}).encode())
        except StoreError:
            self._path.unlink(missing_ok=True)

    def check(self) -> None:
        """Raise Replaced where a coordinator with a newer turn has announced itself."""
        try:
            found = read(self._path)
        except (OSError, ValueError):
            return
        if found is not None and found.turn > self._turn:
            raise Replaced(f"a coordinator at {found.host} has taken over this job")
