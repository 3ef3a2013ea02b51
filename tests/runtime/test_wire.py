"""Control connections: what arrives is what was sent, in order, from somebody who knows the secret, or nothing."""

from __future__ import annotations

import hmac
import json
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_hyperpod.core.errors import ProtocolError
from jupyter_hyperpod.runtime.connection import (
    FRAME_LIMIT_BYTES,
    MAGIC,
    NONCE_BYTES,
    STRANGER_LIMIT_BYTES,
    Channel,
    FrameKey,
)

SECRET = b"s" * 32
HELLO_BYTES = len(MAGIC) + NONCE_BYTES
values = st.recursive(st.none() | st.integers(-(2**53), 2**53) | st.text(), lambda inner: st.lists(inner, max_size=3))
messages = st.fixed_dictionaries({"type": st.text(max_size=10)}, optional={"a": values, "b": values})


@contextmanager
def pair(left: bytes | None = SECRET, right: bytes | None = SECRET) -> Iterator[tuple[Channel, Channel]]:
    a, b = socket.socketpair()
    one, two = Channel(a, left, initiator=True), Channel(b, right)
    try:
        yield one, two
    finally:
        one.close()
        two.close()


class Wire:
    """Two channels with the bytes between them in our hands."""

    def __init__(self) -> None:
        a, self.to_a = socket.socketpair()
        b, self.to_b = socket.socketpair()
        self.a, self.b = Channel(a, SECRET, initiator=True), Channel(b, SECRET)
        self.ends = (self.to_a, self.to_b)

    def greet(self) -> None:
        self.to_b.sendall(self.to_a.recv(HELLO_BYTES, socket.MSG_WAITALL))
        self.to_a.sendall(self.to_b.recv(HELLO_BYTES, socket.MSG_WAITALL))
        assert self.a.receive() == self.b.receive() == []
        assert self.a.greeted and self.b.greeted and not self.a.authenticated

    def from_a(self, message: dict[str, Any]) -> bytes:
        self.a.send(message)
        return self.to_a.recv(1 << 20)

    def close(self) -> None:
        for end in (*self.ends, self.a, self.b):
            end.close()


@pytest.fixture
def wire() -> Iterator[Wire]:
    made = Wire()
    made.greet()
    yield made
    made.close()


@given(st.lists(messages, min_size=1, max_size=8))
@settings(max_examples=50)
def test_messages_arrive_in_order_both_ways(sent: list[dict[str, Any]]) -> None:
    with pair() as (one, two):
        for message in sent:
            one.send(message)
            two.send(message)
        heard: dict[Channel, list[Any]] = {one: [], two: []}
        for _ in range(3):
            for channel in (one, two):
                heard[channel] += channel.receive()
        assert heard[one] == heard[two] == sent
        assert one.authenticated and two.authenticated


@given(st.lists(messages, min_size=1, max_size=5), st.data())
@settings(max_examples=50)
def test_any_fragmentation_is_the_same_stream(sent: list[dict[str, Any]], data: st.DataObject) -> None:
    wire = Wire()
    with closing(wire):
        wire.greet()
        stream = b"".join(wire.from_a(message) for message in sent)
        heard: list[Any] = []
        while stream:
            size = data.draw(st.integers(1, max(1, min(40, len(stream)))))
            wire.to_b.sendall(stream[:size])
            stream = stream[size:]
            heard += wire.b.receive()
        assert heard == sent


@given(st.data())
@settings(max_examples=60)
def test_a_changed_bit_is_refused(data: st.DataObject) -> None:
    wire = Wire()
    with closing(wire):
        wire.greet()
        frame = bytearray(wire.from_a({"type": "release", "reason": "x"}))
        place = data.draw(st.integers(4, len(frame) - 1))
        frame[place] ^= 1 << data.draw(st.integers(0, 7))
        wire.to_b.sendall(frame)
        with pytest.raises(ProtocolError):
            wire.b.receive()
        assert wire.b.closed


def test_a_replayed_frame_is_refused(wire: Wire) -> None:
    frame = wire.from_a({"type": "x"})
    wire.to_b.sendall(frame)
    assert wire.b.receive() == [{"type": "x"}]
    wire.to_b.sendall(frame)
    with pytest.raises(ProtocolError, match="secret"):
        wire.b.receive()


def test_frames_out_of_order_are_refused(wire: Wire) -> None:
    first, second = wire.from_a({"type": "1"}), wire.from_a({"type": "2"})
    wire.to_b.sendall(second + first)
    with pytest.raises(ProtocolError):
        wire.b.receive()


def test_a_reflected_frame_is_refused(wire: Wire) -> None:
    wire.to_a.sendall(wire.from_a({"type": "x"}))
    with pytest.raises(ProtocolError):
        wire.a.receive()


def test_a_reflected_greeting_proves_nothing() -> None:
    wire = Wire()
    with closing(wire):
        wire.to_a.sendall(wire.to_a.recv(HELLO_BYTES, socket.MSG_WAITALL))
        assert wire.a.receive() == []
        wire.to_a.sendall(wire.from_a({"type": "x"}))
        with pytest.raises(ProtocolError):
            wire.a.receive()


def test_a_frame_of_an_earlier_connection_is_refused(wire: Wire) -> None:
    frame = wire.from_a({"type": "release"})
    other = Wire()
    with closing(other):
        other.greet()
        other.to_b.sendall(frame)
        with pytest.raises(ProtocolError):
            other.b.receive()


def test_the_wrong_secret_is_refused_by_both_sides() -> None:
    with pair(SECRET, b"t" * 32) as (one, two):
        one.send({"type": "x"})
        two.send({"type": "x"})
        assert two.receive() == []  # the greeting; now its own frame is on its way
        with pytest.raises(ProtocolError, match="does not carry the job's secret"):
            one.receive()
        assert not one.authenticated and not two.authenticated


def test_something_else_on_the_port_is_refused() -> None:
    a, b = socket.socketpair()
    with closing(a):
        channel = Channel(b, SECRET)
        a.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        with pytest.raises(ProtocolError, match="expected"):
            channel.receive()
        assert channel.closed


@pytest.mark.parametrize("length", [STRANGER_LIMIT_BYTES + 1, FRAME_LIMIT_BYTES + 1, 0xFFFFFFFF])
def test_an_oversized_frame_is_refused_before_it_is_read(wire: Wire, length: int) -> None:
    wire.to_b.sendall(struct.pack(">I", length))
    with pytest.raises(ProtocolError, match="announces"):
        wire.b.receive()


def test_an_oversized_message_is_not_sent(wire: Wire) -> None:
    with pytest.raises(ProtocolError, match="over the limit"):
        wire.a.send({"type": "x", "text": "y" * (FRAME_LIMIT_BYTES + 1)})


@pytest.mark.parametrize("payload", [b"nonsense", b"[1]", b'{"no": "type"}', b'{"type": 1}', b"[" * 100_000])
def test_a_frame_that_is_no_message_is_refused(payload: bytes) -> None:
    a, b = socket.socketpair()
    with closing(a):
        channel = Channel(b, secret=None)
        a.sendall(struct.pack(">I", len(payload)) + payload)
        with pytest.raises(ProtocolError):
            channel.receive()


def test_a_stranger_who_says_nothing_blocks_nobody() -> None:
    a, b = socket.socketpair()
    with closing(a):
        channel = Channel(b, SECRET)
        assert channel.receive() == []
        channel.send({"type": "x"})
        assert channel.flush(0.01) is False
        assert channel.backlog and not channel.greeted and not channel.closed
        channel.close()


def test_a_large_message_needs_several_sends() -> None:
    with pair(None, None) as (one, two):
        message = {"type": "x", "text": "y" * (8 << 20)}
        one.send(message)
        assert one.backlog
        heard: list[Any] = []
        while not heard:
            heard += two.receive()
            one.push()
        assert heard == [message] and not one.backlog


def test_flush_waits_for_a_slow_reader() -> None:
    with pair() as (one, two):
        one.send({"type": "x", "text": "y" * (3 << 20)})
        heard: list[Any] = []

        def read() -> None:
            while not heard and not two.closed:
                heard.extend(two.receive())

        reader = threading.Thread(target=read)
        reader.start()
        assert one.flush(50.0)
        reader.join(50.0)
        assert heard[0]["text"].startswith("yyy")


def test_a_send_to_somebody_gone_is_noticed_by_the_reader() -> None:
    """The descriptor stays open until `receive` has seen the end: a selector must get to know of it."""
    with pair(None, None) as (one, two):
        two.close()
        one.send({"type": "x"})
        one.send({"type": "x"})
        assert not one.closed and one.fileno() >= 0
        assert one.flush(0.1) is False
        assert one.receive() == []
        assert one.closed
        one.send({"type": "x"})
        one.close()


def test_the_secret_never_travels() -> None:
    wire = Wire()
    with closing(wire):
        hello = wire.to_a.recv(HELLO_BYTES, socket.MSG_WAITALL)
        assert SECRET not in hello and hello.startswith(MAGIC)
        wire.to_b.sendall(hello)
        wire.to_a.sendall(wire.to_b.recv(HELLO_BYTES, socket.MSG_WAITALL))
        wire.a.receive()
        frame = wire.from_a({"type": "x"})
        assert SECRET not in frame and json.dumps({"type": "x"}, separators=(",", ":")).encode() in frame


@given(st.binary(min_size=1, max_size=64), st.integers(0, 2**64 - 1), st.binary(max_size=300))
def test_the_tag_of_a_frame_is_the_standard_code(key: bytes, sequence: int, payload: bytes) -> None:
    expected = hmac.digest(key, struct.pack(">Q", sequence) + payload, "sha256")[:16]
    made = FrameKey(key)
    assert made.tag(sequence, payload) == made.tag(sequence, payload) == expected


def test_a_channel_is_among_the_unsent_as_long_as_bytes_wait_for_its_socket() -> None:
    ours, theirs = socket.socketpair()
    unsent: set[Channel] = set()
    one, two = Channel(ours, SECRET, initiator=True, unsent=unsent), Channel(theirs, SECRET)
    try:
        two.receive()
        one.receive()
        one.send({"type": "small"})
        assert not unsent and two.receive() == [{"type": "small"}]
        one.send({"type": "large", "text": "x" * (4 << 20)})
        assert unsent == {one} and one.backlog
        found: list[dict[str, Any]] = []
        while not found:
            found = two.receive()
            for channel in tuple(unsent):
                channel.push()
        assert len(found[0]["text"]) == 4 << 20 and not unsent and not one.backlog
    finally:
        one.close()
        two.close()
