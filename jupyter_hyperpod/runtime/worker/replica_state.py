"""What a replica of several ranks holds and says, put together from what each of its ranks holds and says."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...policy.guard import Reading
from ...policy.recovery import MemberState
from ...policy.verdict import Statement
from ..session.checksum import fold


def merged(parts: list[MemberState]) -> MemberState:
    """What a replica holds: what all its ranks hold."""
    steps = {part.step for part in parts}
    assert len(steps) == 1, f"ranks of one replica are at different steps: {steps}"
    nodes = tuple(node for node in parts[0].nodes if all(node in part.nodes for part in parts))
    digest = combined([part.digest for part in parts]) if parts[0].digest else ""
    statement = stated([part.statement for part in parts])
    return MemberState(parts[0].step, nodes, min(part.history for part in parts), digest, statement=statement)


def stated(statements: Sequence[Statement | None]) -> Statement | None:
    """What a replica tells of its checksums: nothing unless all its ranks have looked at the same step."""
    found = [statement for statement in statements if statement is not None]
    if len(found) < len(statements) or len({statement.step for statement in found}) > 1:
        return None
    sealed = folded([int(statement.sealed, 16) for statement in found])
    state = folded([int(statement.state, 16) for statement in found])
    return replace(found[0], sealed=f"{sealed:016x}", state=f"{state:016x}")


def mean_reading(reading: Reading, gather: Callable[[Any], list[Any]]) -> Reading:
    """The means over the ranks, added up in their order; ``gather`` returns what every rank says."""
    parts = gather([reading.finite, reading.loss, *reading.losses])
    loss, *losses = (sum(numbers) / len(parts) for numbers in zip(*(part[1:] for part in parts), strict=True))
    return Reading(reading.step, loss, all(part[0] for part in parts), tuple(losses))


def folded(numbers: Sequence[int]) -> int:
    """One number of 64 bits for several."""
    return fold(np.array(numbers, np.uint64).view(np.int64))


def combined(digests: list[str]) -> str:
    """One SHA-256 (hex) of those of all ranks, in their order."""
    return hashlib.sha256("".join(digests).encode()).hexdigest()
