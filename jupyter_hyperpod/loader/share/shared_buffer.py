"""An anonymous memory file into which the ranks of one host load a model together, and which each of them maps.

A rank that has claimed a chunk writes it through a shared mapping. The tensors of all ranks are private mappings of the
same pages, which are copied only when written. So a chunk is read once and never copied. A claim is a lock that the
kernel releases when its holder dies, so that the chunk is free again at once.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...system.locks import release_byte_lock, take_byte_lock
from ...system.memory_files import create_memory_file, open_memory_file, seal_length
from ..memory import LIBC, map_file
from ..read.plan import HUGE_PAGE_BYTES

TOKEN_BYTES = 32
FLOAT_BYTES = 4
INSTANT_S = 1e-6
_COLLAPSE = 25


@dataclass(frozen=True, slots=True)
class BufferAddress:
    """Names a shared buffer to processes of the same user on the same host. `token` is random and unique."""

    pid: int
    descriptor: int
    inode: int
    token: str


class SharedBuffer:
    """`count` chunks in landings of `sizes` bytes, shared by the processes of one host.

    ``seconds[i]`` is how long chunk i took to arrive, 0.0 before. The descriptor, through which peers find the buffer,
    stays open while tensors of ``private`` exist.
    """

    def __init__(self, descriptor: int, count: int, sizes: Sequence[int], token: str) -> None:
        self.descriptor = descriptor
        self.token = token
        self._count = count
        starts, end = layout(count, sizes)
        self.starts = starts
        self.memory = map_file(descriptor, end, private=False)
        self.private = map_file(descriptor, end, private=True)
        self._address = self.memory.ctypes.data
        weakref.finalize(self.private, os.close, descriptor)
        self.seconds = np.frombuffer(self.memory, np.float32, count, TOKEN_BYTES)

    @classmethod
    def create(cls, count: int, sizes: Sequence[int]) -> SharedBuffer:
        """Create an empty one. Raises MemoryError where the system refuses."""
        token = os.urandom(TOKEN_BYTES // 2).hex()
        try:
            descriptor = create_memory_file("hyperpod-model", layout(count, sizes)[1])
        except OSError as error:
            raise MemoryError(f"no room for a model of {sum(sizes)} bytes: {error.strerror}") from None
        try:
            os.pwrite(descriptor, token.encode(), 0)
            seal_length(descriptor)
            return cls(descriptor, count, sizes, token)
        except OSError as error:
            os.close(descriptor)
            raise MemoryError(f"no room for a model of {sum(sizes)} bytes: {error.strerror}") from None

    @classmethod
    def attach(cls, place: BufferAddress, count: int, sizes: Sequence[int]) -> SharedBuffer:
        """Open a peer's. Raises OSError where the peer has ended, is on another host or out of reach."""
        descriptor = open_memory_file(place.pid, place.descriptor, place.inode)
        try:
            same = os.fstat(descriptor).st_size == layout(count, sizes)[1]
            if not same or os.pread(descriptor, TOKEN_BYTES, 0) != place.token.encode():
                raise FileNotFoundError(errno.ENOENT, f"process {place.pid} holds something else")
            return cls(descriptor, count, sizes, place.token)
        except BaseException:
            os.close(descriptor)
            raise

    @property
    def place(self) -> BufferAddress:
        return BufferAddress(os.getpid(), self.descriptor, os.fstat(self.descriptor).st_ino, self.token)

    def view(self, file: int, place: int, length: int) -> memoryview:
        """Return the bytes at `place` of a landing, to be written by the rank that has claimed them."""
        begin = self.starts[file] + place
        return memoryview(self.memory.data)[begin : begin + length]

    def reserve(self, file: int, place: int, length: int) -> None:
        """Allocate memory for these bytes. Raises MemoryError; without this, writing would kill the process."""
        begin = self.starts[file] + place
        try:
            for page in range(-(-begin // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES, begin + length, HUGE_PAGE_BYTES):
                self._make_huge(page)
            os.posix_fallocate(self.descriptor, begin, length)
        except OSError as error:
            raise MemoryError(f"no room for {length} more bytes of a model: {error.strerror}") from None

    def written(self, file: int, place: int, length: int) -> None:
        """These bytes are complete: unmap the shared pages, so that they do not count twice for this process."""
        first = -(-(self.starts[file] + place) // mmap.PAGESIZE) * mmap.PAGESIZE
        size = self.starts[file] + place + length - first
        if size > 0:
            LIBC.madvise(self._at(first), ctypes.c_size_t(size), mmap.MADV_DONTNEED)

    def arrived(self, index: int, began_s: float) -> None:
        """Chunk `index`, whose read began at `began_s` (monotonic seconds), is complete."""
        self.seconds[index] = max(INSTANT_S, time.monotonic() - began_s)

    def claim(self, index: int, again: bool = False) -> bool:
        """Take chunk `index`, False where another process has it. `again`: read it beside one that is too slow."""
        return take_byte_lock(self.descriptor, self._claim(index, again))

    def release(self, index: int, again: bool = False) -> None:
        release_byte_lock(self.descriptor, self._claim(index, again))

    def usual_s(self) -> float | None:
        """Return the median time that chunks took, None before the first."""
        taken = self.seconds[self.seconds > 0]
        return float(np.median(taken)) if len(taken) else None

    def _make_huge(self, page: int) -> None:
        """Make the present pages one huge page: some kernels (6.1) do not do so for shared memory by themselves.

        The first page has to exist. No effect on other kernels.
        """
        if page + HUGE_PAGE_BYTES <= len(self.memory):
            os.posix_fallocate(self.descriptor, page, 1)
            LIBC.madvise(self._at(page), ctypes.c_size_t(HUGE_PAGE_BYTES), _COLLAPSE)

    def _at(self, offset: int) -> ctypes.c_void_p:
        return ctypes.c_void_p(self._address + offset)

    def _claim(self, index: int, again: bool) -> int:
        return index + self._count * again


def layout(count: int, sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return where each landing starts in the file, and its end: on page boundaries, of huge pages where it has one."""
    starts, end = [], _pages(TOKEN_BYTES + count * FLOAT_BYTES)
    for size in sizes:
        if size >= HUGE_PAGE_BYTES:
            end = -(-end // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        starts.append(end)
        end += _pages(size)
    return starts, end


def _pages(length: int) -> int:
    return -(-length // mmap.PAGESIZE) * mmap.PAGESIZE
