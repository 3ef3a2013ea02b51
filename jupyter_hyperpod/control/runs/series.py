"""Values by step in bounded memory: of several steps in one place, the lowest, the highest and the last. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

PLACES = 256


class CurvePlace(NamedTuple):
    """The values of ``stride`` neighbouring steps; all but the extremes are those of the last one that is known."""

    step: int
    low: float
    high: float
    last: float
    time_s: float = 0.0


@dataclass
class Series:
    """One curve. A step that comes again replaces nothing: the journal's first record of a step is drawn."""

    stride: int = 1
    places: list[CurvePlace] = field(default_factory=list)
    count: int = 0
    not_finite: int = 0
    last: float | None = None
    last_step: int = 0

    def add(self, step: int, value: float | None, time_s: float = 0.0) -> None:
        """Add the value of a step; None and what is not finite are counted, not drawn."""
        if self.count and step < self.last_step:
            return
        self.count += 1
        self.last, self.last_step = value, step
        if value is None or not math.isfinite(value):
            self.not_finite += 1
            return
        fresh = CurvePlace(step, value, value, value, time_s)
        if self.places and self.places[-1].step // self.stride == step // self.stride:
            self.places[-1] = _joined(self.places[-1], fresh)
        else:
            self.places.append(fresh)
        while len(self.places) > 2 * PLACES:
            self._widen()

    def _widen(self) -> None:
        self.stride *= 2
        wider: list[CurvePlace] = []
        for place in self.places:
            if wider and wider[-1].step // self.stride == place.step // self.stride:
                wider[-1] = _joined(wider[-1], place)
            else:
                wider.append(place)
        self.places = wider

    def at(self, step: float) -> float | None:
        """The value drawn at a step, or just after it; None where there is none."""
        index = bisect_left(self.places, step, key=lambda place: place.step)
        return self.places[min(index, len(self.places) - 1)].last if self.places else None

    @property
    def lowest(self) -> float:
        """The lowest value that was drawn; NaN for none."""
        return min((place.low for place in self.places), default=math.nan)

    @property
    def highest(self) -> float:
        """The highest value that was drawn; NaN for none."""
        return max((place.high for place in self.places), default=math.nan)

    def rows(self, most: int) -> Iterator[CurvePlace]:
        """At most this many places, evenly chosen, the first and the last among them."""
        count = len(self.places)
        if count <= most:
            yield from self.places
            return
        for number in range(most):
            yield self.places[round(number * (count - 1) / (most - 1))]


def _joined(one: CurvePlace, other: CurvePlace) -> CurvePlace:
    return CurvePlace(other.step, min(one.low, other.low), max(one.high, other.high), other.last, other.time_s)
