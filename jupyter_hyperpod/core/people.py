"""Person: who asked for a command, as the operating system and Jupyter know them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

_LONGEST = 80


@dataclass(frozen=True, slots=True)
class Person:
    """``user`` and ``uid`` are those of the operating system; ``identity`` is the name that a Jupyter server gives."""

    user: str
    uid: int
    identity: str = ""

    def __str__(self) -> str:
        return f"{self.identity} ({self.user})" if self.identity not in ("", self.user) else self.user

    def to_json(self) -> dict[str, Any]:
        """The person as the field ``by`` of a command."""
        return asdict(self)


def asked_by(data: Mapping[str, Any]) -> Person | None:
    """The person in the data of a command; None where a part of the product, or an earlier version, wrote it."""
    by = data.get("by")
    if not isinstance(by, Mapping) or type(by.get("uid")) is not int:
        return None
    return Person(shown(by.get("user")), by["uid"], shown(by.get("identity")))


def shown(name: object) -> str:
    """A name in one line of at most 80 characters: it may come from another program."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(name or "")).split())[:_LONGEST]
