"""The number of micro-batches of each step, and so the position in the data at which it begins.

Both are fixed for the whole run, unless the global batch grows with the members. Then the schedule so far is part of
the training state, and the generation's plan says how it goes on.
"""

from __future__ import annotations

from typing import Any

from ...policy import growth
from ...policy.growth import BatchTerms, GrowBatch, Schedule


class BatchSizes:
    """Of one session. ``terms`` is None where the global batch does not change."""

    def __init__(self, global_batch: int, micro_batch: int, grow: GrowBatch | None = None) -> None:
        self.terms: BatchTerms | None = growth.terms_of(grow, global_batch, micro_batch)
        self._global_batch, self._micro_batch = global_batch, micro_batch
        self._base = global_batch // micro_batch
        self.schedule: Schedule = ()
        self._begun = -1  # the step that this member has begun last

    @property
    def most(self) -> int:
        """The most micro-batches that a step may have."""
        return self._base if self.terms is None else self.terms.most

    def count(self, step: int) -> int:
        """Micro-batches of ``step``, from 0."""
        return growth.count_at(self.schedule, step) if self.schedule else self._base

    def samples(self, step: int) -> int:
        """Samples of ``step``, from 0."""
        return self.count(step) * self._micro_batch

    def first(self, step: int) -> int:
        """The position of the first sample of ``step``, from 0: so many samples were taken before it."""
        if self.terms is None:
            return step * self._global_batch
        return growth.taken_before(self.schedule, step) * self._micro_batch

    def span(self, step: int) -> range:
        """The positions of the samples of ``step``, from 0."""
        first = self.first(step)
        return range(first, first + self.samples(step))

    @property
    def has_constant_rates(self) -> bool:
        """Whether learning rates are left alone."""
        return self.terms is None or self.terms.rule == "constant"

    def factor(self, step: int) -> float:
        """By what the learning rates of ``step`` are multiplied."""
        return 1.0 if self.terms is None else growth.factor(self.terms, self.schedule, step)

    def begin(self, step: int) -> int:
        """This member begins ``step``, which is finished with the batch that it has now; returns its micro-batches."""
        self._begun = step
        return self.count(step)

    def begun(self, step: int | None) -> int:
        """Micro-batches of ``step`` where this member has begun it; 0 otherwise."""
        return self.count(step) if step is not None and step == self._begun else 0

    def follow(self, schedule: Schedule, step: int) -> None:
        """The generation goes on with ``step`` by this schedule."""
        self.schedule = growth.joined(self.schedule, step, schedule)

    def learn(self, step: int, count: int) -> None:
        """Other members have applied ``step`` with so many micro-batches."""
        self.follow(((step, count),), step)

    def record(self, step: int) -> dict[str, float]:
        """What the record of ``step`` has besides where the batch may change."""
        return {} if self.terms is None else {"micro_batches": self.count(step), "rate_factor": self.factor(step)}

    def listed(self, step: int) -> dict[int, int]:
        """The global batch of the steps before ``step``, by the number of the first step that has it, from 1."""
        if self.terms is None:
            return {1: self._global_batch} if step else {}
        return growth.listed(growth.until(self.schedule, step), self._micro_batch)

    def as_list(self, step: int) -> list[list[int]]:
        """What the training state after ``step`` steps has."""
        return [list(change) for change in growth.until(self.schedule, step)]

    def load(self, found: Any) -> None:
        """Take over what `as_list` returned."""
        self.schedule, self._begun = tuple((int(first), int(count)) for first, count in found), -1
