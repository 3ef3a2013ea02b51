"""Decision: a value and the sentence that justifies it. The sentence is journaled and shown verbatim."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Decision(Generic[Value]):
    """What was decided, and why, in one sentence for people."""

    value: Value
    reason: str
