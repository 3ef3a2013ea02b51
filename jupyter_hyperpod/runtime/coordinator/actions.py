"""What the parts of a coordinator want done. Only the controller does it, one action after the other.

A part yields actions, so that it sees what came of each before it goes on.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

from ..protocol.codec import Message
from .phase import Phase
from .roster import Member


@dataclass(frozen=True, slots=True)
class Send:
    """Tell a member, or the agent that speaks for it."""

    member: Member
    order: Message


@dataclass(frozen=True, slots=True)
class Journal:
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
    """Journal the state of the job where it is a new one."""

    state: str
    reason: str


@dataclass(frozen=True, slots=True)
class Enter:
    """Go to another phase."""

    phase: Phase


@dataclass(frozen=True, slots=True)
class Regroup:
    """Form the next generation of the members that are left and of ``newcomers`` that can enter now."""

    reason: str
    newcomers: tuple[Member, ...] = ()


@dataclass(frozen=True, slots=True)
class Release:
    """Send a member home, its node is free; or let its node begin again with a newcomer."""

    member: Member
    begins_again: bool = False


@dataclass(frozen=True, slots=True)
class Remove:
    """A member is gone: forget it."""

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
    Send | Journal | Decide | JournalGeneration | SayState | Enter | Regroup | Release | Remove | BeginSession | End
)
Actions = Generator[Action, None, None]
