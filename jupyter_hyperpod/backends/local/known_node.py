"""The host's record of one node: the processes started there, and the connection to it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...system.json_lines import JsonLineChannel
from ...system.processes import Identity
from ..types import HostNode
from .network import HEAD_INDEX


@dataclass
class LocalNode(HostNode):
    """One node: a process group on this machine, and its arms."""

    state: str = "starting"
    reason: str = "waits for the preloaded interpreter"
    index: int = HEAD_INDEX
    sessions: dict[str, Identity] = field(default_factory=dict)
    arms: list[Identity] = field(default_factory=list)  # what it has in other environments; each leads a session
    channel: JsonLineChannel | None = None
    pidfd: int = -1
    unanswered: int = 0
    spawned_s: float = 0.0
    again_s: float = 0.0
