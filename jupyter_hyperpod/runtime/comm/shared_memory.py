"""Memory segments that members on one host read in place, without a copy through a socket or a file on disk.

A segment is an anonymous memory file (memfd). A peer of the same user opens it as ``/proc/<pid>/fd/<n>``, which a
`Token` names over the authenticated connection. A mapping stays valid when its owner dies.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from ...system import memory_files

_TOKEN = struct.Struct(">IIQQ")
TOKEN_BYTES = _TOKEN.size
ALIGN_BYTES = 64
PROBE_BYTES = 32


@dataclass(frozen=True, slots=True)
class Token:
    """Names a segment to processes of the same user on the same host."""

    pid: int
    descriptor: int
    inode: int
    length: int

    def pack(self) -> bytes:
        """Encode as `TOKEN_BYTES` bytes."""
        return _TOKEN.pack(self.pid, self.descriptor, self.inode, self.length)

    @classmethod
    def unpack(cls, content: bytes | bytearray) -> Token:
        """Inverse of `pack`."""
        return cls(*_TOKEN.unpack(content))


class Segment:
    """``length`` zeroed bytes that peers may map. Freed when neither side uses it any more."""

    def __init__(self, length: int) -> None:
        self._descriptor = memory_files.create_memory_file("hyperpod-gradients", length)
        self.memory = mmap.mmap(self._descriptor, length)
        memory_files.touch(torch.frombuffer(self.memory, dtype=torch.uint8).data_ptr(), length)
        self.token = Token(os.getpid(), self._descriptor, os.fstat(self._descriptor).st_ino, length)

    def carve(self, shapes: Sequence[tuple[torch.dtype, int]]) -> list[torch.Tensor]:
        """One 1-D tensor for each (dtype, length), laid end to end, aligned."""
        return carve(self.memory, shapes)

    def __del__(self) -> None:
        os.close(self._descriptor)


def can_read(shown: bytes) -> bool:
    """True if the segment of a packed token followed by `PROBE_BYTES` of its content can be read here, in place.

    The content is random, so a process with the same pid on another host is not mistaken for the peer.
    """
    try:
        memory = Attachments().memory(Token.unpack(shown[:TOKEN_BYTES]))
    except OSError:
        return False
    return memory[:PROBE_BYTES] == shown[TOKEN_BYTES:]


class Attachments:
    """Segments of peers, mapped once each."""

    def __init__(self) -> None:
        self._mapped: dict[Token, mmap.mmap] = {}

    def memory(self, token: Token) -> mmap.mmap:
        """Map a peer's segment. Raises OSError where the peer has gone or its descriptors are not accessible."""
        if token not in self._mapped:
            descriptor = memory_files.open_memory_file(token.pid, token.descriptor, token.inode)
            try:
                self._mapped[token] = mmap.mmap(descriptor, token.length)
            finally:
                os.close(descriptor)
        return self._mapped[token]

    def forget_all_but(self, living: Collection[int]) -> None:
        """Drop segments of former members, and segments that their owner has closed."""
        for token in [token for token in self._mapped if token.pid not in living or not is_held(token)]:
            del self._mapped[token]


def is_held(token: Token) -> bool:
    """Whether its owner lives and has the segment open."""
    return memory_files.is_held(token.pid, token.descriptor, token.inode)


def carve(memory: mmap.mmap, shapes: Sequence[tuple[torch.dtype, int]]) -> list[torch.Tensor]:
    """One 1-D tensor for each (dtype, length), laid end to end in `memory`, aligned."""
    tensors = []
    offset = 0
    for dtype, length in shapes:
        tensors.append(torch.frombuffer(memory, dtype=dtype, count=length, offset=offset))
        offset += aligned(length * dtype.itemsize)
    return tensors


def aligned(length: int) -> int:
    """Round up to whole cache lines."""
    return -(-length // ALIGN_BYTES) * ALIGN_BYTES
