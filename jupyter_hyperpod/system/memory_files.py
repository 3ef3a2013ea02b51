"""Memory files: anonymous files in memory, which other processes of the same user open by process and descriptor.

And memory of this process alone: in huge pages, and touched at once. Page by page, that takes half as much processor
time again, and in small pages twice as much.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from contextlib import suppress

from . import portable

_LIBC = ctypes.CDLL(None) if hasattr(os, "fork") else None
_POPULATE_WRITE = 23  # MADV_POPULATE_WRITE, since Linux 5.14


def create_memory_file(name: str, length: int) -> int:
    """Return the descriptor of a new memory file of `length` zeroed bytes. Raises OSError."""
    descriptor = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, length)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def seal_length(descriptor: int) -> None:
    """Fix the length of a memory file for good: if it shrank, processes that map it would be killed."""
    import fcntl  # of Unix, as nodes are

    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)


def open_memory_file(pid: int, descriptor: int, inode: int) -> int:
    """Open the memory file that the process `pid` has at `descriptor`.

    Raises OSError where that process is gone or out of reach, and where the descriptor is another file by now.
    """
    opened = os.open(_path(pid, descriptor), os.O_RDWR | portable.NOT_INHERITED)
    if os.fstat(opened).st_ino != inode:
        os.close(opened)
        raise FileNotFoundError(f"process {pid} has closed the memory file {descriptor}")
    return opened


def anonymous(length: int) -> mmap.mmap:
    """Memory of `length` zeroed bytes, in huge pages where they fit. Raises OSError."""
    memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def touch(address: int, length: int) -> bool:
    """Let the kernel give now all pages that lie within this memory; nothing is written. False where it cannot."""
    first = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    size = (address + length) // mmap.PAGESIZE * mmap.PAGESIZE - first
    if size <= 0 or _LIBC is None:
        return size <= 0
    return not _LIBC.madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), _POPULATE_WRITE)


def is_held(pid: int, descriptor: int, inode: int) -> bool:
    """Whether the process `pid` lives and still has the memory file open."""
    try:
        return os.stat(_path(pid, descriptor)).st_ino == inode
    except OSError:
        return False


def _path(pid: int, descriptor: int) -> str:
    return f"/proc/{pid}/fd/{descriptor}"
