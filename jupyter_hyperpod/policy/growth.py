"""Decides the global batch of each step where a person lets it grow with the members, and the learning rate's factor.

A schedule says it for all steps: (step, micro-batches) where the batch changes, steps counted from 0, in order. The
samples and the factor of each step are functions of the schedule; so a schedule repeats a run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..core.errors import SpecError
from ..core.units import plural
from .decision import Decision

RULES = ("linear", "sqrt", "constant")
Schedule = tuple[tuple[int, int], ...]  # (first step, micro-batches per step)


@dataclass(frozen=True)
class GrowBatch:
    """``hp.Session(grow=hp.GrowBatch(…))``: the global batch follows the number of members.

    ``global_batch`` of the session is that of ``base_members`` members. Twice as many take twice as much per step, and
    so on in whole multiples, up to ``most`` samples; fewer members take ``global_batch``. ``rule`` says by what the
    learning rates that the program sets are multiplied in each step, B being the step's batch: "linear", B /
    global_batch; "sqrt", its square root; "constant", 1. A factor that rises does so in equal parts over
    ``warmup_steps`` steps; a factor that falls does so at once.
    ``schedule`` says the batch itself, in place of ``base_members`` and ``most``: ``{1: 32, 58: 64}`` takes 64 samples
    from step 58 on. A run that has grown is repeated exactly with its `Session.batches` as schedule, and the same rule.
    Raises SpecError.
    """

    rule: str
    base_members: int | None = None
    most: int | None = None
    warmup_steps: int = 0
    schedule: Mapping[int, int] | None = None

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise SpecError(f"rule of hp.GrowBatch is {self.rule!r}; expected one of {', '.join(RULES)}")
        if not _is_number(self.warmup_steps, 0):
            raise SpecError(f"warmup_steps of hp.GrowBatch is {self.warmup_steps!r}; expected 0 or more steps")
        if (self.schedule is None) != (self.base_members is not None and self.most is not None):
            raise SpecError(
                "hp.GrowBatch needs base_members, the members for which global_batch is meant, and most, the greatest "
                "global batch; or a schedule alone, such as schedule={1: 32, 58: 64}"
            )
        if self.schedule is not None and (self.base_members is not None or self.most is not None):
            raise SpecError("hp.GrowBatch has a schedule, which says the batch of each step: leave out the other sizes")
        if self.base_members is not None and not _is_number(self.base_members, 1):
            raise SpecError(f"base_members of hp.GrowBatch is {self.base_members!r}; expected 1 or more members")


@dataclass(frozen=True, slots=True)
class BatchTerms:
    """A `GrowBatch` in numbers: ``base`` and ``most`` in micro-batches per step; ``base_members`` 0: by schedule."""

    micro_batch: int
    base: int
    most: int
    base_members: int
    rule: str
    warmup_steps: int
    schedule: Schedule = ()


def terms_of(grow: GrowBatch | None, global_batch: int, micro_batch: int) -> BatchTerms | None:
    """The numbers of a session's ``grow``. Raises SpecError for batches that cannot be cut into micro-batches."""
    if grow is None:
        return None
    if not isinstance(grow, GrowBatch):
        raise SpecError(f"grow is a {type(grow).__name__}; expected an hp.GrowBatch")
    base, rule = global_batch // micro_batch, (grow.rule, grow.warmup_steps)
    if grow.schedule is not None:
        schedule = _read(grow.schedule, micro_batch)
        return BatchTerms(micro_batch, base, max(count for _, count in schedule), 0, *rule, schedule)
    assert grow.base_members is not None and grow.most is not None
    if not _is_number(grow.most, global_batch):
        raise SpecError(
            f"most of hp.GrowBatch is {grow.most!r}; expected at least global_batch, which is {global_batch}"
        )
    return BatchTerms(micro_batch, base, grow.most // global_batch * base, grow.base_members, *rule)


def _read(schedule: Mapping[int, int], micro_batch: int) -> Schedule:
    found = sorted(schedule.items()) if isinstance(schedule, Mapping) else []
    if not found or found[0][0] != 1 or not all(_is_number(step, 1) for step, _ in found):
        raise SpecError(
            f"schedule of hp.GrowBatch is {schedule!r}; expected the global batch by the number of the first step that "
            "has it, from step 1 on, such as {1: 32, 58: 64}"
        )
    for step, batch in found:
        if not _is_number(batch, micro_batch) or batch % micro_batch:
            raise SpecError(
                f"schedule of hp.GrowBatch has a global batch of {batch!r} from step {step} on; expected a multiple of "
                f"micro_batch, which is {micro_batch}"
            )
    return joined((), 0, tuple((step - 1, batch // micro_batch) for step, batch in found))


def _is_number(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


# ---- schedules ----------------------------------------------------------------------------------------------


def until(schedule: Schedule, step: int) -> Schedule:
    """The part that is about steps before ``step``."""
    return tuple(change for change in schedule if change[0] < step)


def joined(before: Schedule, step: int, after: Schedule) -> Schedule:
    """``before`` for the steps before ``step``, ``after`` from there on; only real changes are kept."""
    parts = until(before, step)
    later = [(max(first, step), count) for first, count in after]
    later = [change for place, change in enumerate(later) if not later[place + 1 :] or later[place + 1][0] > change[0]]
    for change in later:
        if not parts or parts[-1][1] != change[1]:
            parts += (change,)
    return parts


def count_at(schedule: Schedule, step: int) -> int:
    """Micro-batches of ``step``, which the schedule reaches."""
    return next(count for first, count in reversed(schedule) if first <= step)


def taken_before(schedule: Schedule, step: int) -> int:
    """Micro-batches of all steps before ``step``."""
    bounds = [*(first for first, _ in schedule[1:]), step]
    spans = zip(schedule, bounds, strict=False)
    return sum(max(0, min(end, step) - first) * count for (first, count), end in spans)


def factor(terms: BatchTerms, schedule: Schedule, step: int) -> float:
    """By what the learning rates of ``step`` are multiplied; before the first step the factor is 1."""
    if terms.rule == "constant":
        return 1.0
    before, target, begin = 1.0, 1.0, 0
    for first, count in until(schedule, step + 1):
        before = _warmed(before, target, first - begin, terms.warmup_steps)
        ratio = count / terms.base
        target, begin = ratio if terms.rule == "linear" else math.sqrt(ratio), first
    return _warmed(before, target, step + 1 - begin, terms.warmup_steps)


def _warmed(before: float, target: float, steps: int, warmup_steps: int) -> float:
    """The factor in the last of so many steps after a change from ``before`` to ``target``; no steps change nothing."""
    if not steps:
        return before
    if target <= before or steps >= warmup_steps:
        return target
    return before + (target - before) * steps / warmup_steps


# ---- decisions ----------------------------------------------------------------------------------------------


def for_members(terms: BatchTerms, members: int) -> int:
    """Micro-batches of a step that begins with so many members."""
    return min(terms.most, terms.base * max(1, members // terms.base_members))


def next_schedule(
    terms: BatchTerms, known: Schedule, step: int, begun: int, committed: int, members: int
) -> Decision[Schedule]:
    """The schedule of a generation of ``members`` that goes on with ``step``.

    ``known`` is that of the generation before. ``begun``: micro-batches of ``step`` where a member has begun it, or 0;
    it is finished with these. Where all members were lost, steps before ``committed`` are applied again: they have the
    batch that they had, so that their results are the same.
    """
    if not terms.base_members:
        batches = f"the global batch of each step is that of the schedule: {listed(terms.schedule, terms.micro_batch)}"
        return Decision(terms.schedule, batches)
    found = joined(joined(known, step, ((step, begun),)), step + 1, known) if begun else known
    free = max(step + bool(begun), committed if known else 0)
    count = for_members(terms, members)
    found = joined(found, free, ((free, count),))
    return Decision(found, _sentence(terms, found, free, members))


def _sentence(terms: BatchTerms, found: Schedule, free: int, members: int) -> str:
    count = count_at(found, free)
    ratio = count // terms.base
    base = terms.base * terms.micro_batch
    why = f"{plural(ratio, 'time')} the {base} of {plural(terms.base_members, 'member')}"
    if count == terms.most and members // terms.base_members > ratio:
        why += ", the most that is allowed"
    target = factor(terms, ((0, count),), terms.warmup_steps)
    rates = "learning rates stay as they are" if terms.rule == "constant" else f"learning rates times {target:.6g}"
    if terms.rule != "constant":
        rates += f" ({terms.rule})"
    if terms.warmup_steps and factor(terms, found, free) < target:
        rates += f", reached in {plural(terms.warmup_steps, 'step')}"
    repeated = "session.batches lists them"
    if not found[0][0]:
        schedule = listed(found, terms.micro_batch)
        repeated = f"hp.GrowBatch({terms.rule!r}, warmup_steps={terms.warmup_steps}, schedule={schedule}) repeats them"
    return (
        f"{plural(members, 'member')} begin step {free + 1}: its global batch is {count * terms.micro_batch}, {why}; "
        f"{rates}. The result depends on these changes: {repeated}"
    )


def listed(schedule: Schedule, micro_batch: int) -> dict[int, int]:
    """The global batch by the number of the first step that has it, from 1, as a person writes it."""
    return {first + 1: count * micro_batch for first, count in schedule}


def unlisted(listing: Mapping[str, int], micro_batch: int) -> Schedule:
    """Inverse of `listed`, after a journal has kept it."""
    return tuple((int(first) - 1, batch // micro_batch) for first, batch in listing.items())
