"""Reads a job process's context (job, node, addresses) from its environment."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import ClusterError
from ..core.spec import TURN_VARIABLE, JobSpec
from ..storage.store import ENDPOINT_FILE, JobStore
from ..system.addresses import AUTOMATIC, BIND_VARIABLE, LOOPBACK, own_address

COORDINATOR_S, COORDINATOR_POLL_S = 600.0, 0.02
MEMBER_VARIABLE = "HYPERPOD_MEMBER"


@dataclass(frozen=True, slots=True)
class Context:
    """The job this process belongs to, the node it runs on, and when it began (milliseconds since the epoch, hex).

    ``turn``: the number of the turn of the supervisor that started it, for a coordinator (`storage.host_lease`).
    """

    job: JobStore
    node: str
    cell: Path
    spec: JobSpec
    spare: bool
    born: str
    turn: int = 0

    @classmethod
    def from_environment(cls) -> Context:
        """Read $HYPERPOD_JOB_DIR, _NODE, _CELL and _SPARE (not empty on a spare node); raises ClusterError."""
        try:
            job = JobStore(Path(os.environ["HYPERPOD_JOB_DIR"]))
            cell = Path(os.environ["HYPERPOD_CELL"])
            node = os.environ["HYPERPOD_NODE"]
        except KeyError as error:
            raise ClusterError(
                f"${error.args[0]} is not set: this module is started by a backend, not by hand"
            ) from error
        born = f"{time.time_ns() // 1_000_000:x}"
        spare, turn = bool(os.environ.get("HYPERPOD_SPARE")), int(os.environ.get(TURN_VARIABLE, 0))
        return cls(job, node, cell, job.spec(), spare, born, turn)

    def member(self, pid: int) -> str:
        """A worker's name. It is unique, even though a rebooted node uses the same pids again."""
        return f"{self.node}.{self.born}.{pid}"

    @staticmethod
    def node_of(member: str) -> str:
        """The node of a worker with this name."""
        return member.rsplit(".", 2)[0]

    @property
    def endpoint_file(self) -> Path:
        """The file with the coordinator's address."""
        return self.job.path / ENDPOINT_FILE

    def bind_address(self) -> str:
        """The address at which others reach this process: $HYPERPOD_BIND, else loopback.

        "auto" means the address from which this node reaches the coordinator, which may start later than its nodes.
        """
        asked = os.environ.get(BIND_VARIABLE, LOOPBACK)
        if asked != AUTOMATIC:
            return asked
        deadline = time.monotonic() + COORDINATOR_S
        while not self.endpoint_file.exists() and time.monotonic() < deadline:
            time.sleep(COORDINATOR_POLL_S)
        try:
            return own_address(asked, self.endpoint_file)
        except OSError as error:
            raise ClusterError(f"{self.node} does not find the way to its coordinator: {error!r}") from error
