"""Decides whether differing checksums come from faulty hardware or from the program, by all findings of a session.

Hardware fails on one member, once. A program that keeps state outside the session changes checksums, too, but on all
members at once, on each member that joins, or again and again. No member is fenced for a fault of the program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .decision import Decision
from .verdict import CHANGED, EXECUTION, FROZEN, STATE, Charge

FEW_STEPS = 10  # two faults of hardware within so few steps are unlikely
NEWCOMER_STEPS = 2  # a newcomer's missing state shows in its first update, or after its first turn of the loop
LATE_STEPS = 1000  # or when a schedule next changes the learning rate, which is equally late for each newcomer

_OUTSIDE = (
    "Something that changes in the run is kept outside hp.Session, such as a learning-rate scheduler that the loop "
    "steps itself or a counter in the cell: pass the scheduler, hp.Session(..., scheduler=scheduler), and compute "
    "everything else from step.number"
)
_ALIKE = (
    "Every member changes its state in its own way, as when layers are unfrozen in the loop (requires_grad), when the "
    "loop steps an optimizer itself, or where the time of day decides: set requires_grad before hp.Session opens, or "
    "open another hp.Session for the steps after the change"
)
_BEHIND = (
    "The loss function writes to the training state in a way that torch does not count, through .data or numpy: write "
    "between the steps, under torch.no_grad()"
)
_NOBODY = "no node is fenced and nothing starts again"


@dataclass(frozen=True, slots=True)
class Seat:
    """A member of the generation. ``joined``: the step after which it joined; None where it trained from the start."""

    member: str
    place: str
    joined: int | None = None


@dataclass(frozen=True, slots=True)
class ChargedVerdict:
    """The charges of one verdict, and the members of the generation in which it was found."""

    charges: tuple[Charge, ...]
    seats: tuple[Seat, ...]

    @property
    def accused(self) -> frozenset[str]:
        """The members that are charged."""
        return frozenset(charge.member for charge in self.charges)

    @property
    def evidence(self) -> frozenset[str]:
        """The kinds of evidence."""
        return frozenset(charge.evidence for charge in self.charges)

    @property
    def step(self) -> int:
        """The last step that all charged members had applied."""
        return max((charge.step for charge in self.charges), default=0)

    @property
    def late(self) -> bool:
        """Whether every charged member joined while others trained."""
        return all(seat.joined is not None for seat in self.seats if seat.member in self.accused)

    @property
    def compared(self) -> bool:
        """Whether the finding is a difference between members, which a program can cause."""
        return bool(self.evidence & {STATE, FROZEN, EXECUTION})


def is_to_blame(earlier: Sequence[ChargedVerdict], now: ChargedVerdict) -> Decision[bool]:
    """Whether the program is the likely cause of the finding ``now``. If it is, the job stops and no member is fenced.

    ``earlier`` are the findings of the same session that fenced a member, oldest first.
    """
    text = _newcomers(now) or _at_once(now) or _frozen(now) or _seniors(now) or _again(earlier, now)
    if text:
        return Decision(True, f"the likely cause is the program, not a node: {text}; {_NOBODY}")
    return Decision(False, "one member, for the first time: its node is the likely cause")


def _newcomers(now: ChargedVerdict) -> str:
    """Newcomers differ: they did not run what the others ran before they joined."""
    if not now.compared:
        return ""
    few = LATE_STEPS if FROZEN in now.evidence else NEWCOMER_STEPS
    new = [s for s in now.seats if s.joined is not None and 0 <= now.step - s.joined <= few]
    others = now.accused - {seat.member for seat in new}
    if not new or len(others) > 1:
        return ""
    names = ", ".join(f"{seat.place} joined after step {seat.joined}" for seat in new)
    return f"{names} and has not run the loop before that. {_OUTSIDE}"


def _at_once(now: ChargedVerdict) -> str:
    if len(now.accused) < 2:
        return ""
    remedy = _ALIKE if now.compared else _BEHIND
    return f"{len(now.accused)} of {len(now.seats)} members at once, where hardware fails on one. {remedy}"


def _frozen(now: ChargedVerdict) -> str:
    """The members differ in ``requires_grad``, which only the loop sets: no fault of a node changes it."""
    return f"only a program sets requires_grad. {_ALIKE}" if FROZEN in now.evidence else ""


def _seniors(now: ChargedVerdict) -> str:
    """All members that agree against one have joined later than it: they lack the same state."""
    if not now.compared or len(now.seats) < 3:
        return ""
    since = {seat.member: -1 if seat.joined is None else seat.joined for seat in now.seats}
    first = max((since[name] for name in now.accused if name in since), default=-1)
    if any(joined <= first for name, joined in since.items() if name not in now.accused):
        return ""
    return f"all that agree have joined later than the one that differs. {_OUTSIDE}"


def _again(earlier: Sequence[ChargedVerdict], now: ChargedVerdict) -> str:
    """The same evidence was found shortly before, or against another member that had joined late."""
    before = next((found for found in reversed(earlier) if found.evidence & now.evidence and _near(found, now)), None)
    if before is None:
        return ""
    names = " and ".join(dict.fromkeys(_where(found) for found in (before, now)))
    remedy = _BEHIND if now.evidence <= {CHANGED} else _OUTSIDE
    return f"the same was found before, after step {before.step} and after step {now.step} ({names}). {remedy}"


def _near(before: ChargedVerdict, now: ChargedVerdict) -> bool:
    distance = abs(now.step - before.step)
    # either member of two differing executions may be the late one that lacks state
    late = now.late or (before.late and EXECUTION in now.evidence)
    return distance <= FEW_STEPS or (now.compared and late and distance <= LATE_STEPS)


def _where(found: ChargedVerdict) -> str:
    return ", ".join(seat.place for seat in found.seats if seat.member in found.accused)
