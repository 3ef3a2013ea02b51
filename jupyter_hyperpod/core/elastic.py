"""ElasticRange: the numbers of nodes a job may run on, as a range, in steps or as a list."""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

from .errors import SpecError

MAX_NODES = 100_000


MAX_SIZES = 1_000
_NUMBER = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class ElasticRange:
    """The fewest and the most nodes that the job may run on, and the allowed numbers between where some are not.

    ``sizes`` rise from ``minimum`` to ``maximum``; empty means every number. Raises SpecError.
    """

    minimum: int
    maximum: int
    sizes: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.minimum <= self.maximum <= MAX_NODES:
            raise SpecError(
                f"elastic range {self.minimum}:{self.maximum} is impossible; "
                f"expected 1 <= MIN <= MAX <= {MAX_NODES}, for example --elastic 2:8"
            )
        if not self.sizes:
            return
        if len(self.sizes) > MAX_SIZES:
            raise SpecError(f"{len(self.sizes)} elastic sizes are too many; expected at most {MAX_SIZES}")
        rising = all(low < high for low, high in pairwise(self.sizes))
        if not rising or (self.sizes[0], self.sizes[-1]) != (self.minimum, self.maximum):
            raise SpecError(
                f"elastic sizes {self.sizes} do not rise from {self.minimum} to {self.maximum}; "
                "expected for example --elastic 1,2,4,8"
            )

    @classmethod
    def parse(cls, text: str) -> ElasticRange:
        """Parse ``"MIN:MAX"``, ``"MIN:MAX:STEP"`` or ``"A,B,C"`` in any order; raises SpecError."""
        parts = text.split("," if "," in text else ":")
        if not all(_NUMBER.fullmatch(part.strip()) for part in parts) or len(parts) < 2:
            raise SpecError(_malformed(text))
        numbers = [int(part) for part in parts]
        if "," in text:
            sizes = tuple(sorted(set(numbers)))
            return cls(sizes[0], sizes[-1], sizes)
        if len(numbers) > 3:
            raise SpecError(_malformed(text))
        low, high, step = (*numbers, 1)[:3]
        if step < 1 or (high >= low and (high - low) % step):
            raise SpecError(
                f"elastic range {text!r} is impossible: steps of {step} do not lead from {low} to {high}; "
                "expected for example --elastic 2:8:2"
            )
        every = cls(low, high)
        return cls(low, high, tuple(range(low, high + 1, step))) if step > 1 and high > low else every

    def __str__(self) -> str:
        if not self.sizes:
            return f"{self.minimum}:{self.maximum}"
        steps = {high - low for low, high in pairwise(self.sizes)}
        if len(self.sizes) > 2 and len(steps) == 1:
            return f"{self.minimum}:{self.maximum}:{steps.pop()}"
        return ",".join(map(str, self.sizes))

    def allows(self, nodes: int) -> bool:
        """Whether the job may run on this number of nodes."""
        return nodes in self.sizes if self.sizes else self.minimum <= nodes <= self.maximum

    def fit(self, nodes: int) -> int:
        """The largest allowed number up to `nodes`; 0 where there is none."""
        if nodes < self.minimum:
            return 0
        return self.sizes[bisect_right(self.sizes, nodes) - 1] if self.sizes else min(nodes, self.maximum)

    def clamp(self, wish: int) -> int:
        """The largest allowed number up to `wish`; the smallest allowed number where there is none."""
        return self.fit(wish) or self.minimum


def _malformed(text: str) -> str:
    return f"elastic range {text!r} is not of the form MIN:MAX, MIN:MAX:STEP or A,B,C, for example --elastic 2:8"
