"""Caches blocks of objects on a node's disk, shared by all its processes and intact after any of them is killed.

<root>/<key>/<number>   a block and its seal (`_SEAL`); the key is a digest of address, version and block size
<root>/<key>/.lock      the process that fetches a block locks one byte of it
<root>/usage            total bytes held, read and written under the lock of publishing

A block appears by a rename, so it is whole or absent. A process checks its checksum when it first maps it. The time of
change shows whether the block is still the same, the time of access when it was last used. The space is bounded: a
process that publishes a block removes the least recently used ones. A removed block stays readable while it is mapped.
No process waits long for another one: it fetches a block itself where the other is too slow.
"""

from __future__ import annotations

import ctypes
import hashlib
import mmap
import os
import secrets
import stat
import struct
import tempfile
import time
import weakref
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from ..core.errors import SpecError, StoreError
from ..core.units import parse_bytes
from ..system import portable
from ..system.locks import take_byte_lock, take_lock

BLOCK_BYTES = 4 << 20
LIMIT_BYTES = 16 << 30
LIMIT_OF_FREE = 0.5
DIRECTORY_VARIABLE, LIMIT_VARIABLE = "HYPERPOD_BLOCK_CACHE", "HYPERPOD_BLOCK_CACHE_BYTES"
WAIT_S = 10.0
ABANDONED_S = 60.0
MAPPED = 8192  # blocks per process, all objects together: Linux allows 65530 mappings per process
HELD = 64  # blocks of one object in memory that could not be stored on disk
LOOK_AGAIN_S = 60.0
PROVEN = 65536
_POLL_S = 0.005
_SEAL = struct.Struct("<8sQI4x")
_MAGIC = b"HPBLOCK1"
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long
_LIBC.munmap.argtypes = ctypes.c_void_p, ctypes.c_size_t
_FAILED = ctypes.c_void_p(-1).value


class BlockSource(Protocol):
    """The object from which blocks are read. ``etag`` identifies its content."""

    url: str
    size: int
    etag: str

    def read_into(self, offset: int, view: memoryview) -> None:
        """Fill `view` with the bytes at `offset`, all of them or raise."""


def default_directory() -> Path:
    """$HYPERPOD_BLOCK_CACHE, else a directory of the user's in $TMPDIR or /var/tmp: disks of the node itself."""
    if named := os.environ.get(DIRECTORY_VARIABLE):
        return Path(named)
    return Path(os.environ.get("TMPDIR") or _var_tmp()) / f"hyperpod-blocks-{portable.user_id()}"


def _var_tmp() -> str:
    return "/var/tmp" if os.access("/var/tmp", os.W_OK) else tempfile.gettempdir()


def default_limit() -> int:
    """$HYPERPOD_BLOCK_CACHE_BYTES, else 16 GiB; raises SpecError for anything but a size."""
    text = os.environ.get(LIMIT_VARIABLE)
    return parse_bytes(text) if text else LIMIT_BYTES


class BlockCache:
    """The blocks of one node. Processes share it without communicating.

    Raises StoreError where `directory` is not a private one of this user.
    """

    def __init__(
        self, directory: Path | None = None, *, limit_bytes: int | None = None, block_bytes: int = BLOCK_BYTES
    ) -> None:
        if block_bytes < mmap.PAGESIZE or block_bytes % mmap.PAGESIZE:
            raise SpecError(f"block_bytes is {block_bytes}; expected a multiple of {mmap.PAGESIZE}")
        self.root = directory or default_directory()
        self.block_bytes = block_bytes
        self._proven: set[tuple[str, int, int, int]] = set()
        wanted = default_limit() if limit_bytes is None else limit_bytes
        self._make_root()
        self.limit_bytes = min(wanted, self._room()) if limit_bytes is None else wanted

    def _make_root(self) -> None:
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            about = os.lstat(self.root)
        except OSError as error:
            raise StoreError(f"blocks cannot be kept in {self.root}: {error.strerror}") from error
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != portable.user_id() or portable.permissions(about) & 0o077:
            raise StoreError(
                f"blocks cannot be kept in {self.root}: owner {about.st_uid}, mode {portable.permissions(about):04o}; "
                f"expected a directory of your own with mode 0700, or another one in ${DIRECTORY_VARIABLE}"
            )

    def _room(self) -> int:
        about = os.statvfs(self.root)
        return int((about.f_frsize * about.f_bavail + self._counted()) * LIMIT_OF_FREE)

    def open(self, source: BlockSource) -> CachedObject:
        """Return the object, to be read through this cache."""
        return CachedObject(self, source)

    def key(self, source: BlockSource) -> str:
        """The directory of the blocks of exactly this content."""
        text = f"{source.url}\0{source.etag}\0{source.size}\0{self.block_bytes}"
        return hashlib.sha256(text.encode()).hexdigest()[:40]

    def find(self, key: str, number: int, size: int) -> memoryview | None:
        """The block, mapped read-only and checked; None where it is not here. A damaged block is removed."""
        path = self.root / key / f"{number:08d}"
        try:
            descriptor = os.open(path, os.O_RDONLY | portable.NO_LINK | portable.NOT_INHERITED)
        except OSError:
            return None
        try:
            about = os.fstat(descriptor)
            if about.st_size == size + _SEAL.size:
                memory = _mapped(descriptor, about.st_size)
                with suppress(OSError):
                    os.utime(descriptor, ns=(time.time_ns(), about.st_mtime_ns))  # just used: removed last
                if self._prove((key, number, about.st_ino, about.st_mtime_ns), memory, size):
                    return memory
        except OSError:
            return None  # no more mappings are possible; the block itself is fine
        finally:
            os.close(descriptor)
        with suppress(OSError):
            path.unlink()
        return None

    def _prove(self, which: tuple[str, int, int, int], memory: memoryview, size: int) -> bool:
        if which in self._proven:
            return True
        if _SEAL.unpack_from(memory, size) != (_MAGIC, size, zlib.crc32(memory[:size])):
            return False
        if len(self._proven) >= PROVEN:
            self._proven.clear()
        self._proven.add(which)
        return True

    def publish(self, key: str, number: int, content: memoryview) -> bool:
        """Store a block for all processes; False where there is no room or no permission."""
        size = len(content) + _SEAL.size
        if size > self.limit_bytes:
            return False
        directory = self.root / key
        temporary = directory / f".{secrets.token_hex(6)}"
        try:
            directory.mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | portable.NOT_INHERITED, 0o600)
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                for part in (content, memoryview(_SEAL.pack(_MAGIC, len(content), zlib.crc32(content)))):
                    while len(part):
                        part = part[file.write(part) or 0 :]
            with self._usage() as usage:
                text = os.pread(usage, 32, 0).strip()
                total = int(text) if text.isdigit() else self._evict(0)
                if total + size > self.limit_bytes:
                    total = self._evict(size)
                os.pwrite(usage, b"%-32d" % (total + size), 0)
                os.rename(temporary, directory / f"{number:08d}")
            return True
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            return False

    def _evict(self, size: int) -> int:
        """Remove the least recently used blocks until `size` fits, with a margin; return the bytes that are left."""
        found, total = [], 0
        for path, about in self._files():
            if path.name.startswith(".") and time.time() - about.st_mtime > ABANDONED_S and path.name != ".lock":
                path.unlink(missing_ok=True)  # left by a killed writer
                continue
            if path.name.isdecimal():
                found.append((about.st_atime_ns, about.st_size, path))
                total += about.st_size
        goal = max(0, int(self.limit_bytes * 0.95) - size)
        for _, freed, path in sorted(found):
            if total <= goal:
                break
            path.unlink(missing_ok=True)
            total -= freed
        for directory in {path.parent for _, _, path in found}:
            self._drop_if_empty(directory)
        return total

    def _drop_if_empty(self, directory: Path) -> None:
        with suppress(OSError):
            if os.listdir(directory) in ([], [".lock"]):
                (directory / ".lock").unlink(missing_ok=True)
                directory.rmdir()

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        for directory in list(os.scandir(self.root)):
            if not directory.is_dir(follow_symlinks=False):
                continue
            with suppress(OSError):
                for entry in list(os.scandir(directory)):
                    with suppress(OSError):
                        yield Path(entry.path), entry.stat(follow_symlinks=False)

    def held_bytes(self) -> int:
        """Bytes that blocks take now."""
        return sum(about.st_size for path, about in self._files() if path.name.isdecimal())

    def _counted(self) -> int:
        try:
            return int((self.root / "usage").read_bytes() or b"0")
        except (OSError, ValueError):
            return 0

    @contextmanager
    def _usage(self) -> Iterator[int]:
        """A descriptor of the locked ledger. Raises OSError where another process has held it for too long."""
        descriptor = os.open(self.root / "usage", os.O_RDWR | os.O_CREAT | portable.NOT_INHERITED, 0o600)
        try:
            if not take_lock(descriptor, WAIT_S, _POLL_S):
                raise OSError("others hold the ledger")
            yield descriptor
        finally:
            os.close(descriptor)

    @contextmanager
    def fetching(self, key: str, number: int) -> Iterator[None]:
        """Keep other processes of the node from fetching the block; a stopped one delays them by at most `WAIT_S`."""
        descriptor = -1
        with suppress(OSError):
            (self.root / key).mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(self.root / key / ".lock", os.O_RDWR | os.O_CREAT | portable.NOT_INHERITED, 0o600)
            take_byte_lock(descriptor, number, WAIT_S, _POLL_S)
        try:
            yield
        finally:
            if descriptor >= 0:
                os.close(descriptor)


def _mapped(descriptor: int, size: int) -> memoryview:
    """Map the file read-only. Unlike `mmap.mmap` this keeps no descriptor open, as there may be thousands of blocks."""
    address = _LIBC.mmap(None, size, mmap.PROT_READ, mmap.MAP_PRIVATE, descriptor, 0)
    if address == _FAILED:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    memory = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(memory, _LIBC.munmap, address, size).atexit = False
    return memoryview(memory).cast("B")


class CachedObject:
    """One object, read through the blocks of this node. Not thread-safe."""

    def __init__(self, cache: BlockCache, source: BlockSource) -> None:
        self.cache = cache
        self.source = source
        self.size = source.size
        self.fetched = 0  # number of blocks read from the source, not from the node
        self._key = cache.key(source)
        self._mapped: OrderedDict[int, tuple[memoryview, float]] = OrderedDict()  # and when to check it again
        self._held: OrderedDict[int, memoryview] = OrderedDict()
        _readers.add(self)

    def read(self, offset: int, length: int) -> memoryview:
        """The bytes at `offset`, read-only: a view where one mapped block has all of them, else a copy.

        Raises StoreError.
        """
        if offset < 0 or length < 0 or offset + length > self.size:
            raise StoreError(f"{self.source.url} holds {self.size} bytes; {length} at {offset} are not all there")
        size = self.cache.block_bytes
        first, last = offset // size, max(offset, offset + length - 1) // size
        if first == last and length:
            start = offset - first * size
            return self._block(first)[start : start + length]
        out = bytearray(length)
        filled = 0
        for number in range(first, last + 1) if length else ():
            start = offset + filled - number * size
            part = self._block(number)[start : min(size, start + length - filled)]
            out[filled : filled + len(part)] = part
            filled += len(part)
        return memoryview(out)

    def _block(self, number: int) -> memoryview:
        if number in self._held:
            self._held.move_to_end(number)
            return self._held[number]
        now_s = time.monotonic()
        found, until_s = self._mapped.get(number, (None, 0.0))
        if found is not None and now_s < until_s:
            self._mapped.move_to_end(number)
            return found
        self._mapped.pop(number, None)
        start = number * self.cache.block_bytes
        size = min(self.cache.block_bytes, self.size - start)
        found = self.cache.find(self._key, number, size)
        return self._bring(number, start, size) if found is None else self._keep(number, found, now_s)

    def _keep(self, number: int, block: memoryview, now_s: float) -> memoryview:
        """Keep the block mapped for a while. The next check marks it as used, or frees the space of a removed one."""
        self._mapped[number] = block, now_s + LOOK_AGAIN_S
        while len(self._mapped) > max(1, MAPPED // len(_readers)) or next(iter(self._mapped.values()))[1] < now_s:
            self._mapped.popitem(last=False)  # unmapped once no view of it is left
        return block

    def _bring(self, number: int, start: int, size: int) -> memoryview:
        with self.cache.fetching(self._key, number):
            if (found := self.cache.find(self._key, number, size)) is None:  # else another process was faster
                content = memoryview(bytearray(size))
                self.source.read_into(start, content)
                self.fetched += 1
                if self.cache.publish(self._key, number, content):
                    found = self.cache.find(self._key, number, size)
                if found is None:
                    self._held[number] = content
                    while len(self._held) > HELD:
                        self._held.popitem(last=False)
                    return content
        return self._keep(number, found, time.monotonic())


_readers: weakref.WeakSet[CachedObject] = weakref.WeakSet()
