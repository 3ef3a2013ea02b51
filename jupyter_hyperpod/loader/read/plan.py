"""Plans a load from the headers: which bytes are read, in which order, and where they land. Pure.

A whole model lands as it lies in its files, so chunks are uniform, independent of the tensors. Chunks end at multiples
of their size in the file, as the parts of most uploads do: a store that keeps parts then reads one part per chunk, not
two. In memory a file begins as far behind a huge page's border as its data do in the file, so chunks rarely share
pages.

A tensor-parallel part lands tensor by tensor, and only its own bytes are read: a tensor split on its first dimension is
one range, one split on another is many short pieces at a constant distance (`Chunk.rows` of them).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from ...core.errors import LoaderError
from ..header import Header
from .tensor_parallel import LLAMA_RULES, Rule, part

CHUNK_BYTES = 8 * 2**20
EARLY_BYTES = 4 * 2**20  # up to the first block, which arrives earlier when more connections share it
ALIGN_BYTES = 64
HUGE_PAGE_BYTES = 2 * 2**20
MAX_ROWS = 512  # most pieces in one chunk, so that other connections can take over soon
SHORT_BYTES = 512 * 1024  # smaller pieces cost more to request than to read
BLOCK_BYTES = 2 * 2**20  # blocks of whole rows, which ranks read for each other where pieces are short
_BLOCK = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")
_EMBEDDING = re.compile(r"(?:^|[._])(wte|wpe|tok_embeddings|embed\w*|embeddings?)(?:\.|$)")
_EMBEDDING_GROUP = -1
_LAST_GROUP = 2**62


@dataclass(frozen=True, slots=True)
class Chunk:
    """`rows` pieces of `length` bytes, `stride` apart, from `offset` of `file` on; they land end to end at `place`.

    Where `across` is given, ranks may read whole rows for each other: each row begins `across` bytes before its piece,
    and the chunks of all ranks have the same rows.
    """

    file: int
    offset: int
    length: int
    place: int
    tensors: range
    rows: int = 1
    stride: int = 0
    across: int | None = None

    @property
    def bytes(self) -> int:
        """Bytes read and landed."""
        return self.length * self.rows

    @property
    def block(self) -> tuple[int, int, int]:
        """The rows that its pieces are in: file, offset, bytes."""
        return self.file, self.offset - (self.across or 0), self.rows * self.stride


class Placed(NamedTuple):
    """A tensor, or this rank's part of it, at `place` of the landed bytes of file `file`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    file: int
    place: int
    bytes: int


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The plan of one load: tensors, landed bytes per file, chunks in the order in which they are fetched.

    `first_layer`: the tensors (indices) that the model's first block needs; none where nothing is read. `whole` files
    land as they lie. `tp`: (rank, size) of this part. `cached_bytes` are in the page cache and not read.
    """

    tensors: tuple[Placed, ...]
    landings: tuple[int, ...]
    chunks: tuple[Chunk, ...]
    first_layer: frozenset[int]
    whole: bool = True
    tp: tuple[int, int] = (0, 1)
    cached_bytes: int = 0

    @property
    def bytes(self) -> int:
        """Bytes that are read."""
        return sum(chunk.bytes for chunk in self.chunks)


def plan(
    files: Sequence[Header],
    tp: tuple[int, int] = (0, 1),
    order: Sequence[str] | None = None,
    chunk_bytes: int = CHUNK_BYTES,
    rules: Sequence[Rule] = LLAMA_RULES,
    early_bytes: int | None = None,
    cached: Collection[int] = (),
    aligned: bool = False,
) -> LoadPlan:
    """Plan the load of rank `tp[0]` of `tp[1]` in ranges of at most `chunk_bytes`, tensors of `order` first.

    Whole files are read in ranges of `early_bytes` up to the end of the first block, if it is given; `cached` ones
    (indices) are in the page cache and not read. `aligned` ranges end at multiples of their size in the file, others in
    its data. Raises LoaderError where two files hold the same tensor and SpecError for rules that do not fit.
    """
    _check_names(files)
    tensors: list[Placed] = []
    chunks: list[Chunk] = []
    landings = []
    for index, header in enumerate(files):
        if tp[1] > 1:
            landings.append(_parts(index, header, tp, rules, chunk_bytes, tensors, chunks))
            continue
        base = len(tensors)
        phase = phase_of(header) if aligned else 0
        tensors += [Placed(name, kind, shape, index, phase + a, b - a) for name, kind, shape, a, b in header.entries]
        landings.append(phase + header.data_bytes)
        if index not in cached:
            chunks += _whole_file(index, header, base, phase, 0 if aligned else header.data_offset, chunk_bytes)
    cached_bytes = sum(files[index].data_bytes for index in cached)
    if not chunks:
        return LoadPlan(tuple(tensors), tuple(landings), (), frozenset(), tp[1] == 1, tp, cached_bytes)
    positions = {name: position for position, name in enumerate(load_order(files, order))}
    first = first_layer([tensor.name for tensor in tensors], positions)
    if early_bytes is not None and tp[1] == 1:
        origins = [0 if aligned else header.data_offset for header in files]
        chunks = [p for chunk in chunks for p in _early(chunk, first, tensors, early_bytes, origins[chunk.file])]
    urgency = [positions[tensor.name] for tensor in tensors]
    ordered = sorted(chunks, key=lambda chunk: (min(urgency[i] for i in chunk.tensors), chunk.file, chunk.offset))
    return LoadPlan(tuple(tensors), tuple(landings), tuple(ordered), first, tp[1] == 1, tp, cached_bytes)


def load_order(files: Sequence[Header], order: Sequence[str] | None = None) -> list[str]:
    """Return all names: first those of `order`, then embeddings, blocks by number, the rest; else as in the files."""
    names = [entry.name for header in files for entry in header.entries]
    wanted = {name: position for position, name in enumerate(order or ())}
    return sorted(names, key=lambda name: (wanted.get(name, len(wanted)), group(name)))


@lru_cache(maxsize=65_536)
def group(name: str) -> int:
    """Return the number of the block that a tensor belongs to; embeddings come before all blocks, others after them."""
    if match := _BLOCK.search(name):
        return int(match[1])
    return _EMBEDDING_GROUP if _EMBEDDING.search(name) else _LAST_GROUP


def first_layer(names: Sequence[str], positions: Mapping[str, int]) -> frozenset[int]:
    """Return the indices of the tensors up to the end of the first block, in load order."""
    if not names:
        return frozenset()
    groups = [group(name) for name in names]
    block = min((number for number in groups if 0 <= number < _LAST_GROUP), default=None)
    if block is not None:
        last = max(positions[name] for name, number in zip(names, groups, strict=True) if number == block)
    else:
        last = min(positions[name] for name in names)
    return frozenset(index for index, name in enumerate(names) if positions[name] <= last)


def _check_names(files: Sequence[Header]) -> None:
    if len(files) == 1:
        return  # no header gives a name twice
    seen: dict[str, int] = {}
    for index, header in enumerate(files):
        for entry in header.entries:
            if entry.name in seen:
                found = f"tensor {entry.name!r} in files {seen[entry.name] + 1} and {index + 1}"
                raise LoaderError("model", found, "every tensor once")
            seen[entry.name] = index


def phase_of(header: Header) -> int:
    """The offset of a whole file's data from a huge page's border, with tensors aligned as if they began at one."""
    return header.data_offset % HUGE_PAGE_BYTES // ALIGN_BYTES * ALIGN_BYTES


def _whole_file(file: int, header: Header, base: int, phase: int, origin: int, chunk_bytes: int) -> Iterator[Chunk]:
    """Cut a file at multiples of `chunk_bytes` from `origin` on; its tensors are numbered from `base` on."""
    begins = [entry.begin for entry in header.entries]
    ends = [entry.end for entry in header.entries]
    for offset, length in _cuts(header.data_offset, header.file_bytes, origin, chunk_bytes):
        begin = offset - header.data_offset
        inside = range(base + bisect_right(ends, begin), base + bisect_right(begins, begin + length - 1))
        yield Chunk(file, offset, length, phase + begin, inside)


def _early(
    chunk: Chunk, first: frozenset[int], tensors: Sequence[Placed], early_bytes: int, origin: int
) -> Iterator[Chunk]:
    """Cut a chunk that the first block needs, at multiples of `early_bytes` from `origin` on."""
    if first.isdisjoint(chunk.tensors):
        yield chunk
        return
    for offset, length in _cuts(chunk.offset, chunk.offset + chunk.length, origin, early_bytes):
        place = chunk.place + offset - chunk.offset
        inside = [
            i
            for i in chunk.tensors
            if tensors[i].place < place + length and tensors[i].place + tensors[i].bytes > place
        ]
        found = range(inside[0], inside[-1] + 1)
        yield replace(chunk, offset=offset, length=length, place=place, tensors=found)


def _cuts(begin: int, end: int, origin: int, size: int) -> Iterator[tuple[int, int]]:
    """Offsets and lengths of pieces between multiples of `size` from `origin` on."""
    while begin < end:
        length = min(end - begin, size - (begin - origin) % size)
        yield begin, length
        begin += length


def _parts(
    file: int,
    header: Header,
    tp: tuple[int, int],
    rules: Sequence[Rule],
    chunk_bytes: int,
    tensors: list[Placed],
    chunks: list[Chunk],
) -> int:
    place = 0
    merged: list[Chunk] = []
    for entry in header.entries:
        mine = part(entry, *tp, rules)
        place = -(-place // ALIGN_BYTES) * ALIGN_BYTES
        index = len(tensors)
        tensors.append(Placed(entry.name, entry.dtype, mine.shape, file, place, mine.bytes))
        if mine.bytes:
            pieces = Chunk(
                file,
                header.data_offset + mine.begin,
                mine.piece,
                place,
                range(index, index + 1),
                mine.rows,
                mine.stride,
                mine.across if mine.stride <= min(BLOCK_BYTES, SHORT_BYTES * tp[1]) else None,
            )
            _merge(merged, pieces)
        place += mine.bytes
    for chunk in merged:
        chunks += _cut(chunk, chunk_bytes)
    return place


def _merge(chunks: list[Chunk], chunk: Chunk) -> None:
    """Append `chunk`, or lengthen the last one where both the bytes and their place follow on."""
    if chunk.rows > 1 and chunk.length == chunk.stride:
        chunk = replace(chunk, length=chunk.bytes, rows=1)
    if chunks and chunks[-1].rows == chunk.rows == 1:
        last = chunks[-1]
        if last.offset + last.length == chunk.offset and last.place + last.length == chunk.place:
            tensors = range(last.tensors.start, chunk.tensors.stop)
            chunks[-1] = replace(last, length=last.length + chunk.length, tensors=tensors)
            return
    chunks.append(chunk)


def _cut(chunk: Chunk, chunk_bytes: int) -> Iterator[Chunk]:
    if chunk.rows > 1 and chunk.length <= chunk_bytes:
        block = min(BLOCK_BYTES, chunk_bytes) // chunk.stride
        rows = max(1, min(MAX_ROWS, chunk_bytes // chunk.length) if chunk.across is None else block)
        for row in range(0, chunk.rows, rows):
            count = min(rows, chunk.rows - row)
            offset, place = chunk.offset + row * chunk.stride, chunk.place + row * chunk.length
            yield replace(chunk, offset=offset, place=place, rows=count)
        return
    for row in range(chunk.rows):
        for begin in range(0, chunk.length, chunk_bytes):
            offset = chunk.offset + row * chunk.stride + begin
            place = chunk.place + row * chunk.length + begin
            length = min(chunk_bytes, chunk.length - begin)
            yield replace(chunk, offset=offset, length=length, place=place, rows=1, across=None)
