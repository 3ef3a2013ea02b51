"""Decides until which step two runs are the same to the last bit, from what their journals still have. Pure.

The losses of a step are equal where all 64 bits are. Of old steps a journal keeps some: what is between two of them is
not known, and the sentence says so. Losses alone do not show that the parameters are equal; digests of the state do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..core.units import plural
from .decision import Decision

SAME, DIFFERENT, UNKNOWN = "same", "different", "unknown"


@dataclass(frozen=True, slots=True)
class KnownSteps:
    """What is known of one session of a run: ``steps`` ascending, ``losses`` their 64 bits as whole numbers.

    ``closed_step`` and ``digest``: the state at the session's end.
    """

    name: str
    steps: Sequence[int]
    losses: Sequence[int]
    closed_step: int | None = None
    digest: str = ""


@dataclass(frozen=True, slots=True)
class SameUntil:
    """``verdict``: `SAME` where nothing that is known differs.

    ``step``: the last step until which all that is known is equal; ``differs_at``: the first one with another loss.
    ``compared``: steps that both have. ``exact``: none is missing from ``first_step`` to ``step``. ``state``: whether
    the digests at the end are equal; None where they cannot be compared.
    """

    verdict: str
    step: int | None
    differs_at: int | None
    compared: int
    exact: bool
    state: bool | None
    first_step: int | None = None


def same_until(one: KnownSteps, other: KnownSteps) -> Decision[SameUntil]:
    """Compare two runs: a fact about them, and the sentence that says it."""
    compared, first, last, differs_at = _walk(one, other)
    ended = one.closed_step is not None and one.closed_step == other.closed_step and bool(one.digest and other.digest)
    state = one.digest == other.digest if ended else None
    if not compared:
        verdict = SAME if state else DIFFERENT if state is False else UNKNOWN
        found = SameUntil(verdict, one.closed_step if state else None, None, 0, False, state)
        return Decision(found, _nothing_common(one, other, state))
    # `first` is missing where already the first common step differs
    exact = first is not None and last is not None and all(_has_all(known, first, last) for known in (one, other))
    differs = differs_at is not None or state is False
    found = SameUntil(DIFFERENT if differs else SAME, last, differs_at, compared, exact, state, first)
    return Decision(found, _sentence(one, other, found))


def _walk(one: KnownSteps, other: KnownSteps) -> tuple[int, int | None, int | None, int | None]:
    """How many steps both have; the first and the last of them that are equal; the first that differs."""
    compared, first, last, differs_at = 0, None, None, None
    at, to = 0, 0
    while at < len(one.steps) and to < len(other.steps):
        step, beside = one.steps[at], other.steps[to]
        if step == beside:
            compared += 1
            if differs_at is None and one.losses[at] == other.losses[to]:
                first, last = step if first is None else first, step
            elif differs_at is None:
                differs_at = step
        at, to = at + (step <= beside), to + (beside <= step)
    return compared, first, last, differs_at


def _has_all(known: KnownSteps, first: int, last: int) -> bool:
    return sum(first <= step <= last for step in known.steps) == last - first + 1


def _nothing_common(one: KnownSteps, other: KnownSteps, state: bool | None) -> str:
    pair = f"{one.name} and {other.name}"
    if state is not None:
        equal = "the same" if state else "another"
        ends = f"their states after step {one.closed_step} have {equal} digest"
        return f"{pair} have no step in common in their journals; {ends}"
    empty = [known.name for known in (one, other) if not len(known.steps)]
    if empty:
        return f"{' and '.join(empty)} committed no step that the journal still has: there is nothing to compare"
    return f"{pair} have no step in common in their journals: there is nothing to compare"


def _sentence(one: KnownSteps, other: KnownSteps, found: SameUntil) -> str:
    pair = f"{one.name} and {other.name}"
    if found.step is None:
        return f"{pair} differ from the first step that both journals have, step {found.differs_at}"
    since = "" if found.first_step == 1 else f" from step {found.first_step}"
    if found.exact:
        told = f"{pair} are bit-identical{since} until step {found.step}"
    else:
        told = f"all steps{since} until step {found.step} that both journals still have are bit-identical in {pair}"
    if found.differs_at is not None:
        told += f"; the loss of step {found.differs_at} differs"
        gap = found.differs_at - found.step - 1
        told += f", and of the {plural(gap, 'step')} between, the journals keep none in common" if gap else ""
    elif found.state is False:
        told += f", by their losses; but their states after step {one.closed_step} have different digests"
    elif found.state:
        told += f"; their states after step {one.closed_step} have the same digest"
    else:
        told += f", by their losses{_further(one, other, found.step)}"
    return told


def _further(one: KnownSteps, other: KnownSteps, step: int) -> str:
    """Why nothing is known behind the last common step."""
    longer = [known.name for known in (one, other) if known.steps[-1] > step]
    if longer:
        return f"; what {' and '.join(longer)} computed later has nothing to be compared with"
    return "; no digest of both states after that step is known"
