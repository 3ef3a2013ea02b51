"""Combines the states, statements and checksums of the ranks of a replica into those of the replica."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...policy.guard import StepReading
from ...policy.recovery import MemberState
from ...policy.verdict import Statement
from ..session.checksum import fold


def merged(parts: list[MemberState]) -> MemberState:
    """The state of a replica: what all its ranks hold."""
    steps = {part.step for part in parts}
    assert len(steps) == 1, f"ranks of one replica are at different steps: {steps}"
    nodes = tuple(node for node in parts[0].nodes if all(node in part.nodes for part in parts))
    digest = combined([part.digest for part in parts]) if parts[0].digest else ""
    statement = stated([part.statement for part in parts])
    history, repeatable = (min(getattr(part, name) for part in parts) for name in ("history", "repeatable"))
    return replace(parts[0], nodes=nodes, history=history, digest=digest, statement=statement, repeatable=repeatable)


def stated(statements: Sequence[Statement | None]) -> Statement | None:
    """The statement of a replica; empty unless all its ranks have checked the same step."""
    found = [statement for statement in statements if statement is not None]
    if len(found) < len(statements) or len({statement.step for statement in found}) > 1:
        return None
    sealed = folded([int(statement.sealed, 16) for statement in found])
    state = folded([int(statement.state, 16) for statement in found])
    return replace(found[0], sealed=f"{sealed:016x}", state=f"{state:016x}")


def mean_reading(reading: StepReading, gather: Callable[[Any], list[Any]]) -> StepReading:
    """The means over the ranks, summed in their order; ``gather`` returns every rank's values."""
    parts = gather([reading.finite, reading.stops, reading.loss, *reading.losses, *reading.metrics.values()])
    loss, *means = (sum(numbers) / len(parts) for numbers in zip(*(part[2:] for part in parts), strict=True))
    losses, metrics = means[: len(reading.losses)], means[len(reading.losses) :]
    named = dict(zip(reading.metrics, metrics, strict=True))
    finite, stops = all(part[0] for part in parts), any(part[1] for part in parts)
    return StepReading(reading.step, loss, finite, tuple(losses), named, stops)


def folded(numbers: Sequence[int]) -> int:
    """Combine several 64-bit numbers into one."""
    return fold(np.array(numbers, np.uint64).view(np.int64))


def combined(digests: list[str]) -> str:
    """Combine the SHA-256 (hex) of all ranks, in their order, into one."""
    return hashlib.sha256("".join(digests).encode()).hexdigest()
