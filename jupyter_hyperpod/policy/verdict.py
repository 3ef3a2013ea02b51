"""Decides which member's memory or arithmetic was wrong, by checksums that all members have seen.

A fault of hardware gives random bits, so two members that agree prove each other right. A member whose state changed
while nothing was applied to it proves itself wrong. In all other cases no member is blamed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .decision import Decision


@dataclass(frozen=True, slots=True)
class Statement:
    """The checksums of one member in step ``step + 1``, as text; "" where there is none.

    ``sealed``: its state when the step began. ``state``: the same memory later in that step. ``gradient``: its copy of
    the reduced gradient. ``again``: that gradient reduced once more. ``frozen``: the set of parameters that take no
    gradient. ``executions``: (member, checksum) of one sum of micro-batches, in order. ``tensors``: the differing
    tensors, by member. The coordinator adds ``member`` and ``place``: whose statement it is.
    """

    member: str = ""
    place: str = ""
    step: int = 0
    sealed: str = ""
    state: str = ""
    gradient: str = ""
    again: str = ""
    frozen: str = ""
    executions: tuple[tuple[str, str], ...] = ()
    tensors: Mapping[str, str] = field(default_factory=dict)


CHANGED, STATE, FROZEN, GRADIENT, EXECUTION = "changed", "state", "frozen", "gradient", "execution"
REPETITION = "repetition"  # an execution whose repetition on the same member gave the gradient of the others


class Charge(NamedTuple):
    """A member that is found wrong, and why; ``evidence`` is the kind of proof, found in step ``step + 1``."""

    member: str
    reason: str
    evidence: str = ""
    step: int = 0


Charges = Decision[tuple[Charge, ...]]
_NOBODY: Charges = Decision((), "")


def judge(statements: Sequence[Statement]) -> Charges:
    """The members that are wrong; the reason is "" where there are none. `program` decides whether they are fenced."""
    charges: dict[str, Charge] = {}
    remarks: list[str] = []
    for step in sorted({t.step for t in statements}):
        present = [t for t in statements if t.step == step]
        looked = {
            CHANGED: _changed, STATE: _differing, FROZEN: _frozen, GRADIENT: _reduced, EXECUTION: _executed,
        }  # fmt: skip
        for evidence, look in looked.items():
            found = look(present)
            charges = {c.member: c._replace(evidence=c.evidence or evidence, step=step) for c in found.value} | charges
            remarks += [found.reason] if found.reason else []
    text = "; ".join([*dict.fromkeys(charge.reason for charge in charges.values()), *remarks])
    return Decision(tuple(charges.values()), text)


def _changed(present: Sequence[Statement]) -> Charges:
    """Members whose state changed while nothing was applied to it."""
    text = "changed during step {}, while nothing was applied to it"
    charges = (
        Charge(t.member, f"the state of {t.place} {text.format(t.step + 1)}{_tensors(present, t.member)}")
        for t in present
        if _convicted(t)
    )
    return Decision(tuple(charges), "")


def _convicted(statement: Statement) -> bool:
    return bool(statement.sealed and statement.state) and statement.sealed != statement.state


def _differing(present: Sequence[Statement]) -> Charges:
    """Members whose state differs from that of the others."""
    intact = {t.member: t.state or t.sealed for t in present if not _convicted(t) and (t.state or t.sealed)}
    subject = f"state after step {present[0].step}"
    return _minority(present, intact, subject) or _nobody(present, intact, subject)


def _frozen(present: Sequence[Statement]) -> Charges:
    """Members whose loop has frozen other parameters."""
    frozen = {t.member: t.frozen for t in present if t.frozen}
    subject = f"choice of frozen parameters in step {present[0].step + 1}"
    return _minority(present, frozen, subject) or _nobody(present, frozen, subject)


def _reduced(present: Sequence[Statement]) -> Charges:
    """Members whose copy of the reduced gradient differs from that of the others."""
    subject = f"reduced gradient of step {present[0].step + 1}"
    again = {t.member: t.again for t in present if t.again}
    if not again:
        first = {t.member: t.gradient for t in present if t.gradient}
        remark = f"{len(first)} members differ in the {subject}: it is reduced again, nothing is applied"
        return _minority(present, first, subject) or Decision((), remark)
    if len(set(again.values())) > 1:
        return _minority(present, again, subject) or _nobody(present, again, f"{subject}, twice,")
    text = f"had another {subject} than the members agreed on when it was reduced again"
    wrong = (t for t in present if t.again and t.gradient != t.again)
    return Decision(tuple(Charge(t.member, f"{t.place} {text}") for t in wrong), "")


def _executed(present: Sequence[Statement]) -> Charges:
    """The member whose micro-batches gave another result when they were executed again."""
    places = {t.member: t.place for t in present}
    done = next((t.executions for t in present if t.executions), ())
    culprit = of_executions([checksum for _, checksum in done])
    if culprit.value is None or (member := done[culprit.value][0]) not in places:
        return _NOBODY
    text = f"{places[member]} computed a wrong gradient in step {present[0].step + 1}: {culprit.reason}"
    others = {checksum for _, checksum in done[: culprit.value] + done[culprit.value + 1 :]}
    own = {checksum for name, checksum in done if name == member}
    return Decision((Charge(member, text, REPETITION if len(others) == 1 and own > others else EXECUTION),), "")


def _tensors(present: Sequence[Statement], member: str) -> str:
    """The differing tensors of a member, as the end of a sentence."""
    found = next((t.tensors[member] for t in present if member in t.tensors), "")
    return f" ({found})" if found else ""


def _minority(present: Sequence[Statement], values: Mapping[str, str], subject: str) -> Charges | None:
    """The members outside the largest group (two or more) that agrees; None where members differ without a group."""
    counts = Counter(values.values()).most_common(2)
    if len(counts) < 2:
        return _NOBODY
    (value, size), (_, next_size) = counts
    if size == next_size:
        return None
    wrong = (t for t in present if values.get(t.member, value) != value)
    text = f"is not that of the {size} members that agree"
    return Decision(
        tuple(Charge(t.member, f"the {subject} of {t.place} {text}{_tensors(present, t.member)}") for t in wrong), ""
    )


def _nobody(present: Sequence[Statement], values: Mapping[str, str], subject: str) -> Charges:
    """A decision that blames nobody: members differ, and none can be proven right."""
    names = "".join(sorted({_tensors(present, member) for member in values}))
    text = f"{len(values)} members differ in the {subject}{names} and none can be proven right"
    return Decision(tuple(Charge(member, text) for member in values), "")


def next_execution(done: Sequence[tuple[int, str]], owner: int, world_size: int, draw: int) -> int | None:
    """The rank that executes the sum of micro-batches next, or None after enough executions: see `of_executions`.

    The owner's sum comes first, then that of a member chosen by ``draw``. Where those differ, a third member follows.
    Of two members each repeats its own sum; a single member repeats it twice.
    """
    turns = [owner, (owner + 1 + draw % max(1, world_size - 1)) % world_size]
    if len(done) < 2:
        return turns[len(done)]
    if len({checksum for _, checksum in done}) < 2:
        return None
    if len(done) == 2:
        others = [rank for rank in range(world_size) if rank not in turns]
        return others[draw % len(others)] if others else owner
    if len(done) == 3 and world_size == 2 and done[2][1] == done[0][1]:
        return turns[1]
    return None


def of_executions(checksums: Sequence[str]) -> Decision[int | None]:
    """Which execution was wrong, by its place in ``checksums``, or None.

    Two executions that agree against one prove it wrong; two against two, or all different, prove nothing.
    """
    counts = Counter(checksums).most_common()
    times = f"{len(checksums)} executions"
    if len(counts) < 2:
        return Decision(None, f"{times} of the same micro-batches gave the same gradient")
    if counts[0][1] > counts[1][1]:
        wrong = next(place for place, checksum in enumerate(checksums) if checksum != counts[0][0])
        return Decision(wrong, f"{counts[0][1]} of {times} of the same micro-batches agree against it")
    return Decision(
        None,
        f"{times} of the same micro-batches gave {len(counts)} different gradients and none can be proven right; "
        "a loss function must depend on its batch, the model and seeded generators alone",
    )
