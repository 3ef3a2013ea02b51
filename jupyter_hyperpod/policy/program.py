"""Whether a finding of `verdict` is a fault of hardware or of the program, from all findings of a session so far.

Hardware fails on one member, once. A program that keeps something outside the session looks the same to checksums, but
shows on all members at once, on each member that joins, or again and again; then nobody is to be fenced for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .decision import Decision
from .verdict import CHANGED, EXECUTION, FROZEN, STATE, Charge

FEW_STEPS = 10  # two faults of hardware so close to each other are no chance
NEWCOMER_STEPS = 2  # what a newcomer does not know shows in its own first update, or after its first turn of the loop
LATE_STEPS = 1000  # or when a schedule next changes the learning rate: at the same distance for each newcomer

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
    """A member of the generation. ``joined``: after which step, where others had trained before it; else None."""

    member: str
    place: str
    joined: int | None = None


@dataclass(frozen=True, slots=True)
class Finding:
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
        """The last step that all that are charged had applied."""
        return max((charge.step for charge in self.charges), default=0)

    @property
    def late(self) -> bool:
        """Everybody who is charged joined while others trained."""
        return all(seat.joined is not None for seat in self.seats if seat.member in self.accused)

    @property
    def compared(self) -> bool:
        """What was found is a difference between members, which a program can make."""
        return bool(self.evidence & {STATE, FROZEN, EXECUTION})


def is_to_blame(earlier: Sequence[Finding], now: Finding) -> Decision[bool]:
    """Whether the program is the likely cause of what was found ``now``: the job stops, and nobody is fenced.

    ``earlier`` are the findings of the same session that fenced somebody, oldest first.
    """
    text = _newcomers(now) or _at_once(now) or _frozen(now) or _seniors(now) or _again(earlier, now)
    if text:
        return Decision(True, f"the likely cause is the program, not a node: {text}; {_NOBODY}")
    return Decision(False, "one member, for the first time: its node is the likely cause")


def _newcomers(now: Finding) -> str:
    """Somebody has just joined, and members differ: it did not run what the others ran before."""
    if not now.compared:
        return ""
    few = LATE_STEPS if FROZEN in now.evidence else NEWCOMER_STEPS
    new = [s for s in now.seats if s.joined is not None and 0 <= now.step - s.joined <= few]
    others = now.accused - {seat.member for seat in new}
    if not new or len(others) > 1:
        return ""
    names = ", ".join(f"{seat.place} joined after step {seat.joined}" for seat in new)
    return f"{names} and has not run the loop before that. {_OUTSIDE}"


def _at_once(now: Finding) -> str:
    if len(now.accused) < 2:
        return ""
    remedy = _ALIKE if now.compared else _BEHIND
    return f"{len(now.accused)} of {len(now.seats)} members at once, where hardware fails on one. {remedy}"


def _frozen(now: Finding) -> str:
    """The loop itself has set what differs: no fault of a node turns one ``requires_grad`` into another."""
    return f"only a program sets requires_grad. {_ALIKE}" if FROZEN in now.evidence else ""


def _seniors(now: Finding) -> str:
    """Those who agree against a member have all joined later: what they lack, they lack alike."""
    if not now.compared or len(now.seats) < 3:
        return ""
    since = {seat.member: -1 if seat.joined is None else seat.joined for seat in now.seats}
    first = max((since[name] for name in now.accused if name in since), default=-1)
    if any(joined <= first for name, joined in since.items() if name not in now.accused):
        return ""
    return f"all that agree have joined later than the one that differs. {_OUTSIDE}"


def _again(earlier: Sequence[Finding], now: Finding) -> str:
    """The same evidence was found not long ago, or against another that had joined late."""
    before = next((found for found in reversed(earlier) if found.evidence & now.evidence and _near(found, now)), None)
    if before is None:
        return ""
    names = " and ".join(dict.fromkeys(_where(found) for found in (before, now)))
    remedy = _BEHIND if now.evidence <= {CHANGED} else _OUTSIDE
    return f"the same was found before, after step {before.step} and after step {now.step} ({names}). {remedy}"


def _near(before: Finding, now: Finding) -> bool:
    distance = abs(now.step - before.step)
    # two executions that differ do not tell which of the two members lacks something: either may be the late one
    late = now.late or (before.late and EXECUTION in now.evidence)
    return distance <= FEW_STEPS or (now.compared and late and distance <= LATE_STEPS)


def _where(found: Finding) -> str:
    return ", ".join(seat.place for seat in found.seats if seat.member in found.accused)
