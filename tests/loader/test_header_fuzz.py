"""Headers from anybody: what is accepted is what the format's own library reads, everything else is a LoaderError."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load

import jupyter_hyperpod as hp
from jupyter_hyperpod.core.errors import LoaderError
from jupyter_hyperpod.loader.header import DTYPE_BITS, Header, encode_header, parse_header, parse_index, tensor_bytes
from jupyter_hyperpod.loader.urls import beside
from tests.loader.models import assert_same

HUGE = [2**31, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1, 2**64, 10**30]
names = st.text(max_size=6) | st.sampled_from(["a", "b", "__metadata__", "ü\0", "\ud800", "../x", "a" * 300])
numbers = st.integers(-2, 12) | st.sampled_from([*HUGE, 1.0, -0.0, True, None, "1"])
shapes = st.lists(numbers, max_size=4) | numbers
spans = st.lists(numbers, max_size=3)
dtypes = st.sampled_from([*DTYPE_BITS, "F33", "f32", "", None, 3, ["F32"]])


@st.composite
def entries(draw: st.DrawFn) -> Any:
    """A tensor's record, mostly one that says what it should; `files` fills in where it lies."""
    record: dict[str, Any] = {
        "dtype": draw(st.sampled_from(sorted(DTYPE_BITS))),
        "shape": draw(st.lists(st.integers(0, 3), max_size=3)),
        "data_offsets": None,
    }
    match draw(st.integers(0, 15)):
        case 0:
            return draw(st.dictionaries(names, numbers | shapes, max_size=4) | numbers | st.lists(numbers))
        case 1:
            record["dtype"] = draw(dtypes)
        case 2:
            record["shape"] = draw(shapes)
        case 3:
            record["data_offsets"] = draw(spans)
        case 4:
            record |= draw(st.dictionaries(names, numbers, max_size=2))
    return record


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """A file whose header is nearly right."""
    record: dict[str, Any] = draw(st.dictionaries(names, entries(), max_size=4))
    record.pop("__metadata__", None)
    if draw(st.booleans()):
        record["__metadata__"] = draw(st.none() | st.dictionaries(names, names, max_size=3) | shapes)
    position = 0
    for value in record.values():
        if isinstance(value, dict) and value.get("data_offsets", 0) is None:
            length = _bytes(value)
            value["data_offsets"] = [position, position + length]
            position += length
    text = json.dumps(record, ensure_ascii=draw(st.booleans())).encode(errors="surrogatepass")
    text += b" " * draw(st.integers(0, 3))
    return struct.pack("<Q", len(text)) + text + bytes(max(0, position + draw(st.sampled_from([*[0] * 8, -1, 1]))))


def _bytes(record: dict[str, Any]) -> int:
    dtype, shape = record.get("dtype"), record.get("shape")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS or not isinstance(shape, list):
        return 0
    length = tensor_bytes(dtype, shape) if all(type(number) is int for number in shape) else 0
    return length if 0 <= length < 10_000 else 0


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """A correct file in which some bytes were replaced, removed or added."""
    content = bytearray(encode_header([("a", "F32", (2, 3)), ("b.c", "BF16", (4,))], {"format": "pt"}) + bytes(32))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, len(content)))
        new = draw(st.sampled_from([b'"', b"{", b"}", b"[", b",", b"-", b"0", b"9", b"e", b".", b" ", b"\\"]) | _BYTES)
        content[place : place + draw(st.integers(0, 2))] = new
    if draw(st.booleans()):
        length = len(content) - 32 - 8
        content[:8] = struct.pack("<Q", max(0, length + draw(st.sampled_from([0, 0, 0, -1, 1]))))
    return bytes(content)


_BYTES = st.binary(max_size=2)


def ours(content: bytes) -> Header | LoaderError:
    """What we make of a file; nothing but these two ever comes of it."""
    try:
        return parse_header(content, len(content), "x")
    except LoaderError as error:
        str(error).encode()
        assert error.source == "x" and error.found and error.expected
        assert len(str(error)) < 1000
        return error


def theirs(content: bytes) -> dict[str, tuple[str, tuple[int, ...], bytes]] | None:
    """What the format's library makes of it, None where it refuses."""
    try:
        found = safetensors.deserialize(content)  # type: ignore[no-untyped-call]
    except SafetensorError:
        return None
    return {name: (one["dtype"], tuple(one["shape"]), bytes(one["data"])) for name, one in found}


def stricter(content: bytes, error: LoaderError) -> bool:
    """Whether we refuse a file on purpose that the library reads."""
    reason = str(error)
    lists = "as [" in reason and content.count(b"[") > 2  # a record may be a list for it
    return any(part in reason for part in ("given twice", "one that memory can hold", "at least 0")) or lists


def check(content: bytes) -> Header | None:
    """Compare the two."""
    found, expected = ours(content), theirs(content)
    if isinstance(found, LoaderError):
        assert expected is None or stricter(content, found), f"{found}, but the library reads it"
        return None
    assert expected is not None, "the library refuses it"
    data = content[found.data_offset :]
    assert {e.name: (e.dtype, e.shape, data[e.begin : e.end]) for e in found.entries} == expected
    return found


def one(record: str, data: bytes = b"") -> bytes:
    """A file with this header."""
    text = record.encode()
    return struct.pack("<Q", len(text)) + text + data


@given(files())
@settings(max_examples=200)
@example(one('{"a":{"dtype":"U8","shape":[4611686018427387904,4611686018427387904,0],"data_offsets":[0,0]}}'))
@example(one('{"a":{"dtype":"U8","shape":[0,4611686018427387904,4611686018427387904],"data_offsets":[0,0]}}'))
@example(one('{"\\ud800":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}'))
@example(one('{"__metadata__":null,"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"more":1}}'))
@example(one('{"a":{"dtype":"U8","shape":[-0],"data_offsets":[0,0]}}'))
@example(one('{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}}', b"ab"))
@example(
    one(
        '{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}',
        b"ab",
    )
)
@example(struct.pack("<Q", 2**63) + b"{}")
@example(struct.pack("<Q", 100_000_001) + b"{}")
@example(one("[" * 100_000))
@example(one("9" * 5000))
@example(b"")
def test_headers_that_are_nearly_right(content: bytes) -> None:
    check(content)


@given(mutated())
@settings(max_examples=200)
def test_headers_that_were_damaged(content: bytes) -> None:
    check(content)


@given(st.lists(st.tuples(st.text(max_size=5), st.sampled_from(sorted(DTYPE_BITS)), st.lists(st.integers(0, 4)))))
def test_what_we_write_the_library_reads(tensors: list[tuple[str, str, list[int]]]) -> None:
    distinct = {name: (name, dtype, (*shape, 8)) for name, dtype, shape in tensors if name != "__metadata__"}
    length = sum(tensor_bytes(dtype, shape) for _, dtype, shape in distinct.values())
    if length < 1_000_000:
        found = check(encode_header(distinct.values(), {"ü": "\n"}) + bytes(length))
        assert found is not None and found.metadata == {"ü": "\n"} and found.data_bytes == length


@given(files() | mutated())
@settings(max_examples=80)
def test_a_file_is_loaded_as_the_library_loads_it_or_not_at_all(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.safetensors"
    path.write_bytes(content)
    try:
        found = hp.load_model(str(path))
    except LoaderError as error:
        assert error.source == str(path)
        return
    try:
        expected = load(content)
    except (RuntimeError, KeyError):  # dtypes that its torch side does not know
        return
    assert_same(found, expected)


@pytest.mark.parametrize("blank", ["", " "])
@pytest.mark.parametrize(
    "text",
    [
        '{"a":ONE,"a":ONE}',
        '{"a":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}}',
        '{"__metadata__":{"b":"c","b":"c"},"a":ONE}',
        r'{"\"a\":":ONE,"\"a\":":ONE}',
        '{"a":ONE,"b":[{"c":1,"c":1}]}',
    ],
)
def test_what_is_given_twice_is_seen(text: str, blank: str) -> None:
    header = text.replace("ONE", '{"dtype":"U8","shape":[0],"data_offsets":[0,0]}').replace('":', f'"{blank}:')
    content = len(header).to_bytes(8, "little") + header.encode()
    assert "given twice" in str(ours(content))


def test_names_of_tensors_may_be_any_text(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    state = {name: torch.ones(1) for name in ("", "ü\0\n", "../../etc", "a b", "😀")}
    path.write_bytes(encode_header([(name, "F32", (1,)) for name in state], {}) + b"\0\0\x80?" * len(state))
    assert_same(hp.load_model(str(path)), state)


values = st.recursive(names | numbers, lambda inner: st.lists(inner) | st.dictionaries(names, inner), max_leaves=8)


@given(values | st.dictionaries(st.just("weight_map"), values | st.dictionaries(names, names)) | st.binary())
def test_an_index_names_files_beside_it_and_nothing_else(value: Any) -> None:
    content = value if isinstance(value, bytes) else json.dumps(value).encode()
    try:
        weights = parse_index(content, "x")
    except LoaderError as error:
        str(error).encode()
        return
    for file in weights.values():
        for directory in ("/models/m", "s3://bucket/models?#/m", "https://host/m", "file:///models/m", "memory://a/m"):
            assert beside(f"{directory}/index.json", file).startswith(f"{directory}/")
            assert "/" not in beside(f"{directory}/index.json", file)[len(directory) + 1 :]
            assert "%2f" not in beside(f"file://{directory}/index.json", file).lower()


@pytest.mark.parametrize("file", ["..", ".", "", "a/b", "..\\b", "a\0b", "a\nb", "\ud800", 3, None])
def test_files_that_an_index_must_not_name(file: Any) -> None:
    with pytest.raises(LoaderError, match="beside the index|not JSON"):
        parse_index(json.dumps({"weight_map": {"a": file}}).encode(), "x")


def test_a_name_that_is_quoted_stays_beside_the_index(tmp_path: Path) -> None:
    state = {"a": torch.arange(3)}
    name = "%2e%2e%2fä#?.safetensors"
    (tmp_path / name).write_bytes(safetensors.torch.save(state))
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    for url in (str(tmp_path), tmp_path.as_uri()):
        assert_same(hp.load_model(url), state)
