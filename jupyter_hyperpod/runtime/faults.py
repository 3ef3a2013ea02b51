"""`hp.faults`: arms faults in a worker. Tests, benchmarks, `%hyperpod fault` and demos all use it.

`core.events.FAULTS` describes each kind. The agent carries out signals and throttling; the worker carries out all
others, at a defined point: before its next micro-batch (`injector.Injector`).
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from ..core.errors import SpecError
from ..core.events import FAULTS

SIGNALS = {"kill": signal.SIGKILL, "hang": signal.SIGSTOP}
FACTOR, DURATION_S = 4.0, 10.0


@dataclass(frozen=True, slots=True)
class Armed:
    """A fault that waits for its moment; ``step`` counts from 1, None: the next micro-batch, or any rank."""

    kind: str
    step: int | None = None
    rank: int | None = None
    factor: float = FACTOR
    duration_s: float = DURATION_S


_armed: list[Armed] = []


def inject(
    kind: str,
    *,
    step: int | None = None,
    rank: int | None = None,
    factor: float = FACTOR,
    duration_s: float = DURATION_S,
) -> None:
    """Inject a fault into this process before its next micro-batch, or before its first one of ``step`` as ``rank``.

    Every rank runs the same cell, so `inject("kill", step=7, rank=1)` in it hits the one that is rank 1 in step 7, once
    per job, even if that step or the cell runs again. ``factor`` and ``duration_s`` belong to ``throttle``.
    Raises SpecError for a kind that a rank cannot suffer.
    """
    suffered = [name for name, fault in FAULTS.items() if "rank" in fault.aims]
    if kind not in suffered:
        raise SpecError(f"a rank cannot suffer {kind!r}; expected one of {', '.join(suffered)}")
    _armed.append(Armed(kind, step, rank, factor, duration_s))


def due(step: int, rank: int) -> list[Armed]:
    """Disarm and return the faults for ``rank`` that are due before a micro-batch of ``step``."""
    found = [fault for fault in _armed if fault.step in (None, step) and fault.rank in (None, rank)]
    for fault in found:
        _armed.remove(fault)
    return found


def clear() -> None:
    """Disarm all remaining faults."""
    _armed.clear()
