"""Websocket frames: what one side writes the other reads, however the network cuts it, and nothing else is taken."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.backends.kubernetes import websocket
from jupyter_hyperpod.backends.kubernetes.websocket import BINARY, CONTINUED, PING, Messages
from jupyter_hyperpod.core.errors import ProtocolError

MASKS = st.binary(min_size=4, max_size=4)


def served(kind: int, payload: bytes, last: bool = True) -> bytes:
    """A frame as a server sends it: without a mask."""
    size = len(payload)
    head = bytes(((0x80 if last else 0) | kind,))
    if size < 126:
        return head + bytes((size,)) + payload
    if size < 1 << 16:
        return head + b"\x7e" + size.to_bytes(2, "big") + payload
    return head + b"\x7f" + size.to_bytes(8, "big") + payload


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in zip(places, places[1:], strict=False)]


def taken(data: bytes, cuts: list[int]) -> list[tuple[int, bytes]]:
    messages = Messages()
    return [message for piece in pieces(data, cuts) for message in messages.feed(piece)]


def test_the_example_of_the_standard() -> None:
    assert websocket.accepted("dGhlIHNhbXBsZSBub25jZQ==") == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
    assert websocket.frame(1, b"Hello", bytes.fromhex("37fa213d")) == bytes.fromhex("818537fa213d7f9f4d5158")
    assert list(Messages().feed(bytes.fromhex("810548656c6c6f"))) == [(1, b"Hello")]


@given(st.lists(st.binary(max_size=300), max_size=6), st.lists(st.integers(0), max_size=9))
def test_messages_arrive_whole_however_they_are_cut(payloads: list[bytes], cuts: list[int]) -> None:
    data = b"".join(served(BINARY, payload) for payload in payloads)
    assert taken(data, cuts) == [(BINARY, payload) for payload in payloads]


@given(st.lists(st.binary(max_size=50), min_size=2, max_size=5), st.lists(st.integers(0), max_size=9))
def test_parts_of_a_message_are_joined_and_a_ping_may_come_between(parts: list[bytes], cuts: list[int]) -> None:
    frames = [served(CONTINUED if index else BINARY, part, index == len(parts) - 1) for index, part in enumerate(parts)]
    data = frames[0] + served(PING, b"?") + b"".join(frames[1:])
    assert taken(data, cuts) == [(PING, b"?"), (BINARY, b"".join(parts))]


@pytest.mark.parametrize("size", [0, 1, 125, 126, 127, 65535, 65536, 1 << 20])
def test_every_length_survives(size: int) -> None:
    payload = bytes(range(256)) * (size // 256) + bytes(range(size % 256))
    assert taken(served(BINARY, payload), []) == [(BINARY, payload)]
    made = websocket.frame(BINARY, payload, b"\x01\x02\x03\x04")
    assert made[1] & 0x80, "what a client sends is masked"
    start = {True: 6, False: 8 if size < 1 << 16 else 14}[size < 126]
    assert websocket.masked(made[start:], b"\x01\x02\x03\x04") == payload


@given(st.binary(max_size=200), MASKS)
def test_a_mask_laid_twice_is_none(payload: bytes, mask: bytes) -> None:
    assert websocket.masked(websocket.masked(payload, mask), mask) == payload
    assert websocket.masked(payload, mask) == bytes(byte ^ mask[i % 4] for i, byte in enumerate(payload))


@given(st.binary(max_size=100))
def test_any_bytes_are_messages_or_a_protocol_error(data: bytes) -> None:
    try:
        taken(data, [7, 30])
    except ProtocolError as error:
        assert str(error)


@pytest.mark.parametrize(
    "data",
    [
        b"\xc2\x00",  # a reserved bit
        b"\x82\x80\x00\x00\x00\x00",  # masked
        b"\x83\x00",  # no such kind
        b"\x09\x00",  # a ping in parts
        b"\x89\x7e\x00\x80",  # a long ping
        served(CONTINUED, b"a"),  # goes on with nothing
        served(BINARY, b"a", False) + served(BINARY, b"b"),  # two at once
        b"\x82\x7f\x7f\xff\xff\xff\xff\xff\xff\xff",  # no memory is so large
    ],
)
def test_what_no_server_may_send_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        taken(data, [])


def test_a_message_in_parts_may_not_grow_without_end() -> None:
    messages = Messages(limit_bytes=100)
    with pytest.raises(ProtocolError, match="100"):
        for _ in range(3):
            list(messages.feed(served(CONTINUED if _ else BINARY, bytes(60), False)))


def told(code: object) -> bytes:
    cause = {"reason": "ExitCode", "message": code}
    return json.dumps({"status": "Failure", "message": "command ended", "details": {"causes": [cause]}}).encode()


def test_the_exit_status_is_found() -> None:
    assert websocket.exit_status(b'{"status": "Success"}') == (0, "")
    assert websocket.exit_status(told("3")) == (3, "command ended")
    assert websocket.exit_status(b'{"status": "Failure", "message": "no such\\n file"}') == (None, "no such file")
    for broken in (b"", b"[]", told("x"), told(None), told("9" * 4000), b'{"details": {"causes": 3}}', b"\xff"):
        assert websocket.exit_status(broken)[0] is None


@given(st.binary(max_size=80))
def test_any_bytes_have_an_exit_status_or_a_reason(data: bytes) -> None:
    status, why = websocket.exit_status(data)
    assert (status is None) == bool(why)
