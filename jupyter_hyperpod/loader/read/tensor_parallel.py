"""Computes which part of a tensor each tensor-parallel rank holds. Pure.

A rule is (pattern of the name, dimension) or (pattern, dimension, multiple): the dimension is split like
`torch.tensor_split`, in units of `multiple`: sizes differ by at most one unit, the first ranks have the larger parts.
Patterns are searched in the tensor's name, the first that matches counts; `None` as dimension, or no match, means that
every rank holds the whole tensor.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ...core.errors import SpecError
from ..header import DTYPE_BITS, TensorEntry

Rule = tuple[str, int | None] | tuple[str, int | None, int]
LLAMA_RULES: tuple[Rule, ...] = (
    (r"\b(q_proj|k_proj|v_proj|qkv_proj|query|key|value|gate_proj|up_proj|w1|w3|wq|wk|wv)\.(weight|bias)$", 0),
    (r"\b(o_proj|out_proj|down_proj|w2|wo)\.weight$", 1),
    (r"\b(embed_tokens|wte|tok_embeddings|word_embeddings|lm_head|output)\.weight$", 0),
)


@dataclass(frozen=True, slots=True)
class Slice:
    """Part of a tensor, of `shape`. As bytes: `rows` pieces of `piece` bytes, `stride` apart.

    The first piece begins at `begin`, counted like `TensorEntry.begin`. `across` bytes come before each piece in its
    row; it is None where not every rank has a piece of every row.
    """

    shape: tuple[int, ...]
    begin: int
    piece: int
    rows: int
    stride: int
    across: int | None = None

    @property
    def bytes(self) -> int:
        return self.piece * self.rows


def bounds(length: int, rank: int, size: int, multiple: int = 1) -> tuple[int, int]:
    """Return where rank's part of `length` elements starts and stops; a last unit may be shorter."""
    units, rest = divmod(-(-length // multiple), size)
    start = rank * units + min(rank, rest)
    stop = start + units + (rank < rest)
    return min(start * multiple, length), min(stop * multiple, length)


def dimension(name: str, rules: Sequence[Rule]) -> tuple[int | None, int]:
    """Return the dimension that `name` is split on (None: not at all) and the unit."""
    for pattern, dim, *multiple in rules:
        if re.search(pattern, name):
            return dim, int(multiple[0] or 1) if multiple else 1
    return None, 1


def part(entry: TensorEntry, rank: int, size: int, rules: Sequence[Rule] = LLAMA_RULES) -> Slice:
    """Return the part of a tensor that `rank` of `size` holds. Raises SpecError for a rule that does not fit."""
    dim, multiple = dimension(entry.name, rules)
    if dim is None or size == 1:
        return Slice(entry.shape, entry.begin, entry.bytes, 1, entry.bytes)
    if not 0 <= dim < len(entry.shape):
        raise SpecError(f"tp_rules split {entry.name!r} on dimension {dim}, but its shape is {list(entry.shape)}")
    start, stop = bounds(entry.shape[dim], rank, size, multiple)
    inner, rest = divmod(DTYPE_BITS[entry.dtype] * math.prod(entry.shape[dim + 1 :]), 8)
    if rest:
        raise SpecError(f"{entry.name!r} of dtype {entry.dtype} cannot be split on dimension {dim}: not whole bytes")
    rows = math.prod(entry.shape[:dim])
    shape = (*entry.shape[:dim], stop - start, *entry.shape[dim + 1 :])
    stride = entry.shape[dim] * inner
    last = bounds(entry.shape[dim], size - 1, size, multiple)
    across = start * inner if rows > 1 and last[0] < last[1] else None
    return Slice(shape, entry.begin + start * inner, (stop - start) * inner, rows, stride, across)


def check(tp: tuple[int, int]) -> None:
    """Raise SpecError unless `tp` is (rank, size)."""
    rank, size = tp
    if not 0 <= rank < size:
        raise SpecError(f"tp={tp!r} is not (rank, size) with 0 <= rank < size")
