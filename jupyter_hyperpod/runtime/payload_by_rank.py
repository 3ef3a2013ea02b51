"""One message for many members, encoded once: only its field ``rank`` differs from member to member.

In a large job such a message names every member. Its JSON is compressed once, too, and sent as
``"R" || rank(4, signed, -1: none) || zlib(JSON)``, where `_MARK` stands in place of the rank. JSON begins with a brace,
so the two cannot be confused. The next message of its kind hardly differs, so a member that holds the one before gets
``"P" || rank(4) || digest before(8) || digest(8) || zlib(patch)`` (`text_patch.py`). Both sides of a connection
remember the last `HELD` compressed messages. The digests are of SHA-256; a text that does not have its digest is
refused.
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections import deque
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from ..core.errors import ProtocolError
from .text_patch import difference, patched

PACKED_FROM_BYTES = 16 << 10  # smaller messages are sent as they are
HELD = 4  # compressed messages that both sides of a connection remember
HEAD = struct.Struct(">ci")
PATCH_HEAD = struct.Struct(">ci8s8s")
_SIGN, _PATCH_SIGN = b"R", b"P"
_RANK = "\0rank"  # no name of a member or a node has such a character
_MARK = json.dumps(_RANK).encode()


class PayloadByRank:
    """The payloads of a message in which one object, itself or a field of it, has a ``rank``; its value is replaced.

    ``before``: the message of this kind that most members got before.
    """

    def __init__(self, message: Mapping[str, Any], before: PayloadByRank | None = None) -> None:
        found = dict(message)
        for name, part in [(None, found), *found.items()]:
            if isinstance(part, dict) and "rank" in part:
                marked = part | {"rank": _RANK}
                found = marked if name is None else found | {name: marked}
                break
        self._text = json.dumps(found, separators=(",", ":")).encode()
        self._before, self._after = self._text.split(_MARK)
        large = len(self._text) >= PACKED_FROM_BYTES  # others are never patched, and need no digest
        self._base = (before.digest, before._text) if large and before is not None else (b"", b"")

    @cached_property
    def digest(self) -> bytes:
        """By which a member knows the message when the next one is sent as a patch."""
        return _digest(self._text)

    @cached_property
    def _packed(self) -> bytes:
        return zlib.compress(self._text, 1)

    @cached_property
    def _patch(self) -> bytes:
        return zlib.compress(difference(self._base[1], self._text), 1)

    def of(self, rank: int | None, *, packed: bool, held: deque[bytes] | None = None) -> bytes:
        """The payload for a member; ``packed``: it can read a compressed one.

        ``held``: the digests of what its connection remembers, if it can read patches; this message is added.
        """
        if not packed or len(self._text) < PACKED_FROM_BYTES:
            return b"%b%b%b" % (self._before, json.dumps(rank).encode(), self._after)
        number = -1 if rank is None else rank
        patches = held is not None and self._base[0] in held
        if held is not None:
            held.append(self.digest)
        if patches and len(self._patch) < len(self._packed):
            return PATCH_HEAD.pack(_PATCH_SIGN, number, self._base[0], self.digest) + self._patch
        return HEAD.pack(_SIGN, number) + self._packed


def is_packed(payload: bytes) -> bool:
    """Whether `PackedReader` has to read this payload."""
    return payload.startswith((_SIGN, _PATCH_SIGN))


class PackedReader:
    """Reads the compressed messages of one connection, in their order."""

    def __init__(self, held: int = HELD) -> None:
        """``held``: how many it remembers; at least as many as the other side."""
        self._held: deque[tuple[bytes, bytes]] = deque(maxlen=held)

    def read(self, payload: bytes, most: int) -> bytes:
        """The JSON of a compressed payload, of at most ``most`` bytes. Raises ProtocolError."""
        try:
            if payload.startswith(_SIGN):
                _, rank = HEAD.unpack_from(payload)
                text = _inflated(payload[HEAD.size :], most)
                digest = _digest(text)
            else:
                _, rank, base, digest = PATCH_HEAD.unpack_from(payload)
                text = patched(self._of(base), _inflated(payload[PATCH_HEAD.size :], most), most)
                if _digest(text) != digest:
                    raise ProtocolError("a patched message does not have its digest")
        except (struct.error, zlib.error) as error:
            raise ProtocolError(f"a compressed message cannot be read: {error}") from None
        before, mark, after = text.partition(_MARK)
        if not mark:
            raise ProtocolError("a compressed message has no rank")
        self._held.append((digest, text))
        return b"%b%b%b" % (before, json.dumps(None if rank < 0 else rank).encode(), after)

    def _of(self, digest: bytes) -> bytes:
        for known, text in self._held:
            if known == digest:
                return text
        raise ProtocolError("a message is a patch of one that this connection has not carried")


def _inflated(content: bytes, most: int) -> bytes:
    reader = zlib.decompressobj()
    text = reader.decompress(content, most)
    if not reader.eof:
        raise ProtocolError(f"a compressed message is longer than {most} bytes, or torn")
    return text


def _digest(text: bytes) -> bytes:
    return hashlib.sha256(text).digest()[:8]
