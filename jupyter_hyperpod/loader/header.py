"""Parses, validates and writes the headers of safetensors files. Pure.

A file is 8 bytes with the header's length (little endian), the header as JSON, then the tensors end to end.
"""

from __future__ import annotations

import json
import math
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any, NamedTuple

from ..core.errors import LoaderError

PREFIX_BYTES = 8
MAX_HEADER_BYTES = 100_000_000  # the format's own limit
ALIGN_BYTES = 8
SINGLE = "model.safetensors"
INDEX_SUFFIX = ".index.json"
_PREFIX = struct.Struct("<Q")
DTYPES = {  # bits, and the name in torch, "" where it has none
    "BOOL": (8, "bool"),
    "F4": (4, ""),
    "F6_E2M3": (6, ""),
    "F6_E3M2": (6, ""),
    "U8": (8, "uint8"),
    "I8": (8, "int8"),
    "F8_E5M2": (8, "float8_e5m2"),
    "F8_E4M3": (8, "float8_e4m3fn"),
    "F8_E8M0": (8, "float8_e8m0fnu"),
    "F8_E5M2FNUZ": (8, "float8_e5m2fnuz"),
    "F8_E4M3FNUZ": (8, "float8_e4m3fnuz"),
    "I16": (16, "int16"),
    "U16": (16, "uint16"),
    "F16": (16, "float16"),
    "BF16": (16, "bfloat16"),
    "I32": (32, "int32"),
    "U32": (32, "uint32"),
    "F32": (32, "float32"),
    "C64": (64, "complex64"),
    "F64": (64, "float64"),
    "I64": (64, "int64"),
    "U64": (64, "uint64"),
}
DTYPE_BITS = {name: bits for name, (bits, _) in DTYPES.items()}
_MOST_BITS = 2**63  # strides have 64 bits, even where a tensor is empty
_FIELDS = itemgetter("dtype", "shape", "data_offsets")
_PLACE = itemgetter(3, 4)  # where an entry begins and ends


class TensorEntry(NamedTuple):
    """One tensor: its dtype as the format spells it, its shape, and its bytes' place, from the data's start."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    @property
    def bytes(self) -> int:
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class Header:
    """What one file holds: `entries` in the order of their bytes; the data begins at `data_offset` of the file."""

    entries: tuple[TensorEntry, ...]
    metadata: Mapping[str, str]
    data_offset: int

    def entries_in(self, begin: int, end: int) -> Sequence[TensorEntry]:
        """Return the tensors that have bytes in ``[begin, end)`` of the data."""
        first = bisect_right(self.entries, begin, key=attrgetter("end"))
        return self.entries[first : bisect_left(self.entries, end, key=attrgetter("begin"))]

    @property
    def data_bytes(self) -> int:
        return self.entries[-1].end if self.entries else 0

    @property
    def file_bytes(self) -> int:
        return self.data_offset + self.data_bytes


def header_end(prefix: bytes, size: int, source: str) -> int:
    """Return where the header ends in a file of `size` bytes that begins with `prefix`. Raises LoaderError."""
    if size < PREFIX_BYTES or len(prefix) < PREFIX_BYTES:
        raise LoaderError(source, f"{size} bytes", f"a safetensors file, which has at least {PREFIX_BYTES}")
    (length,) = _PREFIX.unpack_from(prefix)
    if length > MAX_HEADER_BYTES:
        found = f"a header length of {length} bytes"
        raise LoaderError(source, found, f"at most {MAX_HEADER_BYTES}", "it is damaged, or not safetensors")
    if PREFIX_BYTES + length > size:
        found = f"{size} bytes with a header of {length}"
        raise LoaderError(source, found, f"at least {PREFIX_BYTES + length}", "the object is truncated or damaged")
    return PREFIX_BYTES + int(length)


def parse_header(content: bytes, size: int, source: str) -> Header:
    """Return the header of a file of `size` bytes that begins with `content` (the header's bytes at least).

    Raises LoaderError for every deviation from the format: unknown dtypes, shapes that do not fit their bytes, gaps,
    overlaps, duplicate names, a file shorter or longer than its tensors. It is stricter than the format's own library,
    which takes the last of two tensors of one name, and shapes that no tensor can have.
    """
    end = header_end(content[:PREFIX_BYTES], size, source)
    record = _decode(content[PREFIX_BYTES:end], source)
    metadata = _metadata(record.pop("__metadata__", {}), source)
    entries = sorted([_entry(name, value, source) for name, value in record.items()], key=_PLACE)
    position = 0
    for entry in entries:
        if entry.begin != position:
            raise LoaderError(
                source, f"tensor {_short(entry.name)} at {entry.begin}", f"it at {position}, where the last ended"
            )
        position = entry.end
    if end + position != size:
        what = "the object is truncated" if size < end + position else "the object is longer than its tensors"
        raise LoaderError(source, f"{size} bytes", f"{end + position}, as its header says", what)
    return Header(tuple(entries), metadata, end)


def encode_header(tensors: Iterable[tuple[str, str, tuple[int, ...]]], metadata: Mapping[str, str]) -> bytes:
    """Return the beginning of a file that holds (name, dtype, shape) tensors end to end, in this order."""
    record: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    position = 0
    for name, dtype, shape in tensors:
        length = tensor_bytes(dtype, shape)
        record[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [position, position + length]}
        position += length
    text = json.dumps(record, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % ALIGN_BYTES)
    return _PREFIX.pack(len(text)) + text


def tensor_bytes(dtype: str, shape: Iterable[int]) -> int:
    """Bytes of a tensor; a last byte that is not full counts as one."""
    return -(-math.prod(shape) * DTYPE_BITS[dtype] // 8)


def parse_index(content: bytes, source: str) -> dict[str, str]:
    """Return tensor name -> file name from ``model.safetensors.index.json``. Raises LoaderError."""
    record = _decode(content, source)
    weights = record.get("weight_map")
    if not isinstance(weights, dict) or not weights:
        raise LoaderError(source, "no weight_map" if not weights else "a weight_map that is no object", "a weight_map")
    for name, file in weights.items():
        if not isinstance(file, str) or file in ("", ".", "..") or not file.isprintable() or {"/", "\\"} & set(file):
            raise LoaderError(source, f"{_short(name)} in {_short(file)}", "the name of a file beside the index")
    return weights


def _decode(content: bytes, source: str) -> dict[str, Any]:
    try:
        integers = _integer if b"-0" in content else None  # json's own conversion is faster, and suffices without "-0"
        text = content.decode()
        record = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant, parse_int=integers)
        if b"\\ud" in content.lower():
            json.dumps(record, ensure_ascii=False).encode()  # refuses half of a surrogate pair
    except (ValueError, RecursionError) as error:
        raise LoaderError(source, f"a header that is not JSON ({error})", "a JSON object") from None
    if not isinstance(record, dict):
        raise LoaderError(source, f"a header that is a {type(record).__name__}", "a JSON object")
    return record


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for place, name in enumerate(names) if name in names[:place])
        raise ValueError(f"{_short(twice)} is given twice")
    return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _integer(text: str) -> int | float:
    return -0.0 if text == "-0" else int(text)


def _metadata(value: Any, source: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise LoaderError(source, f"__metadata__ {_short(value)}", "an object of texts")
    return value


def _entry(name: str, value: Any, source: str) -> TensorEntry:
    """Check one tensor. A model has thousands, so texts of errors are built only for an error."""
    try:
        dtype, shape, offsets = _FIELDS(value)
    except (KeyError, TypeError):
        expected = "an object with dtype, shape, data_offsets"
        raise LoaderError(source, f"{_tensor(name)} as {_short(value)}", expected) from None
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise LoaderError(source, f"{_tensor(name)} of dtype {_short(dtype)}", f"one of {', '.join(DTYPE_BITS)}")
    if not _is_counts(shape):
        raise LoaderError(source, f"{_tensor(name)} of shape {_short(shape)}", "a list of numbers of at least 0")
    if not _is_counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise LoaderError(source, f"{_tensor(name)} at {_short(offsets)}", "where it begins and ends")
    bits = math.prod(shape) * DTYPE_BITS[dtype]
    if (bits or math.prod([max(1, number) for number in shape]) * DTYPE_BITS[dtype]) >= _MOST_BITS:
        raise LoaderError(source, f"{_tensor(name)} of shape {_short(shape)}", "one that memory can hold")
    begin, end = offsets
    if bits != 8 * (end - begin):
        found = f"{_tensor(name)} of {end - begin} bytes"
        raise LoaderError(source, found, f"{bits / 8:g}, as dtype {dtype} and shape {_short(shape)} say")
    return TensorEntry(name, dtype, tuple(shape), begin, end)


def _is_counts(value: Any) -> bool:
    if not isinstance(value, list):
        return False
    for number in value:  # a generator would cost more than everything else here
        if type(number) is not int or not 0 <= number < 2**63:
            return False
    return True


def _tensor(name: str) -> str:
    return f"tensor {_short(name)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"
