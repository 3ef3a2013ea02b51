"""Decides which tensors go into which file of a written model. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ...core.errors import LoaderError, SpecError
from ..header import DTYPE_BITS, SINGLE, Header, encode_header, parse_header, tensor_bytes
from ..read.plan import CHUNK_BYTES

MOST_PARTS = 9_000  # per object; S3 allows 10,000


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor to be written: its name, its dtype as the format spells it, its shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return tensor_bytes(self.dtype, self.shape)


@dataclass(frozen=True, slots=True)
class OutFile:
    """A file to be written: its name, the bytes of its header, and the header as it will be read."""

    name: str
    content: bytes
    header: Header


def lay_out(
    tensors: Sequence[Tensor],
    metadata: Mapping[str, str],
    shard_bytes: int | None,
    single: str = SINGLE,
    mark: str = "",
) -> list[OutFile]:
    """Return the files of a model: `single`, or shards whose tensors take at most `shard_bytes` each, in this order.

    A tensor larger than that has a shard of its own. `mark` becomes part of the names, and a single file is then named
    as a shard. Raises SpecError where a tensor is called as the format calls its metadata, or `shard_bytes` is not
    positive.
    """
    if shard_bytes is not None and shard_bytes <= 0:
        raise SpecError(f"shard_bytes is {shard_bytes}, expected more than 0")
    if any(tensor.name == "__metadata__" for tensor in tensors):
        raise SpecError("a tensor is called '__metadata__', which safetensors keeps for itself")
    shards = _cut(tensors, shard_bytes)
    if len(shards) == 1 and not mark:
        return [_file(single, shards[0], metadata)]
    stem = single.removesuffix(".safetensors")
    names = [f"{stem}-{number:05}-of-{len(shards):05}{mark}.safetensors" for number in range(1, len(shards) + 1)]
    return [_file(name, shard, metadata) for name, shard in zip(names, shards, strict=True)]


def encode_index(files: Iterable[OutFile]) -> bytes:
    """Return the index that says which file holds which tensor."""
    weights = {entry.name: file.name for file in files for entry in file.header.entries}
    total = sum(file.header.data_bytes for file in files)
    record = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weights.items()))}
    return json.dumps(record, indent=2, ensure_ascii=False).encode() + b"\n"


def part_bytes(files: Iterable[OutFile]) -> int:
    """Return the size of the parts of each file: whole chunks, not too many parts."""
    largest = max((file.header.data_bytes for file in files), default=0)
    return CHUNK_BYTES * max(1, -(-largest // (CHUNK_BYTES * MOST_PARTS)))


def _cut(tensors: Sequence[Tensor], shard_bytes: int | None) -> list[list[Tensor]]:
    shards: list[list[Tensor]] = [[]]
    filled = 0
    for tensor in tensors:
        if shard_bytes is not None and shards[-1] and filled + tensor.bytes > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(tensor)
        filled += tensor.bytes
    return shards


def _file(name: str, tensors: Sequence[Tensor], metadata: Mapping[str, str]) -> OutFile:
    """Lay out one file, wide elements first, so that every tensor is aligned and can be read in place."""
    ordered = sorted(tensors, key=lambda tensor: -DTYPE_BITS[tensor.dtype])
    try:
        content = encode_header([(tensor.name, tensor.dtype, tensor.shape) for tensor in ordered], metadata)
    except UnicodeEncodeError:
        raise LoaderError(name, "a tensor whose name is no text", "names that UTF-8 can write") from None
    size = len(content) + sum(tensor.bytes for tensor in ordered)
    return OutFile(name, content, parse_header(content, size, name))
