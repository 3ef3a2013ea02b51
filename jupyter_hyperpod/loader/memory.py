"""The memory that models are loaded into: page-aligned, in huge pages, and reused.

The first access to memory costs more than filling it; huge pages make it cheap, reuse avoids it. Memory of a freed
model is therefore kept, marked so that the kernel may reclaim it. Only the newest blocks are kept, never more than the
largest model so far.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
import weakref
from contextlib import suppress
from typing import Any

import numpy as np

from ..system.memory_files import anonymous
from .read.plan import HUGE_PAGE_BYTES

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
LIBC = ctypes.CDLL(None, use_errno=True)  # for system calls that Python lacks; `ctypes.get_errno` has their errors
_FIXED, _NORESERVE = 0x10, 0x4000
_FAILED = ctypes.c_void_p(-1).value


class BlockLease(Bytes):
    """Bytes of a block, shape (n,). Tensors made of it keep it; after the last one, the block returns to its pool."""


class BlockPool:
    """Blocks of anonymous memory; one pool serves a process. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free: list[mmap.mmap] = []
        self._largest = 0

    def lease(self, length: int) -> BlockLease:
        """Return `length` bytes of any content. Raises MemoryError where there is no room."""
        size = max(1, -(-length // HUGE_PAGE_BYTES)) * HUGE_PAGE_BYTES
        block = self._reuse(size) or _fresh(size)
        lease = np.frombuffer(block, np.uint8, length).view(BlockLease)
        weakref.finalize(lease, self._give_back, block).atexit = False
        return lease

    def _reuse(self, size: int) -> mmap.mmap | None:
        with self._lock:
            fitting = [block for block in self._free if size <= len(block) <= 2 * size]
            if not fitting:
                return None
            block = min(fitting, key=len)
            self._free = [other for other in self._free if other is not block]
            return block

    def _give_back(self, block: mmap.mmap) -> None:
        with suppress(OSError):  # the kernel may reclaim the pages and never swaps them out
            block.madvise(mmap.MADV_FREE)
        with self._lock:
            self._largest = max(self._largest, len(block))
            self._free.append(block)
            while sum(map(len, self._free)) > self._largest:
                del self._free[0]


def _fresh(size: int) -> mmap.mmap:
    try:
        return anonymous(size)
    except OSError as error:
        raise MemoryError(f"no room for a model of {size} bytes: {error.strerror}") from None


def map_file(descriptor: int, size: int, private: bool) -> Bytes:
    """Return `size` bytes of a file in memory, shape (size,), where huge pages of it fit. Raises MemoryError.

    Writes to a `private` mapping are invisible to others. The mapping lives as long as the array.
    """
    room = size + HUGE_PAGE_BYTES
    base = _mapped(None, room, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE, -1)
    begin = -(-base // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
    flags = _FIXED | (mmap.MAP_PRIVATE if private else mmap.MAP_SHARED)
    try:
        _mapped(begin, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, descriptor)
    except MemoryError:
        LIBC.munmap(ctypes.c_void_p(base), ctypes.c_size_t(room))
        raise
    block = (ctypes.c_ubyte * size).from_address(begin)
    weakref.finalize(block, LIBC.munmap, ctypes.c_void_p(base), ctypes.c_size_t(room)).atexit = False
    return np.frombuffer(memoryview(block), np.uint8)


def _mapped(address: int | None, size: int, protection: int, flags: int, descriptor: int) -> int:
    call = LIBC.mmap
    call.restype = ctypes.c_void_p
    call.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
    found = call(address, size, protection, flags, descriptor, 0)
    if found is None or found == _FAILED:
        raise MemoryError(f"no room for a model of {size} bytes: {os.strerror(ctypes.get_errno())}")
    return int(found)


POOL = BlockPool()
