"""A message for many members is encoded once: each reads the message with its own rank, compressed or not."""

from __future__ import annotations

import json
import random
import zlib
from collections import deque
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.core.errors import ProtocolError
from jupyter_hyperpod.policy.recovery import MemberState, plan
from jupyter_hyperpod.runtime.payload_by_rank import (
    HEAD,
    HELD,
    PACKED_FROM_BYTES,
    PackedReader,
    PayloadByRank,
    is_packed,
)
from jupyter_hyperpod.runtime.protocol import orders
from jupyter_hyperpod.runtime.protocol.codec import Message, decode, encode
from jupyter_hyperpod.runtime.text_patch import difference, patched
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
    return decode(json.loads(PackedReader().read(payload, LIMIT) if is_packed(payload) else payload))


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


TEXTS = st.text(st.characters(exclude_characters="\0"), max_size=5)  # no name and no sentence of a message has one


@given(st.none() | st.integers(0, 2**31 - 1), st.dictionaries(TEXTS, TEXTS, max_size=4))
def test_any_message_comes_back(rank: int | None, more: dict[str, str]) -> None:
    message = {**more, "rank": 0, "fill": "x" * PACKED_FROM_BYTES, "type": "a"}
    for packed in (True, False):
        payload = PayloadByRank(message).of(rank, packed=packed)
        text = PackedReader().read(payload, LIMIT) if packed else payload
        assert json.loads(text) == {**message, "rank": rank}


@given(st.binary(max_size=40))
def test_garbage_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        PackedReader().read(b"R" + body, LIMIT)
    with pytest.raises(ProtocolError):
        PackedReader().read(b"P" + body, LIMIT)


def test_a_message_that_would_fill_the_memory_is_refused() -> None:
    with pytest.raises(ProtocolError, match="longer than"):
        PackedReader().read(HEAD.pack(b"R", 1) + zlib.compress(b"x" * (2 * LIMIT)), LIMIT)
    with pytest.raises(ProtocolError):
        PackedReader().read(PayloadByRank(encode(form(600, 0))).of(1, packed=True)[:-5], LIMIT)


def test_the_next_message_of_its_kind_travels_as_a_patch() -> None:
    first = PayloadByRank(encode(form(600, 0)))
    fewer = tuple(peer for number, peer in enumerate(peers(600)) if number not in (17, 290, 599))
    order = orders.FormGeneration(8, 5, fewer)
    second, held = PayloadByRank(encode(order), first), deque[bytes](maxlen=HELD)
    reader = PackedReader()
    reader.read(first.of(3, packed=True, held=held), LIMIT)
    payload = second.of(5, packed=True, held=held)
    assert len(payload) < 200
    assert decode(json.loads(reader.read(payload, LIMIT))) == order
    assert list(held) == [first.digest, second.digest]


def test_who_has_missed_a_message_or_reads_no_patches_gets_the_whole_one() -> None:
    first = PayloadByRank(encode(form(600, 0)))
    second = PayloadByRank(encode(form(599, 0)), first)
    missed = deque[bytes](maxlen=HELD)
    for payload in (second.of(5, packed=True, held=missed), second.of(5, packed=True), second.of(5, packed=False)):
        assert read(payload) == form(599, 5)
    assert list(missed) == [second.digest]


def test_a_patch_of_what_was_not_carried_is_refused_and_so_is_a_changed_one() -> None:
    first = PayloadByRank(encode(form(600, 0)))
    payload = PayloadByRank(encode(form(599, 0)), first).of(5, packed=True, held=deque([first.digest]))
    with pytest.raises(ProtocolError, match="has not carried"):
        PackedReader().read(payload, LIMIT)
    reader = PackedReader()
    reader.read(first.of(5, packed=True), LIMIT)
    wrong = bytearray(payload)
    wrong[HEAD.size + 8] ^= 1  # of the digest
    with pytest.raises(ProtocolError, match="digest"):
        reader.read(bytes(wrong), LIMIT)


def test_both_sides_of_a_connection_forget_alike() -> None:
    """However messages of two kinds follow one another, and whoever misses some, each is read as it was meant."""
    rng = random.Random(0)
    readers = [(PackedReader(), deque[bytes](maxlen=HELD)) for _ in range(6)]
    before: dict[str, PayloadByRank] = {}
    members = list(peers(500))
    for generation in range(40):
        del members[rng.randrange(len(members))]
        kinds: list[Message] = [orders.FormGeneration(generation, 0, tuple(members)), go(len(members), 0)]
        for order in kinds:
            before[order.wire] = payload = PayloadByRank(encode(order), before.get(order.wire))
            for rank, (reader, held) in enumerate(readers):
                if rng.random() < 0.8:
                    sent = payload.of(rank, packed=True, held=held)
                    text = reader.read(sent, LIMIT) if is_packed(sent) else sent
                    assert text == payload.of(rank, packed=False)


TEXT = st.lists(st.sampled_from([b'{"member":"node-1.a.1",', b'"host":"127.0.0.1",', b"7,", b"[],", b"x" * 20 + b","]))


@given(TEXT, TEXT, st.binary(max_size=30))
def test_a_patch_makes_the_text(before: list[bytes], after: list[bytes], more: bytes) -> None:
    old, new = b"".join(before) + more, b"".join(after)
    for one, other in ((old, new), (new, old), (old, old), (b"", new), (new, b"")):
        assert patched(one, difference(one, other), LIMIT) == other


@given(st.binary(max_size=60), st.binary(max_size=40))
def test_a_patch_of_garbage_is_refused_or_makes_a_short_text(patch: bytes, before: bytes) -> None:
    try:
        assert len(patched(before, patch, 100)) <= 100
    except ProtocolError:
        pass
