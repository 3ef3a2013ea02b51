"""Reads local files: maps them where the page cache can be shared in place, else reads in parallel.

Mapping copies nothing, so it is faster where the file system keeps files in the page cache; tensors are then
private copies on write. Cached pages need no preparation: touching them ahead with many threads takes longer than the
first use itself. On network file systems several parallel reads are faster than page faults one after another.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import threading
import weakref
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from urllib.parse import unquote, urlsplit

import numpy as np

from ...core.errors import LoaderError, SpecError
from ..memory import LIBC, Bytes
from .http_connection import Cancel
from .source import PREFIX_BYTES, Counters, Source

_MAPPED = {  # the kernel's magic numbers of file systems that share the page cache in place
    0xEF53,  # ext2 to ext4
    0x58465342,  # xfs
    0x9123683E,  # btrfs
    0x01021994,  # tmpfs
    0x794C7630,  # overlay
    0x2FC12FC1,  # zfs
    0xF2F52010,  # f2fs
}
PIECE_BYTES = 4 * 2**20  # between two checks for cancellation
_POPULATE_READ = 22
FAULT_AROUND_BYTES = 65_536  # Linux's default
AHEAD_BYTES = 256 * 2**20  # large, for few calls: between two calls the thread waits for Python's interpreter lock
SAMPLES = 16  # counting all pages of a file would take longer than reading missing ones
_CACHESTAT = 451  # on every architecture


def path_of(url: str) -> str:
    """Return the path in a file URL, or the path itself. Raises SpecError for a file of another host."""
    if "://" not in url:
        return os.path.expanduser(url)
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost"):
        raise SpecError(f"{url!r} names a file of another host")
    return unquote(parts.path)


class FileSource(Source):
    """A file. Raises LoaderError where it cannot be read, ends early or has changed."""

    def __init__(self, path: str, counters: Counters) -> None:
        self.name = path
        self._counters = counters
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise LoaderError(path, error.strerror or str(error), "a readable file") from None
        self.size, self.etag = self._identity()
        self.prefix = self._read(0, min(PREFIX_BYTES, self.size))

    def read_into(self, offset: int, view: memoryview, cancel: Cancel) -> None:
        done = 0
        while done < len(view):
            cancel.check()
            piece = view[done : done + PIECE_BYTES]
            try:
                count = os.preadv(self._descriptor, [piece], offset + done)
            except OSError as error:
                raise LoaderError(self.name, f"{error.strerror} at byte {offset + done}", "its bytes") from None
            if not count:
                found = f"its end at byte {offset + done}"
                raise LoaderError(self.name, found, f"{self.size} bytes", "the file was truncated while it was read")
            done += count
        self._counters.add(fetched=done)

    def resident(self) -> bool:
        """Whether the file is in the page cache, by samples; false where the kernel cannot say."""
        extent, found = (ctypes.c_uint64 * 2)(0, mmap.PAGESIZE), (ctypes.c_uint64 * 5)()
        arguments = _CACHESTAT, self._descriptor, ctypes.byref(extent), ctypes.byref(found), 0
        for sample in range(SAMPLES + 1):
            extent[0] = max(0, self.size - 1) * sample // SAMPLES // mmap.PAGESIZE * mmap.PAGESIZE
            if LIBC.syscall(*arguments) or not found[0]:
                return False
        return True

    @cached_property
    def mappable(self) -> bool:
        """Whether mapping is better than reading."""
        status = (ctypes.c_long * 32)()
        known = not LIBC.fstatfs(self._descriptor, status) and status[0] & 0xFFFFFFFF in _MAPPED
        return bool(self.size) and known

    def map(self) -> Mapping | None:
        """Return the mapped file, None where reading is better."""
        if not self.mappable:
            return None
        memory = mmap.mmap(self._descriptor, self.size, flags=mmap.MAP_PRIVATE)
        return Mapping(self.name, np.frombuffer(memory, np.uint8))

    def close(self) -> None:
        try:
            found = self._identity()
        finally:
            os.close(self._descriptor)
        if found != (self.size, self.etag):
            expected = f"{self.size} bytes, changed at {self.etag}"
            remedy = "the file was written to while it was read"
            raise LoaderError(self.name, f"{found[0]} bytes, changed at {found[1]}", expected, remedy)

    def _identity(self) -> tuple[int, str]:
        status = os.fstat(self._descriptor)
        return status.st_size, f"{status.st_mtime_ns}"

    def _read(self, offset: int, length: int) -> bytes:
        try:
            return os.pread(self._descriptor, length, offset)
        except OSError as error:
            os.close(self._descriptor)
            raise LoaderError(self.name, error.strerror or str(error), "a readable file") from None


class Mapping:
    """A file in memory, copied on write."""

    def __init__(self, name: str, content: Bytes) -> None:
        self._name = name
        self.bytes = content

    def touch(self, offset: int, length: int) -> None:
        """Map these bytes, which are in the page cache."""
        self.bytes[offset : offset + length : FAULT_AROUND_BYTES].max(initial=0)

    def populate(self, offset: int, length: int, cancel: Cancel) -> None:
        """Read and map these bytes. Raises LoaderError where the file has become shorter or cannot be read."""
        cancel.check()
        begin = offset // mmap.PAGESIZE * mmap.PAGESIZE
        address = self.bytes.ctypes.data + begin
        if LIBC.madvise(ctypes.c_void_p(address), ctypes.c_size_t(offset + length - begin), _POPULATE_READ) == 0:
            return
        number = ctypes.get_errno()
        if number == errno.EINVAL:  # a kernel before 5.14
            int(self.bytes[begin : offset + length : mmap.PAGESIZE].max(initial=0))
            return
        found = f"{os.strerror(number)} in bytes {offset}-{offset + length - 1}"
        raise LoaderError(self._name, found, "its bytes", "the file was truncated, or its disk fails")


def map_ahead(mappings: Iterable[Mapping]) -> None:
    """Start a thread that maps files in the page cache, last bytes first, while the caller uses the first bytes.

    The thread ends when everything is mapped, or soon after the mapping is not needed any more.
    """
    if len(os.sched_getaffinity(0)) > 1:
        wanted = [(weakref.ref(mapping.bytes), mapping.bytes.size) for mapping in mappings]
        threading.Thread(target=_map_ahead, args=(wanted[::-1],), name="load-ahead", daemon=True).start()


def _map_ahead(wanted: Iterable[tuple[weakref.ref[Bytes], int]]) -> None:
    for content, size in wanted:
        for begin in range((size - 1) // AHEAD_BYTES * AHEAD_BYTES, -1, -AHEAD_BYTES):
            if (still := content()) is None:
                break
            with suppress(LoaderError):  # the user of these bytes gets the error
                Mapping("", still).populate(begin, min(AHEAD_BYTES, size - begin), Cancel())
            del still
