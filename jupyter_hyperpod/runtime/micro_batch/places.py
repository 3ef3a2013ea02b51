"""The numbers that a micro-batch adds to ``Buffer.meta``, each at its place.

The numbers of different micro-batches are added in the tree, as gradients are. What must not be added has a place for
each micro-batch, or is written by one micro-batch alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import islice

import torch

from ...core.errors import TrainingError
from ...core.units import few
from .returned import FORMS, LONGEST, MOST_METRICS, PLAIN, Form, Returned, form_of

WORD = 6  # bytes of a text in one float64, which holds whole numbers up to 2**53


class Places:
    """Where the numbers are in ``meta``: the loss first, then these, the flag of the whole buffer last.

    ``micro_batches``: the most that a step has. ``statistics`` are the numbers of running statistics per micro-batch,
    ``vectors`` those that the last one leaves.
    """

    def __init__(self, parameters: int, micro_batches: int, statistics: int, vectors: int) -> None:
        self._shape = (micro_batches, statistics)
        lengths = {
            "counts": parameters,
            "losses": micro_batches,
            "weights": micro_batches,
            "forms": micro_batches,
            "metrics": MOST_METRICS,
            "text": LONGEST // WORD,
            "statistics": micro_batches * statistics,
            "vectors": vectors,
        }
        self._slices: dict[str, slice] = {}
        end = 1
        for name, length in lengths.items():
            self._slices[name] = slice(end, end + length)
            end += length
        self.numbers = end - 1 - parameters  # besides the loss, the counts and the flag
        self._forms = {PLAIN.number: PLAIN}  # those that were read before

    def of(self, meta: torch.Tensor, name: str) -> torch.Tensor:
        """The numbers of one kind, a view."""
        return meta[self._slices[name]]

    def statistics(self, meta: torch.Tensor) -> torch.Tensor:
        """Running statistics, a view of shape (micro-batches, numbers)."""
        return self.of(meta, "statistics").view(self._shape)

    def write(self, meta: torch.Tensor, leaf: int, returned: Returned, counts: Sequence[bool]) -> None:
        """Write what micro-batch ``leaf`` returned, and which parameters have a gradient, into zeros."""
        self.of(meta, "counts").copy_(torch.tensor(counts))
        if returned.weight:
            meta[0] = self.of(meta, "losses")[leaf] = returned.loss.detach()
        self.of(meta, "weights")[leaf] = returned.weight
        self.of(meta, "forms")[leaf] = returned.form.number
        if returned.metrics:
            self.of(meta, "metrics")[: len(returned.metrics)] = torch.tensor(list(returned.metrics.values())).double()
        if leaf == 0 and returned.form != PLAIN:
            self.of(meta, "text").copy_(_as_numbers(returned.form.text))

    def count(self, meta: torch.Tensor) -> int:
        """Micro-batches of the step: each has written its form, which is not 0."""
        return int(self.of(meta, "forms").count_nonzero())

    def total(self, meta: torch.Tensor) -> float:
        """The weight of all micro-batches."""
        return math.fsum(self.of(meta, "weights").tolist())

    def form(self, meta: torch.Tensor) -> Form:
        """What all micro-batches returned. Raises TrainingError where they differ."""
        first, *others = self.of(meta, "forms").tolist()[: self.count(meta)]
        if differing := [place for place, number in enumerate(others, start=1) if number != first]:
            raise TrainingError(
                f"the loss function returned other values for micro-batch {few(differing)} than for micro-batch 0: all "
                f"of a step return the same form with metrics of the same names; {FORMS}"
            )
        if int(first) not in self._forms:
            self._forms[int(first)] = form_of(_as_text(self.of(meta, "text")))
        return self._forms[int(first)]

    def metrics(self, meta: torch.Tensor) -> dict[str, float]:
        """The mean of each metric, as that of the loss."""
        names = self.form(meta).metrics
        total = self.total(meta)
        return {name: value / total for name, value in zip(names, self.of(meta, "metrics").tolist(), strict=False)}

    def losses(self, meta: torch.Tensor) -> tuple[float, ...]:
        """The mean loss of each micro-batch; of one without weight the mean of the step, unless it is not finite."""
        mean = float(meta[0]) / self.total(meta)
        neutral = mean if math.isfinite(mean) else 0.0
        pairs = zip(self.of(meta, "losses").tolist(), self.of(meta, "weights").tolist(), strict=True)
        found = islice(pairs, self.count(meta))
        return tuple(loss / weight if weight else neutral if math.isfinite(loss) else loss for loss, weight in found)


def _as_numbers(text: bytes) -> torch.Tensor:
    """A text as whole numbers in float64, filled up with spaces."""
    text = text.ljust(LONGEST)
    return torch.tensor([int.from_bytes(text[i : i + WORD], "big") for i in range(0, LONGEST, WORD)]).double()


def _as_text(numbers: torch.Tensor) -> bytes:
    return b"".join(int(number).to_bytes(WORD, "big") for number in numbers.tolist())
