"""Encodes training state as raw tensors plus a JSON skeleton, for digests and for transfer to newcomers.

Never pickle: a skeleton holds numbers, strings, lists, tuples and dictionaries; other types are refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ...core.errors import TrainingError
from . import shards
from .reduction import as_bytes

Skeleton = Any
_DTYPES = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


def pack(state: Any) -> tuple[Skeleton, list[torch.Tensor]]:
    """Split `state` (nested containers of tensors and scalars) into a JSON skeleton and its tensors in order.

    Of a sharded tensor it takes this process's part. Raises TrainingError for other values.
    """
    tensors: list[torch.Tensor] = []

    def walk(value: Any, path: str) -> Skeleton:
        if isinstance(value, torch.Tensor):
            part = shards.local(value.detach())
            tensors.append(part.cpu().contiguous())
            shape = [str(part.dtype), list(part.shape)]
            return {"s": [*shape, shards.describe(value)]} if shards.is_shard(value) else {"t": shape}
        if isinstance(value, dict):
            return {"d": [[_key(key, path), walk(item, f"{path}.{key}")] for key, item in value.items()]}
        if isinstance(value, (list, tuple)):
            kind = "l" if isinstance(value, list) else "u"
            return {kind: [walk(item, f"{path}[{index}]") for index, item in enumerate(value)]}
        if value is None or isinstance(value, (bool, int, float, str)):
            return {"v": value}
        raise TrainingError(
            f"state{path} is a {type(value).__name__}; only tensors, numbers, text and containers can travel"
        )

    return walk(state, ""), tensors


def _key(key: Any, path: str) -> Any:
    if isinstance(key, (str, int)):
        return key
    raise TrainingError(f"state{path} has a key of type {type(key).__name__}; expected text or a whole number")


def blank(skeleton: Skeleton, take: Callable[..., torch.Tensor] = torch.empty) -> list[torch.Tensor]:
    """Tensors of the skeleton's shapes with any content, in order; ``take(shape, dtype=dtype)`` allocates one."""
    found: list[torch.Tensor] = []

    def walk(part: Skeleton) -> None:
        ((kind, content),) = part.items()
        if kind in "ts":
            found.append(take(content[1], dtype=_DTYPES[content[0]]))
        elif kind == "d":
            for _, item in content:
                walk(item)
        elif kind in "lu":
            for item in content:
                walk(item)

    walk(skeleton)
    return found


def unpack(skeleton: Skeleton, tensors: Sequence[torch.Tensor], mesh: Any = None) -> Any:
    """Inverse of `pack`; ``mesh`` is that of the sharded tensors."""
    remaining = iter(tensors)

    def walk(part: Skeleton) -> Any:
        ((kind, content),) = part.items()
        if kind == "t":
            return next(remaining)
        if kind == "s":
            return shards.described(next(remaining), mesh, content[2])
        if kind == "d":
            return {key: walk(item) for key, item in content}
        if kind in "lu":
            items = [walk(item) for item in content]
            return items if kind == "l" else tuple(items)
        return content

    return walk(skeleton)


def digest(state: Any) -> str:
    """SHA-256 (hex) of every tensor's bytes and every scalar in `state`, with names, types and shapes."""
    skeleton, tensors = pack(state)
    sha = hashlib.sha256(encode(skeleton))
    for tensor in tensors:
        sha.update(as_bytes(tensor))
    return sha.hexdigest()


def encode(skeleton: Skeleton) -> bytes:
    """The skeleton as bytes."""
    return json.dumps(skeleton, separators=(",", ":")).encode()


def decode(text: bytes | bytearray) -> Skeleton:
    """Inverse of `encode`."""
    return json.loads(text)


def size_bytes(tensors: Sequence[torch.Tensor]) -> int:
    """Bytes of all tensors together."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def stripe(tensors: Sequence[torch.Tensor], part: int, parts: int) -> list[memoryview]:
    """The bytes of stripe `part` of `parts`, as if the tensors lay end to end."""
    total = size_bytes(tensors)
    low, high = total * part // parts, total * (part + 1) // parts
    views = []
    start = 0
    for tensor in tensors:
        view = as_bytes(tensor)
        first, last = max(low - start, 0), min(high - start, len(view))
        if first < last:
            views.append(view[first:last])
        start += len(view)
    return views
