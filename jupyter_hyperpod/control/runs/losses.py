"""The exact losses of one session of a job, as far as its journal still has them. Pure."""

from __future__ import annotations

import struct
from array import array
from bisect import bisect_left
from dataclasses import dataclass, field


@dataclass
class ExactLosses:
    """``steps`` ascending, and the 64 bits of each loss. ``thinned``: steps whose records were left out with age.

    ``repeated``: steps that were committed again with another loss, as after ``session.restore``; the later record
    counts, and those of the steps after it are forgotten, as the run computed them again.
    """

    session: int
    steps: array[int] = field(default_factory=lambda: array("q"))
    bits: array[int] = field(default_factory=lambda: array("Q"))
    thinned: int = 0
    repeated: int = 0
    closed_step: int | None = None
    digest: str = ""

    def add(self, step: int, loss_hex: str, stands_for: int = 1) -> None:
        """Add a record of a step, which stands for so many steps. One without a readable loss is left out."""
        try:
            (bits,) = struct.unpack("<Q", struct.pack("<d", float.fromhex(loss_hex)))
        except (ValueError, OverflowError):
            return
        if self.steps and step <= self.steps[-1]:
            place = bisect_left(self.steps, step)
            if self.steps[place] != step or self.bits[place] == bits:
                return  # another member's record of the same step
            del self.steps[place:], self.bits[place:]
            self.repeated += 1
        self.steps.append(step)
        self.bits.append(bits)
        self.thinned += max(0, stands_for - 1)

    def loss(self, place: int) -> float:
        """The loss at a place of ``steps``."""
        value: float = struct.unpack("<d", struct.pack("<Q", self.bits[place]))[0]
        return value
