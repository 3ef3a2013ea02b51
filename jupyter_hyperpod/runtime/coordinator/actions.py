"""The actions that the parts of a controller ask for. Only `Controller._do` carries them out, in order.

A part is a generator: the controller carries out each action that it yields, before the part continues.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..protocol.codec import Message
from .phase import Phase
from .roster import Member


@dataclass(frozen=True, slots=True)
class Send:
    """Send an order to a member's agent, which passes a worker's orders on."""

    member: Member
    order: Message


@dataclass(frozen=True, slots=True)
class SendByRank:
    """Send each of these members the same order, in which only the rank is that of the member."""

    members: Sequence[Member]
    order: Message


@dataclass(frozen=True, slots=True)
class WriteEvent:
    """Write an event; ``durable``: it is on the disk before anything else is done."""

    kind: str
    data: Mapping[str, Any]
    durable: bool = False


@dataclass(frozen=True, slots=True)
class Decide:
    """Journal a decision with its sentence."""

    policy: str
    value: Any
    reason: str


@dataclass(frozen=True, slots=True)
class JournalGeneration:
    """Journal who is a member now, who stands by, and why."""

    reason: str


@dataclass(frozen=True, slots=True)
class SayState:
    """Journal the job's state if it has changed."""

    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class Enter:
    """Change the job's phase; `phase.TRANSITIONS` must have the transition."""

    phase: Phase


@dataclass(frozen=True, slots=True)
class BeginGeneration:
    """Form the next generation from the remaining members and ``newcomers``."""

    reason: str
    newcomers: tuple[Member, ...] = ()


@dataclass(frozen=True, slots=True)
class ReleaseMember:
    """End a member and its agent; with ``begins_again``, the agent stays and forks a new worker."""

    member: Member
    begins_again: bool = False


@dataclass(frozen=True, slots=True)
class Remove:
    """Forget a member that is gone."""

    member: Member


@dataclass(frozen=True, slots=True)
class BeginSession:
    """Call the members into the session that they have all opened."""


@dataclass(frozen=True, slots=True)
class End:
    """The job ends."""

    state: str
    reason: str


Action = (
    Send
    | SendByRank
    | WriteEvent
    | Decide
    | JournalGeneration
    | SayState
    | Enter
    | BeginGeneration
    | ReleaseMember
    | Remove
    | BeginSession
    | End
)
Actions = Generator[Action, None, None]
