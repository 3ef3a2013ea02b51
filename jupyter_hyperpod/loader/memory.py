"""Where models land: page-aligned memory in huge pages, touched once and reused.

Touching memory for the first time costs more than filling it; huge pages make it cheap, reuse makes it free. What a
model leaves behind is kept, marked so that the kernel takes it when anybody needs memory, and only the newest few:
never more than the largest model so far.
"""

from __future__ import annotations

import mmap
import threading
import weakref
from contextlib import suppress
from typing import Any

import numpy as np

HUGE_PAGE_BYTES = 2 * 2**20


class Lease(np.ndarray[Any, np.dtype[np.uint8]]):
    """Bytes of a block, shape (n,). Tensors made of it keep it; after the last one, the block returns to its pool."""


class Pool:
    """Blocks of anonymous memory; one pool serves a process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[mmap.mmap] = []
        self._largest = 0

    def lease(self, length: int) -> Lease:
        """Return `length` bytes of any content. Raises MemoryError where there is no room."""
        size = max(1, -(-length // HUGE_PAGE_BYTES)) * HUGE_PAGE_BYTES
        block = self._reuse(size) or _fresh(size)
        lease = np.frombuffer(block, np.uint8, length).view(Lease)
        weakref.finalize(lease, self._give_back, block).atexit = False
        return lease

    def clear(self) -> None:
        """Give all memory that no tensor uses back to the system."""
        with self._lock:
            self._free.clear()

    @property
    def free_bytes(self) -> int:
        """Memory that is kept for the next model."""
        with self._lock:
            return sum(map(len, self._free))

    def _reuse(self, size: int) -> mmap.mmap | None:
        with self._lock:
            fitting = [block for block in self._free if size <= len(block) <= 2 * size]
            if not fitting:
                return None
            block = min(fitting, key=len)
            self._free = [other for other in self._free if other is not block]
            return block

    def _give_back(self, block: mmap.mmap) -> None:
        with suppress(OSError):  # pages are taken when somebody needs them and never written to a disk
            block.madvise(mmap.MADV_FREE)
        with self._lock:
            self._largest = max(self._largest, len(block))
            self._free.append(block)
            while sum(map(len, self._free)) > self._largest:
                del self._free[0]


def _fresh(size: int) -> mmap.mmap:
    try:
        block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no room for a model of {size} bytes: {error.strerror}") from None
    with suppress(OSError):  # a kernel without huge pages
        block.madvise(mmap.MADV_HUGEPAGE)
    return block


POOL = Pool()
