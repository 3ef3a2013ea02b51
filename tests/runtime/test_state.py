"""State on its way to a newcomer, and its digest: never pickle, nothing lost, nothing else let through."""

from __future__ import annotations

import struct
from collections import deque
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_hyperpod.core.errors import TrainingError
from jupyter_hyperpod.runtime.comm.state_codec import (
    blank,
    decode,
    digest,
    encode,
    pack,
    size_bytes,
    stripe,
    unpack,
)

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    shape = draw(st.lists(st.integers(0, 4), max_size=3))
    numbers = torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 9))))
    tensor = numbers.to(draw(st.sampled_from(DTYPES)))
    return tensor.t() if tensor.dim() == 2 and draw(st.booleans()) else tensor


@st.composite
def arrays(draw: st.DrawFn) -> Any:
    dtype = draw(st.sampled_from(["f8", "f4", "i8", "u2", "?", "c16"]))
    shape = tuple(draw(st.lists(st.integers(0, 3), max_size=2)))
    array = np.arange(draw(st.integers(0, 9)), 99)[: int(np.prod(shape))].astype(dtype).reshape(shape)
    return array[()] if draw(st.booleans()) else array


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
others = (
    st.complex_numbers(allow_nan=False)
    | st.binary(max_size=5)
    | st.sampled_from([torch.float16, torch.Size([2]), Path("a/b.pt"), PurePosixPath("/c"), PureWindowsPath("d")])
)
keys = st.text(max_size=5) | st.integers(-5, 99) | st.tuples(st.integers(0, 3), st.text(max_size=2))
states = st.recursive(
    scalars
    | others
    | tensors()
    | arrays()
    | st.sets(scalars, max_size=3)
    | st.frozensets(st.text(max_size=2), max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(keys, inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.lists(inner, max_size=3).map(lambda items: deque(items, 3))
    ),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, np.ndarray | np.generic):
        return type(a) is type(b) and a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, (list, tuple, deque)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, float):
        return isinstance(b, float) and struct.pack("d", a) == struct.pack("d", b)
    return type(a) is type(b) and a == b


@given(states, st.integers(1, 5))
@settings(max_examples=100)
def test_state_arrives_as_it_was_in_any_number_of_stripes(state: Any, donors: int) -> None:
    skeleton, sent = pack(state)
    arrived = decode(encode(skeleton))
    room = blank(arrived)
    for donor in range(donors):
        for source, target in zip(stripe(sent, donor, donors), stripe(room, donor, donors), strict=True):
            target[:] = source
    assert same(unpack(arrived, room), state)
    assert digest(unpack(arrived, room)) == digest(state)


@given(states, st.integers(1, 7))
def test_stripes_partition_the_bytes(state: Any, parts: int) -> None:
    _, sent = pack(state)
    pieces = [b"".join(stripe(sent, part, parts)) for part in range(parts)]
    assert b"".join(pieces) == b"".join(t.reshape(-1).view(torch.uint8).numpy().tobytes() for t in sent if t.numel())
    assert sum(map(len, pieces)) == size_bytes(sent)
    assert max(map(len, pieces)) - min(map(len, pieces)) <= 1


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"a": {"b": [1, object()]}}, r"state\.a\.b\[1\] is a object"),
        ({"f": print}, r"state\.f is a builtin_function_or_method"),
        ({"i": iter([1])}, r"state\.i is a list_iterator"),
        ({b"k": 1}, "key of type bytes"),
    ],
)
def test_what_cannot_travel_is_named(value: Any, where: str) -> None:
    with pytest.raises(TrainingError, match=where):
        pack(value)


def test_the_digest_sees_every_difference() -> None:
    base = {"w": torch.zeros(4), "n": 1, "x": 0.0}
    others = [
        {"w": torch.zeros(4), "n": 2, "x": 0.0},
        {"w": torch.zeros(4), "n": 1, "x": -0.0},
        {"w": torch.zeros(2, 2), "n": 1, "x": 0.0},
        {"w": torch.zeros(4, dtype=torch.float64), "n": 1, "x": 0.0},
        {"v": torch.zeros(4), "n": 1, "x": 0.0},
        {"w": torch.tensor([0.0, 0.0, 0.0, -0.0]), "n": 1, "x": 0.0},
    ]
    digests = {digest(state) for state in [base, *others]}
    assert len(digests) == len(others) + 1
    assert digest({"w": torch.zeros(8)[::2], "n": 1, "x": 0.0}) == digest(base), "memory layout is not state"


def test_an_optimizers_state_comes_back() -> None:
    parameter = torch.nn.Parameter(torch.randn(5))
    optimizer = torch.optim.AdamW([parameter], lr=0.1)
    parameter.grad = torch.randn(5)
    optimizer.step()
    skeleton, sent = pack(optimizer.state_dict())
    other = torch.optim.AdamW([torch.nn.Parameter(parameter.detach().clone())], lr=0.5)
    other.load_state_dict(unpack(decode(encode(skeleton)), sent))
    assert digest(other.state_dict()) == digest(optimizer.state_dict())
