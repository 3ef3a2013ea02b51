"""The order of samples: a function of the seed and of the number of the step."""

from __future__ import annotations

_MASK = (1 << 64) - 1
_ROUNDS = 4


def sample_indices(seed: int, step: int, index: int, micro_batch: int, global_batch: int, length: int) -> list[int]:
    """The samples of micro-batch ``index`` of step ``step`` (from 0): each epoch is a permutation of all samples."""
    first = step * global_batch + index * micro_batch
    return [permute(p % length, length, mix(seed, p // length)) for p in range(first, first + micro_batch)]


def mix(*values: int) -> int:
    """Hash whole numbers into 64 bits (splitmix64 finaliser, Steele et al. 2014)."""
    state = 0x9E3779B97F4A7C15
    for value in values:
        state = (state + (value & _MASK) + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def permute(index: int, length: int, key: int) -> int:
    """The image of ``index`` under a keyed permutation of range(length): a Feistel network, cycle-walked.

    (Black and Rogaway, Ciphers with Arbitrary Finite Domains, 2002.)
    """
    half_bits = max(1, ((length - 1).bit_length() + 1) // 2)
    half = (1 << half_bits) - 1
    while True:
        left, right = index >> half_bits, index & half
        for turn in range(_ROUNDS):
            left, right = right, left ^ (mix(key, turn, right) & half)
        index = (left << half_bits) | right
        if index < length:
            return index
