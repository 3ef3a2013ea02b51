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
from typing import Any

import numpy as np
import torch

WIDTH = 1024
ROW = 1024
SMALL_OCTETS = 8 * ROW  # tensors up to this size are joined
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
    """Tensors with repeated checksums: views are prepared once, and small tensors are joined.

    Views are renewed where a tensor has moved to other memory.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.tensors = list(tensors)
        self._places: list[int] = []
        self._large: list[tuple[int, Octets]] = []
        self._small: list[tuple[slice, Octets]] = []
        self._small_indices: list[int] = []
        self._apart: list[int] = []  # not contiguous, or on another device
        self._gathered: Octets = np.empty(0, np.uint8)
        self._starts: list[int] = []
        self._odd = np.empty(0, np.int64)

    def checksums(self) -> Words:
        """One number per tensor, of its present bytes."""
        places = [tensor.data_ptr() if _plain(tensor) else -1 for tensor in self.tensors]
        if places != self._places:
            self._prepare()
            self._places = places
        found = np.zeros(len(self.tensors), np.int64)
        for index, octets in self._large:
            found[index] = _sum(octets)
        for index in self._apart:
            found[index] = _sum(_octets(self.tensors[index].detach().cpu().contiguous()))
        if self._small:
            for where, octets in self._small:
                self._gathered[where] = octets
            found[self._small_indices] = np.add.reduceat(self._gathered.view(np.int64) * self._odd, self._starts)
        return found

    def _prepare(self) -> None:
        self._large, self._small, self._small_indices, self._apart, self._starts = [], [], [], [], []
        weights: list[Words] = [np.empty(0, np.int64)]
        words = 0
        for index, tensor in enumerate(self.tensors):
            if not _plain(tensor):
                self._apart.append(index)
                continue
            octets = _octets(tensor)
            if octets.size > SMALL_OCTETS:
                self._large.append((index, octets))
                continue
            own = max(1, -(-octets.size // 8))
            self._small.append((slice(words * 8, words * 8 + octets.size), octets))
            self._small_indices.append(index)
            self._starts.append(words)
            weights.append(_weights(0)[:own])
            words += own
        self._gathered, self._odd = np.zeros(words * 8, np.uint8), np.concatenate(weights)


def checksum(tensors: Iterable[torch.Tensor]) -> int:
    """One 64-bit number for several tensors, in their order."""
    return fold(ChecksummedTensors(list(tensors)).checksums())


def _plain(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.is_contiguous()


def _octets(tensor: torch.Tensor) -> Octets:
    return tensor.detach().reshape(-1).view(torch.uint8).numpy()


def _sum(octets: Octets) -> np.int64:
    """The checksum of one tensor's bytes."""
    whole = octets.size // 8 * 8
    rest = int.from_bytes(octets[whole:].tobytes(), "little") * _INCREMENT
    number = (fold(_condense(octets[:whole].view(np.int64))) + rest) & _MASK
    return np.uint64(number).astype(np.int64)


def _condense(words: Words) -> Words:
    """The sums of all whole rows of a 1-D array of 64-bit words, and the words after them."""
    rows, rest = divmod(words.size, ROW)
    end = rows * ROW
    sums = np.empty(rows + rest, np.int64)
    np.add.reduce(words[:end].reshape(rows, ROW), axis=1, out=sums[:rows])
    sums[rows:] = words[end:]
    return sums
