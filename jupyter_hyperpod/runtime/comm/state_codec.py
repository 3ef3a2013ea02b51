"""Encodes training state as raw tensors plus a JSON skeleton, for digests and for transfer to newcomers.

Never pickle: a skeleton holds numbers, text, and containers of them; arrays travel as tensors; other types are refused.
Each part of a skeleton is a dictionary of one kind: t tensor, s shard, n array, d dictionary, l list, u tuple, q deque,
e set, f frozen set, x a value that JSON lacks, v any other value. What is not contiguous, such as a transposed matrix,
travels as if it were, beside the order of its dimensions in memory: sums over other orders have other bits.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import torch

from ...core.errors import TrainingError
from . import shards
from .reduction import as_bytes

Skeleton = Any
_SEQUENCES: dict[str, Callable[..., Any]] = {"l": list, "u": tuple, "e": set, "f": frozenset}
_TEXTS: dict[str, Callable[[str], Any]] = {"Decimal": Decimal, "Fraction": Fraction, "bytearray": bytearray.fromhex}
PATHS = (PurePosixPath, PureWindowsPath, type(Path()))
_TEXTS |= {kind.__name__: kind for kind in PATHS}
_DTYPES = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


def pack(state: Any, on_device: bool = False, layouts: bool = True) -> tuple[Skeleton, list[torch.Tensor]]:
    """Split `state` (nested containers of tensors and scalars) into a JSON skeleton and its tensors in order.

    Of a sharded tensor it takes this process's part. With ``on_device`` tensors stay where they are. ``layouts``: the
    skeleton says how tensors lie in memory, and which are leaves that get gradients. Raises TrainingError for other
    values.
    """
    tensors: list[torch.Tensor] = []

    def walk(value: Any, path: str) -> Skeleton:
        if isinstance(value, torch.Tensor):
            part = shards.local(value.detach())
            part = part.resolve_conj().resolve_neg() if part.layout is torch.strided else part
            tensors.append((part if on_device else part.cpu()).contiguous())
            shape: list[Any] = [str(part.dtype), list(part.shape)]
            if shards.is_shard(value):
                return {"s": [*shape, shards.describe(value)]}
            order = None if part.layout is not torch.strided or part.is_contiguous() else _order(part.stride())
            is_leaf = value.requires_grad and value.is_leaf
            return {"t": [*shape, order, is_leaf] if layouts and (order or is_leaf) else shape}
        if is_array(value):
            tensors.append(_as_tensor(value))
            shape = [value.dtype.str, list(value.shape), isinstance(value, sys.modules["numpy"].ndarray)]
            return {"n": [*shape, *([_order(value.strides)] if layouts and not value.flags.c_contiguous else ())]}
        if isinstance(value, dict):
            return {"d": [[_key(key, path), walk(item, f"{path}.{key}")] for key, item in value.items()]}
        if (spelled := _spelled(value)) is not None:
            return {"x": spelled}
        if isinstance(value, (list, tuple, deque)):
            kind = "l" if isinstance(value, list) else "u" if isinstance(value, tuple) else "q"
            items = [walk(item, f"{path}[{index}]") for index, item in enumerate(value)]
            return {kind: [value.maxlen, items] if isinstance(value, deque) else items}
        if isinstance(value, (set, frozenset)):
            items = [walk(item, path) for item in sorted(value, key=repr)]
            return {"e" if isinstance(value, set) else "f": items}
        if value is None or isinstance(value, (bool, int, float, str)):
            return {"v": value}
        raise TrainingError(
            f"state{path} is a {type(value).__name__}; only tensors, numbers, text and containers can travel"
        )

    return walk(state, ""), tensors


def _key(key: Any, path: str) -> Any:
    if key is None or isinstance(key, (str, int, float)):
        return key
    if isinstance(key, tuple):
        return [_key(part, path) for part in key]
    raise TrainingError(f"state{path} has a key of type {type(key).__name__}; expected text or a number")


def _as_key(key: Any) -> Any:
    return tuple(map(_as_key, key)) if isinstance(key, list) else key


def is_array(value: Any) -> bool:
    """Whether `value` is an array or a number of numpy, which has been loaded then."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic)) and value.dtype.kind in "biufcUSmM"


def _as_tensor(given: Any) -> torch.Tensor:
    numpy: Any = sys.modules["numpy"]
    return torch.from_numpy(numpy.frombuffer(bytearray(given.tobytes()), numpy.uint8))


def _as_array(
    tensor: torch.Tensor, dtype: str, shape: Sequence[int], whole: bool, order: Sequence[int] | None = None
) -> Any:
    import numpy

    found = numpy.frombuffer(bytearray(tensor.numpy().tobytes()), numpy.dtype(dtype)).reshape(shape)
    if order is not None:
        found = numpy.ascontiguousarray(found.transpose(order)).transpose(_order(order, ascending=True))
    return found if whole else found[()]


def _order(strides: Sequence[int], ascending: bool = False) -> list[int]:
    """Dimensions from the one with the longest way to its next item on; ``ascending``: the inverse of an order."""
    return sorted(range(len(strides)), key=lambda place: strides[place] if ascending else -strides[place])


def _laid(tensor: torch.Tensor, order: Sequence[int] | None = None, is_leaf: bool = False) -> torch.Tensor:
    """The tensor, which is contiguous, as its dimensions lay in memory before."""
    if order is not None:
        tensor = tensor.permute(*order).contiguous().permute(*_order(order, ascending=True))
    return tensor.requires_grad_() if is_leaf else tensor


def _spelled(value: Any) -> list[Any] | None:
    """A value that JSON lacks, as its type's name and parts; None for any other."""
    if isinstance(value, complex):
        return ["complex", value.real, value.imag]
    if isinstance(value, bytes):
        return ["bytes", value.hex()]
    if isinstance(value, bytearray):
        return ["bytearray", value.hex()]
    if isinstance(value, array):
        return ["array", value.typecode, value.tobytes().hex()]
    if isinstance(value, (Decimal, Fraction)) or type(value) in PATHS:
        return [type(value).__name__, str(value)]
    if isinstance(value, torch.Size):
        return ["Size", *value]
    if isinstance(value, range):
        return ["range", value.start, value.stop, value.step]
    if isinstance(value, (torch.dtype, torch.device)):
        return [type(value).__name__, str(value)]
    return None


def _read(kind: str, *parts: Any) -> Any:
    """Inverse of `_spelled`."""
    if kind == "dtype":
        return _DTYPES[parts[0]]
    if kind == "Size":
        return torch.Size(parts)
    if kind == "range":
        return range(*parts)
    if kind == "array":
        return array(parts[0], bytes.fromhex(parts[1]))
    if kind in _TEXTS:
        return _TEXTS[kind](*parts)
    return torch.device(*parts) if kind == "device" else complex(*parts) if kind == "complex" else bytes.fromhex(*parts)


def _bytes_of(dtype: str, shape: Sequence[int], *_more: Any) -> int:
    import numpy

    return int(numpy.dtype(dtype).itemsize) * math.prod(shape)


def blank(skeleton: Skeleton, take: Callable[..., torch.Tensor] = torch.empty) -> list[torch.Tensor]:
    """Tensors of the skeleton's shapes with any content, in order; ``take(shape, dtype=dtype)`` allocates one."""
    found: list[torch.Tensor] = []

    def walk(part: Skeleton) -> None:
        ((kind, content),) = part.items()
        if kind in "ts":
            found.append(take(content[1], dtype=_DTYPES[content[0]]))
        elif kind == "n":
            found.append(take([_bytes_of(*content)], dtype=torch.uint8))
        elif kind == "d":
            for _, item in content:
                walk(item)
        elif kind in "luqef":
            for item in content[1] if kind == "q" else content:
                walk(item)

    walk(skeleton)
    return found


def unpack(skeleton: Skeleton, tensors: Sequence[torch.Tensor], mesh: Any = None) -> Any:
    """Inverse of `pack`; ``mesh`` is that of the sharded tensors."""
    remaining = iter(tensors)

    def walk(part: Skeleton) -> Any:
        ((kind, content),) = part.items()
        if kind == "t":
            return _laid(next(remaining), *content[2:])
        if kind == "s":
            return shards.described(next(remaining), mesh, content[2])
        if kind == "n":
            return _as_array(next(remaining), *content)
        if kind == "d":
            return {_as_key(key): walk(item) for key, item in content}
        if kind in _SEQUENCES:
            return _SEQUENCES[kind](map(walk, content))
        if kind == "q":
            return deque(map(walk, content[1]), content[0])
        return _read(*content) if kind == "x" else content

    return walk(skeleton)


def digest(state: Any) -> str:
    """SHA-256 (hex) of every tensor's bytes and every scalar in `state`, with names, types and shapes."""
    skeleton, tensors = pack(state, layouts=False)
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
