"""A copy of the training state in shared memory, for newcomers on this host: laid out by donors, stripe by stripe."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from . import replicate
from .shared import TOKEN_BYTES, Attachments, Segment, Token


class Shelf:
    """Where a donor lays out its stripe. Memory that nobody can be reading any more is used again: it is touched."""

    def __init__(self) -> None:
        self._segment: Segment | None = None
        self._free = True

    def lay_out(self, tensors: Sequence[torch.Tensor], part: int, parts: int) -> Token:
        """Copy stripe ``part`` of ``parts`` of the tensors; what was laid out before may still be read elsewhere."""
        views = replicate.stripe(tensors, part, parts)
        size = sum(map(len, views))
        if self._segment is None or not self._free or len(self._segment.memory) < size:
            self._segment = Segment(max(1, size))
        self._free = False
        target = memoryview(self._segment.memory)
        start = 0
        for view in views:
            target[start : start + len(view)] = view
            start += len(view)
        return self._segment.token

    def all_read(self) -> None:
        """Everybody who was shown the stripe has it."""
        self._free = True


class Room:
    """Memory that a newcomer touches before it is needed, so that loading is one copy and no page faults."""

    def __init__(self, parameters: Sequence[torch.Tensor], copies: int) -> None:
        self._tensors: dict[tuple[torch.dtype, torch.Size], list[torch.Tensor]] = {}
        for parameter in parameters:
            kind = (parameter.dtype, parameter.shape)
            self._tensors.setdefault(kind, []).extend(
                torch.zeros(parameter.shape, dtype=parameter.dtype) for _ in range(copies)
            )

    def take(self, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
        """A tensor with any content."""
        waiting = self._tensors.get((dtype, torch.Size(shape)))
        return waiting.pop() if waiting else torch.empty(shape, dtype=dtype)


def read(tensors: Sequence[torch.Tensor], tokens: Sequence[Token], first: int = 0, parts: int = 0) -> None:
    """Fill the tensors from stripes ``first``, ``first + 1``, … of ``parts`` (0: as many as there are tokens).

    Raises OSError, with nothing written yet, where a donor is gone or its memory is on another host.
    """
    attachments = Attachments()
    memories = [attachments.memory(token) for token in tokens]
    for part, memory in enumerate(memories, start=first):
        source = memoryview(memory)
        start = 0
        for view in replicate.stripe(tensors, part, parts or len(tokens)):
            view[:] = source[start : start + len(view)]
            start += len(view)


def parse(text: str) -> Token:
    """A token in hexadecimal. Raises OSError for anything else."""
    try:
        content = bytes.fromhex(text)
    except ValueError as error:
        raise OSError(f"{text[:80]!r} is no token") from error
    if len(content) != TOKEN_BYTES:
        raise OSError(f"a token has {TOKEN_BYTES} bytes, found {len(content)}")
    return Token.unpack(content)
