"""Fast 64-bit checksums of tensors: sums of words, then weighted sums of those, modulo 2**64.

Rows of `ROW` 64-bit words are summed; the sums of the rows, with fixed odd weights, make the checksum. Every change
within one 64-bit word, and so every flipped bit, is found: it changes one sum, and an odd weight has an inverse. Not
found: words of one row (8 KiB) that only changed places, and other changes of several words of one row that add up
to 0, such as one bit set in one and cleared in another. Two random flips in 100 MB do that less than once in a million
times; flips that only set, or only clear, the same bit of several words cannot, except for the highest bits. Changes of
different rows are missed with a chance of about 2**-60. Against an adversary use SHA-256.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
import torch

WIDTH = 1024
ROW = 1024
ROW_OCTETS = 8 * ROW  # a tensor up to this size is no row: each of its words has a weight of its own
_MASK = (1 << 64) - 1
_INCREMENT = 0x9E3779B97F4A7C15
Words = np.ndarray[Any, np.dtype[np.int64]]
Octets = np.ndarray[Any, np.dtype[np.uint8]]


@cache
def _weights(level: int) -> Words:
    """`WIDTH` odd numbers, equal on all members (splitmix64)."""
    z = np.arange(1 + WIDTH * level, 1 + WIDTH * (level + 1), dtype=np.uint64) * np.uint64(_INCREMENT)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((z ^ (z >> np.uint64(31))) | np.uint64(1)).view(np.int64)


def _odd(count: int) -> Words:
    """``count`` odd numbers, always the same."""
    return np.concatenate([_weights(level) for level in range(-(-count // WIDTH))])[:count]


def fold(words: Words, level: int = 0) -> int:
    """One 64-bit number for a 1-D array of 64-bit words."""
    weights = _weights(level)
    rows, rest = divmod(words.size, WIDTH)
    tail = int(words[rows * WIDTH :].dot(weights[:rest]))
    if not rows:
        return tail & _MASK
    sums = np.empty(rows + 1, np.int64)
    np.einsum("ij,j->i", words[: rows * WIDTH].reshape(rows, WIDTH), weights, out=sums[:rows])
    sums[rows] = tail
    return fold(sums, level + 1)


class ChecksummedTensors:
    """Tensors with repeated checksums: views are prepared once, and one pass weighs the words of all tensors.

    Views are renewed where a tensor has moved to other memory.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.tensors = list(tensors)
        self._places: list[int] = []
        self._summed: list[tuple[Words, Words]] = []  # rows of 64-bit words, and where their sums go
        self._copied: list[tuple[Octets, Octets]] = []  # what fills no row, and where it goes
        self._apart: list[int] = []  # not contiguous, or on another device
        self._plain: list[int] = []
        self._words = self._odd = np.empty(0, np.int64)
        self._starts: list[int] = []  # of each plain tensor's words

    def checksums(self) -> Words:
        """One number per tensor, of its present bytes."""
        places = [tensor.data_ptr() if _plain(tensor) else -1 for tensor in self.tensors]
        if places != self._places:
            self._prepare()
            self._places = places
        found = np.zeros(len(self.tensors), np.int64)
        for rows, sums in self._summed:
            np.add.reduce(rows, axis=1, out=sums)
        for octets, copy in self._copied:
            copy[:] = octets
        if self._plain:
            found[self._plain] = np.add.reduceat(self._words * self._odd, self._starts)
        for index in self._apart:
            found[index] = ChecksummedTensors([self.tensors[index].detach().cpu().contiguous()]).checksums()[0]
        return found

    def _prepare(self) -> None:
        plain = [_plain(tensor) for tensor in self.tensors]
        self._plain = [index for index, is_plain in enumerate(plain) if is_plain]
        self._apart = [index for index, is_plain in enumerate(plain) if not is_plain]
        views = [_octets(self.tensors[index]) for index in self._plain]
        rows = [view.size // ROW_OCTETS if view.size > ROW_OCTETS else 0 for view in views]
        sizes = [max(1, n - (n * ROW_OCTETS - view.size) // 8) for n, view in zip(rows, views, strict=True)]
        self._starts = [0, *accumulate(sizes)][:-1]
        self._words = np.zeros(sum(sizes), np.int64)
        self._odd = np.concatenate([np.empty(0, np.int64), *map(_odd, sizes)])
        self._summed, self._copied = [], []
        for view, n, start in zip(views, rows, self._starts, strict=True):
            if n:
                whole = view[: n * ROW_OCTETS].view(np.int64).reshape(n, ROW)
                self._summed.append((whole, self._words[start : start + n]))
            if (rest := view[n * ROW_OCTETS :]).size:
                begin = 8 * (start + n)
                self._copied.append((rest, self._words.view(np.uint8)[begin : begin + rest.size]))


def checksum(tensors: Iterable[torch.Tensor]) -> int:
    """One 64-bit number for several tensors, in their order."""
    return fold(ChecksummedTensors(list(tensors)).checksums())


def _plain(tensor: torch.Tensor) -> bool:
    return tensor.is_cpu and tensor.is_contiguous()


def _octets(tensor: torch.Tensor) -> Octets:
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()
