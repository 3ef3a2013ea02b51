"""Fast 64-bit checksums of tensors: sums of words, then weighted sums of those, modulo 2**64.

Rows of `ROW` 64-bit words are summed; the sums of the rows, with fixed odd weights, make the checksum. Every change
within one 64-bit word, and so every flipped bit, is found: it changes one sum, and an odd weight has an inverse. Not
found: words of one row (8 KiB) that only changed places, and other changes of several words of one row that add up
to 0, such as one bit set in one and cleared in another. Two random flips in 100 MB do that less than once in a million
times; flips that only set, or only clear, the same bit of several words cannot, except for the highest bits. Changes of
different rows are missed with a chance of about 2**-60. Against an adversary use SHA-256.

That is for hardware, which is looked at in each step. Programs do let words change places: classes or features that a
member lists in another order. `checksum`, by which they are compared, gives each word of a row a weight, too. It takes
twice as long.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
import torch

WIDTH = 1024
ROW = 1024
ROW_OCTETS = 8 * ROW  # a tensor up to this size is no row: each of its words has a weight of its own
RECORDED = 4  # the read from which on the kernels are a graph
ROW_LEVEL = 1 << 20  # of the weights of words within a row: no level of `fold` has them
PRODUCT_ROWS = 4096  # of which a copy is made at a time, 32 MiB
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
    """Tensors with repeated checksums: views are prepared once, and one pass per device reads the words of all tensors.

    Views are renewed where a tensor has moved to other memory. Tensors of a GPU are read there; their words are summed
    modulo 2**64 in any order, so the numbers are those of the CPU.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], ordered: bool = False) -> None:
        """``ordered``: words that only change places are seen, too."""
        self.tensors = list(tensors)
        self._ordered = ordered
        self._places: list[int] = []
        self._read: list[tuple[list[int], _Words]] = []  # indices of the tensors, and their words
        self._apart: list[int] = []  # read from a copy

    def of(self, tensors: Sequence[torch.Tensor]) -> ChecksummedTensors:
        """This, or new views where these are other tensors."""
        same = list(map(id, self.tensors)) == list(map(id, tensors))
        return self if same else ChecksummedTensors(tensors, self._ordered)

    def checksums(self) -> Words:
        """One number per tensor, of its present bytes."""
        places = [tensor.data_ptr() if _plain(tensor) else -1 for tensor in self.tensors]
        if places != self._places:
            self._prepare(places)
            self._places = places
        found = np.zeros(len(self.tensors), np.int64)
        for indices, words in self._read:
            found[indices] = words.checksums()
        for index in self._apart:
            copy = self.tensors[index].detach().clone(memory_format=torch.contiguous_format)
            found[index] = ChecksummedTensors([copy], self._ordered).checksums()[0]
        return found

    def _prepare(self, places: Sequence[int]) -> None:
        self._apart = [index for index, place in enumerate(places) if place == -1]
        by_device: dict[torch.device, list[int]] = {}
        for index, place in enumerate(places):
            if place != -1:
                by_device.setdefault(self.tensors[index].device, []).append(index)
        kind = self._ordered
        self._read = [(found, _words_of([self.tensors[n] for n in found], kind)) for found in by_device.values()]


class _Words:
    """The words of contiguous tensors of one device: the sum of each row, then what fills no row."""

    def __init__(self, views: Sequence[torch.Tensor], ordered: bool = False) -> None:
        """``views``: the tensors' bytes, 1-D."""
        self._weights = torch.from_numpy(_weights(ROW_LEVEL)).to(views[0].device) if ordered else None
        octets = [view.numel() for view in views]
        self.rows = [n // ROW_OCTETS if n > ROW_OCTETS else 0 for n in octets]
        sizes = [max(1, n - (n * ROW_OCTETS - size) // 8) for n, size in zip(self.rows, octets, strict=True)]
        self.starts = [0, *accumulate(sizes)][:-1]
        self.count = sum(sizes)
        self._odd = np.concatenate([np.empty(0, np.int64), *map(_odd, sizes)])

    def checksums(self) -> Words:
        """One number per tensor."""
        found: Words = np.add.reduceat(self.read() * self._odd, self.starts)
        return found

    def read(self) -> Words:
        """The words now."""
        raise NotImplementedError

    def _sum(self, rows: torch.Tensor, sums: torch.Tensor) -> None:
        """The sum of each row, with a weight for each word or without."""
        if self._weights is None:
            torch.sum(rows, dim=1, out=sums)
        elif rows.is_cpu:
            torch.mv(rows, self._weights, out=sums)
        else:  # for integers a GPU has no product of this kind
            for part, found in zip(rows.split(PRODUCT_ROWS), sums.split(PRODUCT_ROWS), strict=True):
                torch.sum(part * self._weights, dim=1, out=found)


class _HostWords(_Words):
    """Of tensors of the CPU, which need not be aligned."""

    def __init__(self, views: Sequence[torch.Tensor], ordered: bool = False) -> None:
        super().__init__(views, ordered)
        words = torch.zeros(self.count, dtype=torch.int64, device="cpu")
        self._words: Words = words.numpy()
        self._summed: list[tuple[torch.Tensor, torch.Tensor]] = []  # rows, and where their sums go
        self._copied: list[tuple[Octets, Octets]] = []  # what fills no row, and where it goes
        for view, n, start in zip((view.numpy() for view in views), self.rows, self.starts, strict=True):
            if n:
                whole = torch.from_numpy(view[: n * ROW_OCTETS].view(np.int64)).view(n, ROW)
                self._summed.append((whole, words[start : start + n]))
            if (rest := view[n * ROW_OCTETS :]).size:
                begin = 8 * (start + n)
                self._copied.append((rest, self._words.view(np.uint8)[begin : begin + rest.size]))

    def read(self) -> Words:
        for rows, sums in self._summed:
            self._sum(rows, sums)
        for octets, copy in self._copied:
            copy[:] = octets
        return self._words


class DeviceWords(_Words):
    """Of tensors of a GPU: rows are summed there, one kernel per tensor, and only the words come to the host.

    The kernels are recorded as a CUDA graph where the tensors stay: to launch hundreds takes longer than to run them.
    """

    def __init__(self, views: Sequence[torch.Tensor], ordered: bool = False) -> None:
        super().__init__(views, ordered)
        device = views[0].device
        self._there = torch.zeros(self.count, dtype=torch.int64, device=device)
        self._here = torch.zeros(self.count, dtype=torch.int64, pin_memory=device.type == "cuda")
        octets = self._there.view(torch.uint8)
        self._summed: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._rests: list[torch.Tensor] = []
        self._copies: list[torch.Tensor] = []
        for view, n, start in zip(views, self.rows, self.starts, strict=True):
            if n:
                whole = view[: n * ROW_OCTETS].view(torch.int64).reshape(n, ROW)
                self._summed.append((whole, self._there[start : start + n]))
            if (rest := view[n * ROW_OCTETS :]).numel():
                begin = 8 * (start + n)
                self._rests.append(rest)
                self._copies.append(octets[begin : begin + rest.numel()])

        self._reads = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def read(self) -> Words:
        self._reads += 1
        if self._reads == RECORDED and self._there.is_cuda:
            self._record()
        if self._graph is not None:
            self._graph.replay()
        else:
            self._launch()
        return self._here.copy_(self._there).numpy()  # waits for the device

    def _launch(self) -> None:
        for rows, sums in self._summed:
            self._sum(rows, sums)
        if self._rests:
            torch._foreach_copy_(self._copies, self._rests)

    def _record(self) -> None:
        """Record the kernels. Where that cannot be done, they are launched as before."""
        current, stream = torch.cuda.current_stream(self._there.device), torch.cuda.Stream(self._there.device)
        graph = torch.cuda.CUDAGraph()
        stream.wait_stream(current)
        with suppress(RuntimeError), torch.cuda.stream(stream):  # no memory, or another recording is under way
            graph.capture_begin(capture_error_mode="thread_local")  # other threads may work on the device
            try:
                self._launch()
            finally:
                graph.capture_end()
            self._graph = graph
        current.wait_stream(stream)


def checksum(tensors: Iterable[torch.Tensor]) -> int:
    """One 64-bit number for several tensors, in their order; of their bytes, each in its place."""
    return fold(ChecksummedTensors(list(tensors), ordered=True).checksums())


def _plain(tensor: torch.Tensor) -> bool:
    """Whether its bytes can be read in place as 64-bit words."""
    return tensor.is_contiguous() and (tensor.is_cpu or tensor.data_ptr() % 8 == 0)


def _words_of(tensors: Sequence[torch.Tensor], ordered: bool) -> _Words:
    views = [tensor.detach().reshape(-1).view(torch.uint8) for tensor in tensors]
    return (_HostWords if tensors[0].is_cpu else DeviceWords)(views, ordered)
