"""The order of samples: a function of the seed and of a sample's position among all that the run takes.

Position ``step * global_batch + k`` is sample ``k`` of the global batch of that step, from 0. So any member finds the
samples of any micro-batch, and nothing has to be replayed after a fault.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

from ...core.errors import SpecError

_MASK = (1 << 64) - 1
_ROUNDS = 4
READING, SAMPLER, STREAM = 1, 2, 3  # tell uses of the seed from others


class Order(Protocol):
    """Says which sample is at a position."""

    @property
    def name(self) -> str:
        """What a person calls it."""

    def begin(self, step: int) -> None:
        """Step ``step`` (from 0) begins on this member: from now on its samples are fixed."""

    def is_fixed(self, step: int) -> bool:
        """Whether the samples of this step are known already and cannot change any more."""

    def at(self, position: int) -> int:
        """The index of the sample at this position."""


class Shuffled:
    """Each epoch is another permutation of all ``length`` samples, of which the first ``kept`` are taken."""

    name = "shuffled"

    def __init__(self, seed: int, length: int, kept: int | None = None) -> None:
        self._seed, self._length, self._kept = seed, length, kept or length

    def begin(self, step: int) -> None:
        """Nothing depends on when a step begins."""

    def is_fixed(self, step: int) -> bool:
        """Always."""
        return True

    def at(self, position: int) -> int:
        """The sample at this position."""
        return permute(position % self._kept, self._length, mix(self._seed, position // self._kept))


class Sequential:
    """Samples in the order in which they are stored; each epoch takes the first ``kept``."""

    name = "sequential"

    def __init__(self, kept: int) -> None:
        self._kept = kept

    def begin(self, step: int) -> None:
        """Nothing depends on when a step begins."""

    def is_fixed(self, step: int) -> bool:
        """Always."""
        return True

    def at(self, position: int) -> int:
        """The sample at this position."""
        return position % self._kept


class Lanes:
    """The data cut into ``lanes`` stretches of equal length: each sample of the global batch goes along its own.

    Step after step a lane gives consecutive samples, as truncated backpropagation through time needs them. What does
    not fill the stretches is left out, as ``batchify`` of PyTorch's language model does. Raises SpecError for fewer
    samples than lanes.
    """

    name = "lanes"

    def __init__(self, length: int, lanes: int) -> None:
        if length < lanes:
            raise SpecError(
                f'order is "lanes" and the data has {length} samples; expected at least one for each of the {lanes} '
                "samples of the global batch"
            )
        self._lanes, self._rows = lanes, length // lanes

    def begin(self, step: int) -> None:
        """Nothing depends on when a step begins."""

    def is_fixed(self, step: int) -> bool:
        """Always."""
        return True

    def at(self, position: int) -> int:
        """The sample at this position."""
        step, lane = divmod(position, self._lanes)
        return lane * self._rows + step % self._rows


def sample_indices(seed: int, step: int, index: int, micro_batch: int, global_batch: int, length: int) -> list[int]:
    """The samples of micro-batch ``index`` of step ``step`` (from 0), where each epoch is a permutation of all."""
    first, order = step * global_batch + index * micro_batch, Shuffled(seed, length)
    return [order.at(position) for position in range(first, first + micro_batch)]


def mix(*values: int) -> int:
    """Hash whole numbers into 64 bits (splitmix64 finaliser, Steele et al. 2014)."""
    state = 0x9E3779B97F4A7C15
    for value in values:
        state = _mixed(state, value)
    return state


def _mixed(state: int, value: int) -> int:
    state = (state + (value & _MASK) + 0x9E3779B97F4A7C15) & _MASK
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)


@lru_cache(maxsize=64)
def _keys(key: int) -> tuple[int, ...]:
    """A key for each round."""
    return tuple(mix(key, turn) for turn in range(_ROUNDS))


def permute(index: int, length: int, key: int) -> int:
    """The image of ``index`` under a keyed permutation of range(length): a Feistel network, cycle-walked.

    (Black and Rogaway, Ciphers with Arbitrary Finite Domains, 2002.)
    """
    half_bits = max(1, ((length - 1).bit_length() + 1) // 2)
    half, keys = (1 << half_bits) - 1, _keys(key)
    while True:
        left, right = index >> half_bits, index & half
        for turn_key in keys:
            left, right = right, left ^ (_mixed(turn_key, right) & half)
        index = (left << half_bits) | right
        if index < length:
            return index
