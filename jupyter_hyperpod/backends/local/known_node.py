"""The host's record of one node: the processes started there, and the connection to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...core.spec import Handle
from ...system.json_lines import JsonLineChannel
from ...system.processes import Identity
from .network import HEAD_INDEX


@dataclass
class LocalNode:
    """One node: a process group on this machine."""

    name: str
    spare: bool
    index: int = HEAD_INDEX
    state: str = "starting"
    reason: str = "waits for the preloaded interpreter"
    incarnation: int = 0
    process: Identity | None = None
    jobs: dict[str, Handle] = field(default_factory=dict)
    born_s: dict[str, float] = field(default_factory=dict)
    sessions: dict[str, Identity] = field(default_factory=dict)
    channel: JsonLineChannel | None = None
    pidfd: int = -1
    unanswered: int = 0
    cut: bool = False
    drained: str = ""  # why it gets no new work; empty where it does
    spawned_s: float = 0.0
    again_s: float = 0.0

    @property
    def pid(self) -> int | None:
        """The node's own process."""
        return self.process.pid if self.process else None
