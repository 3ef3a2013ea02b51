"""A snapshot of the training state in shared memory: donors write one stripe each, newcomers of this host read them."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch

from ...system import memory_files
from . import state_codec
from .shared_memory import PROBE_BYTES, TOKEN_BYTES, Attachments, Segment, Token, aligned, can_read, carve


class StripeMemory:
    """The memory of a donor's stripe. Without readers it is reused, because touching new memory is slow.

    `PROBE_BYTES` random bytes precede the stripe: a token alone could name another segment on another host.
    """

    def __init__(self) -> None:
        self._segment: Segment | None = None
        self._free = True
        self._octets = 0

    def write(self, tensors: Sequence[torch.Tensor], part: int, parts: int) -> Token:
        """Copy stripe ``part`` of ``parts`` of the tensors; the earlier stripe may still have readers."""
        views = state_codec.stripe(tensors, part, parts)
        size = PROBE_BYTES + sum(map(len, views))
        if self._segment is None or not self._free or len(self._segment.memory) < size:
            self._segment = Segment(size)
        self._free, self._octets = False, size - PROBE_BYTES
        target = memoryview(self._segment.memory)
        target[:PROBE_BYTES] = os.urandom(PROBE_BYTES)
        start = PROBE_BYTES
        for view in views:
            target[start : start + len(view)] = view
            start += len(view)
        return self._segment.token

    def token_text(self) -> str:
        """The token and its probe bytes in hexadecimal, for `parse`."""
        assert self._segment is not None
        return (self._segment.token.pack() + self._segment.memory[:PROBE_BYTES]).hex()

    def content(self) -> torch.Tensor:
        """The stripe as bytes, in place; whoever holds it keeps the memory."""
        assert self._segment is not None
        return torch.frombuffer(self._segment.memory, dtype=torch.uint8)[PROBE_BYTES : PROBE_BYTES + self._octets]

    def reuse(self) -> None:
        """All readers have finished: the next stripe may overwrite this one."""
        self._free = True

    def release(self) -> None:
        """Release the stripe; present readers can finish."""
        self._segment = None


class PreparedMemory:
    """Memory that a newcomer touches in advance, so that loading is one copy without page faults; empty by default.

    Each copy of the parameters is one block, in huge pages; it is freed with the last of its tensors.
    """

    def __init__(self, parameters: Sequence[torch.Tensor] = (), copies: int = 0) -> None:
        self._tensors: dict[tuple[torch.dtype, torch.Size], list[torch.Tensor]] = {}
        filled = [parameter for parameter in parameters if parameter.numel()]
        for _ in range(copies if filled else 0):
            for tensor in _touched(filled):
                self._tensors.setdefault((tensor.dtype, tensor.shape), []).append(tensor)

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """A tensor with any content; from new memory where none of this type and shape is left."""
        waiting = self._tensors.get((dtype, torch.Size(shape)))
        return waiting.pop() if waiting else torch.empty(shape, dtype=dtype)


def _touched(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors like these, of zeros, each with a storage of its own."""
    shapes = [(parameter.dtype, parameter.numel()) for parameter in parameters]
    block = memory_files.anonymous(sum(aligned(length * dtype.itemsize) for dtype, length in shapes))
    octets = torch.frombuffer(block, dtype=torch.uint8)
    if not memory_files.touch(octets.data_ptr(), len(block)):
        octets.zero_()
    rooms = zip(carve(block, shapes), parameters, strict=True)
    return [_whole(flat, parameter.shape) for flat, parameter in rooms]


def _whole(flat: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """The same memory as a tensor that is no view."""
    strides = torch.empty(shape, device="meta").stride()
    return torch.empty(0, dtype=flat.dtype, device="cpu").set_(flat.untyped_storage(), 0, shape, strides)


def read(tensors: Sequence[torch.Tensor], tokens: Sequence[Token], first: int = 0, parts: int = 0) -> None:
    """Fill the tensors from stripes ``first``, ``first + 1``, … of ``parts`` (0: as many as there are tokens).

    Raises OSError, with nothing written yet, where a donor has gone or its memory is on another host.
    """
    attachments = Attachments()
    memories = [attachments.memory(token) for token in tokens]
    for part, memory in enumerate(memories, start=first):
        fill(tensors, memoryview(memory)[PROBE_BYTES:], part, parts or len(tokens))


def fill(tensors: Sequence[torch.Tensor], source: memoryview, part: int, parts: int) -> None:
    """Fill stripe ``part`` of ``parts`` of the tensors, on the host, from the bytes of `source`."""
    start = 0
    for view in state_codec.stripe(tensors, part, parts):
        view[:] = source[start : start + len(view)]
        start += len(view)


def gathered(tensors: Sequence[torch.Tensor], part: int, parts: int, device: torch.device) -> torch.Tensor:
    """A copy of stripe ``part`` of ``parts`` of the tensors, as bytes on ``device``, where they may lie already."""
    total = state_codec.size_bytes(tensors)
    low, high = total * part // parts, total * (part + 1) // parts
    copy = torch.empty(high - low, dtype=torch.uint8, device=device)
    start = 0
    for tensor in tensors:
        octets = tensor.detach().reshape(-1).view(torch.uint8)
        first, last = max(low - start, 0), min(high - start, octets.numel())
        if first < last:
            copy[start + first - low : start + last - low].copy_(octets[first:last])
        start += octets.numel()
    return copy


def parse(text: str) -> Token:
    """The token in a text of `StripeMemory.token_text`. Raises OSError for another text or a segment out of reach."""
    try:
        content = bytes.fromhex(text)
    except ValueError as error:
        raise OSError(f"{text[:80]!r} is no token") from error
    if len(content) != TOKEN_BYTES + PROBE_BYTES:
        raise OSError(f"a token and its proof have {TOKEN_BYTES + PROBE_BYTES} bytes, found {len(content)}")
    if not can_read(content):
        raise OSError("the memory that a token names is gone, or on another host")
    return Token.unpack(content[:TOKEN_BYTES])
