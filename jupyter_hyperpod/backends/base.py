"""What every backend offers to `control`, and what it reports back. Processes only; not one word about training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ..core.spec import Handle, LaunchPlan


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A node came up or was lost; ``reason`` is a sentence for people."""

    node: str
    up: bool
    reason: str


@dataclass(frozen=True, slots=True)
class ExitReport:
    """A job's process ended on `node`; a negative ``status`` is the signal, None where nobody could collect it."""

    job_id: str
    node: str
    status: int | None
    lived_s: float


Report = NodeReport | ExitReport


class NodeLike(Protocol):
    """What can be read of a node; ``state`` is one of `core.events.NODE_STATES`."""

    @property
    def name(self) -> str: ...
    @property
    def spare(self) -> bool: ...
    @property
    def state(self) -> str: ...
    @property
    def reason(self) -> str: ...
    @property
    def pid(self) -> int | None: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def jobs(self) -> Mapping[str, Handle]: ...
    @property
    def cut(self) -> bool: ...
    @property
    def drained(self) -> str: ...


class Backend(Protocol):
    """Starts and ends processes on named nodes."""

    @property
    def nodes(self) -> Mapping[str, NodeLike]: ...

    def start(self, plan: LaunchPlan, node: str) -> bool:
        """Begin to start the plan's process on `node`; False where that node is not up."""
        ...

    def signal_job(self, job_id: str, node: str, number: int) -> None:
        """Send a signal to the job's process on `node`, if it is there."""
        ...

    def signal_node(self, node: str, number: int) -> bool:
        """Send a signal to everything on `node`; False where it is not up."""
        ...

    def close(self) -> None:
        """End every node and whatever runs on it."""
        ...
