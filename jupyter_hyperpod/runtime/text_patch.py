"""What turns one long text into a similar one: pieces to copy from it, and what stands between them.

A patch is ``count(4) || count × (start(4), length(4), inserted(4)) || inserted bytes``: copy ``length`` bytes from
``start`` of the text before, then insert the next ``inserted`` bytes.
"""

from __future__ import annotations

import re
import struct

from ..core.errors import ProtocolError

_COUNT, _PIECE = struct.Struct(">I"), struct.Struct(">III")
_PIECES = 1 << 20
_TOKEN = re.compile(rb"[^,]*,|[^,]+")
WORTH_BYTES = 12  # shorter tokens are too common to begin a piece


def difference(before: bytes, after: bytes) -> bytes:
    """The patch that turns ``before`` into ``after``."""
    head = _common(before, after)
    tail = _common(before[head:][::-1], after[head:][::-1])
    pieces = [(0, head, 0)]
    inserted = []
    middle = (before[head : len(before) - tail], after[head : len(after) - tail])
    for start, length, text in _pieces(*middle):
        pieces.append((head + start, length, len(text)))
        inserted.append(text)
    pieces.append((len(before) - tail, tail, 0))
    return b"".join([_COUNT.pack(len(pieces)), *(_PIECE.pack(*piece) for piece in pieces), *inserted])


def patched(before: bytes, patch: bytes, most: int) -> bytes:
    """The text that a patch makes of ``before``, of at most ``most`` bytes. Raises ProtocolError."""
    try:
        (count,) = _COUNT.unpack_from(patch)
        place, end = _COUNT.size, _COUNT.size + count * _PIECE.size
        if count > _PIECES or end > len(patch):
            raise ProtocolError(f"a patch of {count} pieces is torn")
        parts, size, at = [], 0, end
        for start, length, inserted in _PIECE.iter_unpack(patch[place:end]):
            if start + length > len(before) or at + inserted > len(patch):
                raise ProtocolError("a patch refers to what is not there")
            parts += [before[start : start + length], patch[at : at + inserted]]
            at += inserted
            if (size := size + length + inserted) > most:
                raise ProtocolError(f"a patched message is longer than {most} bytes")
    except struct.error as error:
        raise ProtocolError(f"a patch cannot be read: {error}") from None
    return b"".join(parts)


def _common(one: bytes, other: bytes) -> int:
    """The length of what both begin with."""
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:  # one[:low] is common, one[:high] is not
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _pieces(before: bytes, after: bytes) -> list[tuple[int, int, bytes]]:
    """Pieces of ``before`` with what follows each; the first piece is empty."""
    known = {found[0]: found.start() for found in _TOKEN.finditer(before) if len(found[0]) >= WORTH_BYTES}
    pieces: list[tuple[int, int, bytes]] = []
    start = length = begun = 0
    for found in _TOKEN.finditer(after):
        token, at = found[0], found.start()
        if length and at == begun + length and before[start + length : start + length + len(token)] == token:
            length += len(token)
        elif (place := known.get(token)) is not None:
            pieces.append((start, length, after[begun + length : at]))
            start, length, begun = place, len(token), at
    return [*pieces, (start, length, after[begun + length :])]
