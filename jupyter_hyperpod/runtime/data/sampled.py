"""The order that a sampler of torch gives: drawn anew for each epoch, with generators seeded by (seed, epoch)."""

from __future__ import annotations

import random
import sys
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any

import torch

from ...core.errors import SpecError, TrainingError
from ..session.purity import seeded
from .order import SAMPLER, mix
from .sizes import BatchSizes

KEPT_EPOCHS = 2  # a global batch may end in the next epoch
ENDLESS = 1_000_000  # samples of one epoch, and ten times the data, after which a sampler counts as endless
CHANGED = (
    "the sampler {name} gives another order for epoch {epoch} than it gave before, or to the other members: it was "
    "changed after that epoch had begun. Change it only by set_epoch(epoch), or keep what it depends on in the session "
    "before the first step"
)


class Sampled:
    """Every member draws the same indices, when the first step begins that needs them.

    ``sizes`` of the steps, or the global batch. ``cut``: an epoch is cut to a multiple of this. Raises SpecError for a
    sampler that is asked twice and gives two orders, or that gives none.
    """

    def __init__(self, sampler: Iterable[int], seed: int, samples: int, sizes: BatchSizes | int, cut: int = 1) -> None:
        self._sampler, self._seed, self._samples = sampler, seed, samples
        self._sizes = BatchSizes(sizes, 1) if isinstance(sizes, int) else sizes
        self._cut = cut
        self.name = type(sampler).__name__
        set_epoch = getattr(sampler, "set_epoch", None)
        self._set_epoch = set_epoch if callable(set_epoch) else None
        self._length = _length(sampler)
        self._is_regular = self._length is not None and self._set_epoch is None  # all epochs have one length
        self._ends: list[int] = []  # positions at which epochs end, where each may have another length
        self._drawn: dict[int, array[int]] = {}
        self._expected: dict[int, int] = {}  # checksums of epochs that other members have drawn
        self._ended: list[int] = []  # `_ends` of other members
        if self._draw(0) != self._draw(0):
            raise SpecError(
                f"the sampler {self.name} gives another order when it is asked for the same epoch again; it may depend "
                "on set_epoch(epoch) and on the generators of torch, Python and numpy, which are seeded for each epoch"
            )

    def begin(self, step: int) -> None:
        """Draw the epochs of this step, before the cell can change the sampler: so all members draw them alike."""
        for epoch in self._epochs(step):
            self._epoch(epoch)

    def is_fixed(self, step: int) -> bool:
        """Whether the epochs of this step are drawn."""
        if not self._is_regular and (not self._ends or self._sizes.span(step).stop > self._ends[-1]):
            return False
        return all(epoch in self._drawn for epoch in self._epochs(step))

    def at(self, position: int) -> int:
        """The sample at this position."""
        epoch, offset = self._find(position)
        return self._epoch(epoch)[offset]

    def state_dict(self) -> dict[str, Any]:
        """Checksums of the epochs that are drawn, by which a newcomer finds that it would draw others."""
        return {"epochs": {epoch: _checksum(found) for epoch, found in self._drawn.items()}, "ends": list(self._ends)}

    def mark(self, step: int) -> int:
        """A number that is the same where the epochs of this step are drawn alike, and begin at the same places."""
        drawn = [_checksum(self._epoch(epoch)) for epoch in self._epochs(step)]
        return zlib.crc32(repr([self._find(self._sizes.span(step)[0]), *drawn]).encode())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Compare what is drawn from now on with what another member has drawn."""
        self._expected = {int(epoch): checksum for epoch, checksum in state["epochs"].items()}
        self._ended = list(state.get("ends", ()))
        self._drawn.clear()
        self._ends.clear()

    def _epochs(self, step: int) -> range:
        span = self._sizes.span(step)
        return range(self._find(span[0])[0], self._find(span[-1])[0] + 1)

    def _find(self, position: int) -> tuple[int, int]:
        """The epoch of a position, and the place in it."""
        if self._is_regular and self._length is not None:
            return divmod(position, self._kept(self._length))
        while not self._ends or position >= self._ends[-1]:
            epoch, before = len(self._ends), self._ends[-1] if self._ends else 0
            self._ends.append(before + self._length_of(epoch))
            if self._ended[epoch : epoch + 1] not in ([], self._ends[epoch:]):
                raise TrainingError(CHANGED.format(name=self.name, epoch=epoch))
        epoch = bisect_right(self._ends, position)
        return epoch, position - (self._ends[epoch - 1] if epoch else 0)

    def _length_of(self, epoch: int) -> int:
        """How many samples of an epoch count. A sampler with a length is asked for that alone."""
        if self._length is None:
            return len(self._epoch(epoch))
        with self._in(epoch):
            return self._kept(len(self._sampler))  # type: ignore[arg-type]

    @contextmanager
    def _in(self, epoch: int) -> Iterator[None]:
        """The sampler is in this epoch, and all generators are seeded for it."""
        seed = mix(self._seed, SAMPLER, epoch)
        with seeded(seed), _own_generators(self._sampler, seed):
            if self._set_epoch is not None:
                self._set_epoch(epoch)
            yield

    def _epoch(self, epoch: int) -> array[int]:
        if epoch not in self._drawn:
            found = self._drawn[epoch] = self._draw(epoch)
            length, expected = self._known_length(epoch), self._expected.get(epoch)
            if length not in (None, len(found)) or expected not in (None, _checksum(found)):
                raise TrainingError(CHANGED.format(name=self.name, epoch=epoch))
            while len(self._drawn) > KEPT_EPOCHS:
                self._drawn.pop(next(iter(self._drawn)))  # the one drawn first
        return self._drawn[epoch]

    def _known_length(self, epoch: int) -> int | None:
        """How many samples of an epoch count, where each epoch may have another length and this is known."""
        if epoch >= len(self._ends):
            return None
        return self._ends[epoch] - (self._ends[epoch - 1] if epoch else 0)

    def _draw(self, epoch: int) -> array[int]:
        with self._in(epoch):
            length = _length(self._sampler) if self._set_epoch is not None else self._length
            found = self._listed(length)
        if length is not None and len(found) != length:
            raise SpecError(
                f"the sampler {self.name} has a length of {length} and gives {len(found)} samples in epoch {epoch}; "
                "expected as many as its length, which may change by set_epoch(epoch) alone"
            )
        kept = self._kept(len(found))
        if wrong := next((index for index in found if not 0 <= index < self._samples), None):
            raise SpecError(f"the sampler {self.name} gives sample {wrong}; the data has {self._samples}, from 0")
        return found[:kept]

    def _listed(self, length: int | None) -> array[int]:
        most = length if length is not None else max(ENDLESS, 10 * self._samples)
        try:
            found = array("q", islice(self._sampler, most + 1))
        except TypeError as error:
            raise SpecError(
                f"the sampler {self.name} gives no single whole numbers ({error}); expected a sampler of samples, not "
                "of batches: the session cuts the batches"
            ) from error
        if length is None and len(found) > most:
            raise SpecError(f"the sampler {self.name} has no length and gave {most} samples; expected an end, or len()")
        return found

    def _kept(self, count: int) -> int:
        kept = count - count % self._cut
        if not kept:
            raise SpecError(
                f"the sampler {self.name} gives {count} samples per epoch; expected at least {max(1, self._cut)}"
            )
        return kept


def _length(sampler: Any) -> int | None:
    try:
        return len(sampler)
    except TypeError:
        return None


def _checksum(found: array[int]) -> int:
    return zlib.crc32(found.tobytes())


@contextmanager
def _own_generators(sampler: Any, seed: int) -> Iterator[None]:
    """Seed the random generators that are attributes of a sampler; restore them afterwards."""
    numpy: Any = sys.modules.get("numpy")
    with ExitStack() as stack:
        for generator in vars(sampler).values() if hasattr(sampler, "__dict__") else ():
            if isinstance(generator, torch.Generator):
                stack.callback(generator.set_state, generator.get_state())
                generator.manual_seed(seed)
            elif isinstance(generator, random.Random):
                stack.callback(generator.setstate, generator.getstate())
                generator.seed(seed)
            elif numpy is not None and isinstance(generator, numpy.random.Generator):
                bits = generator.bit_generator
                stack.callback(setattr, bits, "state", bits.state)
                bits.state = type(bits)(seed).state
            elif numpy is not None and isinstance(generator, numpy.random.RandomState):
                stack.callback(generator.set_state, generator.get_state())
                generator.seed(seed & 0xFFFFFFFF)
        yield
