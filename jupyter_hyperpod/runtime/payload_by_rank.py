"""One message for many members, encoded once: only its field ``rank`` differs from member to member.

In a large job such a message names every member. Its JSON is compressed once, too, and sent as
``"R" || rank(4, signed, -1: none) || zlib(JSON)``, where `_MARK` stands in place of the rank. JSON begins with a brace,
so the two cannot be confused.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from ..core.errors import ProtocolError

PACKED_FROM_BYTES = 16 << 10  # smaller messages are sent as they are
HEAD = struct.Struct(">ci")
_SIGN = b"R"
_RANK = "\0rank"  # no name of a member or a node has such a character
_MARK = json.dumps(_RANK).encode()


class PayloadByRank:
    """The payloads of a message in which one object, itself or a field of it, has a ``rank``; its value is replaced."""

    def __init__(self, message: Mapping[str, Any]) -> None:
        found = dict(message)
        for name, part in [(None, found), *found.items()]:
            if isinstance(part, dict) and "rank" in part:
                marked = part | {"rank": _RANK}
                found = marked if name is None else found | {name: marked}
                break
        self._text = json.dumps(found, separators=(",", ":")).encode()
        self._before, self._after = self._text.split(_MARK)

    @cached_property
    def _packed(self) -> bytes:
        return zlib.compress(self._text, 1)

    def of(self, rank: int | None, *, packed: bool) -> bytes:
        """The payload for a member; ``packed``: it can read a compressed one."""
        if packed and len(self._text) >= PACKED_FROM_BYTES:
            return HEAD.pack(_SIGN, -1 if rank is None else rank) + self._packed
        return b"%b%b%b" % (self._before, json.dumps(rank).encode(), self._after)


def is_packed(payload: bytes) -> bool:
    """Whether `unpacked` has to read this payload."""
    return payload.startswith(_SIGN)


def unpacked(payload: bytes, most: int) -> bytes:
    """The JSON of a compressed payload, of at most ``most`` bytes. Raises ProtocolError."""
    try:
        _, rank = HEAD.unpack_from(payload)
        reader = zlib.decompressobj()
        text = reader.decompress(payload[HEAD.size :], most)
    except (struct.error, zlib.error) as error:
        raise ProtocolError(f"a compressed message cannot be read: {error}") from None
    before, mark, after = text.partition(_MARK)
    if not reader.eof or not mark:
        raise ProtocolError(f"a compressed message is longer than {most} bytes, torn, or has no rank")
    return b"%b%b%b" % (before, json.dumps(None if rank < 0 else rank).encode(), after)
