"""64-bit checksums of tensors at the speed of memory: sums of their words with fixed odd weights, modulo 2**64.

A change within one 64-bit word is seen for certain, because an odd weight has an inverse. Words have weights of their
own, so words that changed places are seen too; other changes of several words escape with a chance of about 2**-60.
Not against an adversary: for that there is SHA-256, fifty times slower.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
import torch

WIDTH = 1024
_MASK = (1 << 64) - 1
_INCREMENT = 0x9E3779B97F4A7C15
Words = np.ndarray[Any, np.dtype[np.int64]]


@cache
def _weights(level: int) -> Words:
    """`WIDTH` odd numbers, the same everywhere (splitmix64)."""
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


class Watched:
    """One tensor that is looked at again and again; what the look needs is prepared once."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self._pointer = -1
        self._words = np.empty(0, np.int64)
        self._rest = memoryview(b"")

    def checksum(self) -> int:
        """Of the bytes the tensor has now."""
        if not self.tensor.is_contiguous() or self.tensor.device.type != "cpu":
            return Watched(self.tensor.detach().cpu().contiguous()).checksum()
        if self.tensor.data_ptr() != self._pointer:
            self._prepare()
        number = fold(self._words)
        return (number + int.from_bytes(self._rest, "little") * _INCREMENT) & _MASK if len(self._rest) else number

    def _prepare(self) -> None:
        content = self.tensor.detach().reshape(-1).view(torch.uint8).numpy()
        whole = content.size // 8 * 8
        self._words = content[:whole].view(np.int64)
        self._rest = content[whole:].data
        self._pointer = self.tensor.data_ptr()


def checksum(tensors: Iterable[torch.Tensor]) -> int:
    """One 64-bit number for several tensors, in their order."""
    return fold(np.array([Watched(tensor).checksum() for tensor in tensors], np.uint64).view(np.int64))
