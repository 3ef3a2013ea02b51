"""A message for many members is encoded once: each reads the message with its own rank, compressed or not."""

from __future__ import annotations

import json
import zlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.core.errors import ProtocolError
from jupyter_hyperpod.policy.recovery import MemberState, plan
from jupyter_hyperpod.runtime.payload_by_rank import HEAD, PACKED_FROM_BYTES, PayloadByRank, is_packed, unpacked
from jupyter_hyperpod.runtime.protocol import orders
from jupyter_hyperpod.runtime.protocol.codec import Message, decode, encode
from tests.runtime.test_wire import pair

LIMIT = 1 << 20


def peers(count: int) -> tuple[orders.Peer, ...]:
    return tuple(orders.Peer(f"nöde-{number}.18f3a2.{number}", "127.0.0.1", 4000 + number) for number in range(count))


def form(members: int, rank: int) -> Message:
    return orders.FormGeneration(7, rank, peers(members))


def go(members: int, rank: int) -> Message:
    found = plan([MemberState(3)] * members, members).value
    return orders.FollowPlan(7, replace(found, rank=rank))


def read(payload: bytes) -> Message | None:
    return decode(json.loads(unpacked(payload, LIMIT) if is_packed(payload) else payload))


@pytest.mark.parametrize("order", [form, go])
@pytest.mark.parametrize(("members", "packed"), [(3, False), (3, True), (600, False), (600, True)])
def test_each_member_reads_its_own_rank(order: Any, members: int, packed: bool) -> None:
    payload = PayloadByRank(encode(order(members, 0)))
    for rank in (0, 1, members - 1):
        assert read(payload.of(rank, packed=packed)) == order(members, rank)


def test_a_large_message_is_compressed_and_a_small_one_is_not() -> None:
    large, small = (PayloadByRank(encode(form(members, 0))) for members in (600, 3))
    assert is_packed(large.of(1, packed=True)) and not is_packed(large.of(1, packed=False))
    assert not is_packed(small.of(1, packed=True))
    assert 4 * len(large.of(1, packed=True)) < len(large.of(1, packed=False))


def test_a_channel_reads_both() -> None:
    payload = PayloadByRank(encode(form(600, 0)))
    with pair() as (one, two):
        for channel in (one, two, one):
            channel.receive()
        for packed in (True, False):
            one.send_encoded(payload.of(5, packed=packed))
            found: list[dict[str, Any]] = []
            while not found:
                one.push()
                found = two.receive()
            assert decode(found[0]) == form(600, 5)


@given(st.none() | st.integers(0, 2**31 - 1), st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=4))
def test_any_message_comes_back(rank: int | None, more: dict[str, str]) -> None:
    message = {**more, "rank": 0, "fill": "x" * PACKED_FROM_BYTES, "type": "a"}
    for packed in (True, False):
        payload = PayloadByRank(message).of(rank, packed=packed)
        text = unpacked(payload, LIMIT) if packed else payload
        assert json.loads(text) == {**message, "rank": rank}


@given(st.binary(max_size=40))
def test_garbage_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        unpacked(b"R" + body, LIMIT)


def test_a_message_that_would_fill_the_memory_is_refused() -> None:
    with pytest.raises(ProtocolError, match="longer than"):
        unpacked(HEAD.pack(b"R", 1) + zlib.compress(b"x" * (2 * LIMIT)), LIMIT)
    with pytest.raises(ProtocolError):
        unpacked(PayloadByRank(encode(form(600, 0))).of(1, packed=True)[:-5], LIMIT)
