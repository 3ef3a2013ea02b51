"""What HyperPod's training operator and the program of a pod say to each other. Pure.

The operator asks each pod's port 8080 for ``/status``, and sends ``/start``, ``/update``, ``/stop`` and ``/shutdown``.
Source: hyperpod-elastic-agent 1.1.3 (server/server.py, server/api_models.py, server/util.py); the operator's own source
is not published.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from typing import Any

from ....core.errors import ProtocolError

PORT = 8080
VERSION = "1.1.3"  # of the agent whose protocol this is
RESTARTS = "process_level_restart"
_NEEDED: Mapping[str, type | tuple[type, ...]] = {
    "rank": int,
    "nnodes": int,
    "faultCount": int,
    "master_addr": str,
    "master_port": (int, str),
}


class ProgramState(Enum):
    """How far a node's program is, in the operator's words."""

    READY = "READY"
    RUNNING = "RUNNING"
    STOPPING = "STOPPING"
    COMPLETED = "COMPLETED"
    SHUTDOWN = "SHUTDOWN"


class OperatedProgram:
    """The state of one program between the operator, which asks, and the process, which tells. Not thread-safe.

    A stop is answered as one that has happened, and the program goes on: the operator stops all nodes of a job where
    one is lost or added, and ours continue in the same step. The next start finds it running.
    """

    def __init__(self) -> None:
        self.state = ProgramState.READY
        self.rank: int | None = None
        self.wanted = False  # whether the operator has started it once
        self._transitions = {ProgramState.READY.value: _now()}

    @property
    def over(self) -> bool:
        """Whether the operator has taken note of its end."""
        return self.state is ProgramState.SHUTDOWN

    def start(self, request: object) -> None:
        """Let it begin. Raises ProtocolError for a request that is none."""
        self.update(request)
        if self.state is ProgramState.READY:
            self.wanted = True
            self._become(ProgramState.RUNNING)

    def update(self, request: object) -> None:
        """Take note of a rank. Raises ProtocolError for a request that is none."""
        if not isinstance(request, Mapping):
            raise ProtocolError("the request is no object")
        for name, kind in _NEEDED.items():
            if isinstance(value := request.get(name), bool) or not isinstance(value, kind):
                raise ProtocolError(f"{name} is {str(value)[:40]!r}")
        self.rank = request["rank"]

    def stop(self) -> None:
        """Say that it has stopped, and would start again."""
        if self.state is ProgramState.RUNNING:
            self._become(ProgramState.STOPPING)
            self._become(ProgramState.READY)

    def shut_down(self) -> bool:
        """Take note that the operator is done; False where the program still runs, which only its pod's end ends."""
        if self.state is not ProgramState.COMPLETED:
            return False
        self._become(ProgramState.SHUTDOWN)
        return True

    def completed(self) -> None:
        """The process has ended well. One that has not ends its pod, which says so."""
        self._become(ProgramState.COMPLETED)

    def told(self) -> dict[str, Any]:
        """The answer to ``/status``."""
        found: dict[str, Any] = {"status": self.state.value.lower(), "transitions": dict(self._transitions)}
        found |= {"reason": "Running"} if self.state is ProgramState.RUNNING else {}
        found |= {"restartMode": RESTARTS, "agent_version": VERSION, "spare": "False"}
        return found | ({} if self.rank is None else {"assigned_rank": str(self.rank)})

    def _become(self, state: ProgramState) -> None:
        self.state = state
        self._transitions[state.value] = _now()


def _now() -> str:
    return datetime.now(UTC).isoformat()
