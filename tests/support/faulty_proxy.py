"""A proxy that misbehaves on purpose, between a client and any HTTP/1.1 server.

It forwards requests as they are (so signatures stay valid: the client's Host header is the proxy's) and disturbs some
answers. Which ones is drawn from a seed and the request's number, so a run can be repeated, and what is done can be
changed while it runs: assign `FaultProxy.faults`.

    python -m tests.support.faulty_proxy HOST:PORT

runs it as a process of its own: it prints ``{"port": …}``, takes a line of JSON on standard input as new `Faults` and
answers it with its counters, and ends with its standard input.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import struct
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from .loopback_server import LoopbackServer

KINDS = {
    "503": "answered 503 Slow Down instead of being forwarded",
    "429": "answered 429 Too Many Requests instead of being forwarded",
    "reset": "the connection is reset (RST) inside the body",
    "truncate": "the connection is closed (FIN) inside the body",
    "short": "fewer bytes than asked for, under a Content-Length that agrees with them",
    "corrupt": "one byte of the body is another",
    "etag": "the answer carries another ETag",
    "stall": "the body stands still for good, the connection stays open",
}
LONGEST_HEAD = 64 * 1024
BLOCK = 256 * 1024
CONNECT_TIMEOUT_S = 30.0
CHUNKED = -1
REFUSALS = {"503": ("SlowDown", "Slow Down"), "429": ("TooManyRequests", "Too Many Requests")}
WRONG_ETAG = b'"00000000000000000000000000000000"'
ABORT = struct.pack("ii", 1, 0)  # SO_LINGER on, zero seconds: close sends RST


@dataclass(frozen=True, slots=True)
class Fate:
    """What befalls one request: one of `KINDS`, and where in the body, as a fraction unless ``at_byte`` is given."""

    kind: str
    place: float = 0.0
    at_byte: int | None = None

    def cut(self, length: int) -> int:
        """The first byte of a body of ``length`` that is hit."""
        return min(int(self.place * length) if self.at_byte is None else self.at_byte, length - 1)


@dataclass(frozen=True, slots=True)
class Faults:
    """How requests are disturbed.

    A request whose method is in ``methods`` is hit with ``probability`` by one of ``kinds`` (see `KINDS`), but for the
    first ``after`` ones, and no more than ``at_most`` in all; ``at_byte`` is where in the body, a random place where it
    is None. ``latency_s`` passes before every answer; ``bytes_per_s`` bounds each connection. ``retry_after_s`` is
    sent with 503 and 429.
    """

    kinds: tuple[str, ...] = ()
    probability: float = 1.0
    seed: int = 0
    after: int = 0
    at_most: int | None = None
    at_byte: int | None = None
    methods: tuple[str, ...] = ("GET",)
    retry_after_s: float | None = None
    latency_s: float = 0.0
    bytes_per_s: float | None = None

    def __post_init__(self) -> None:
        unknown = set(self.kinds) - KINDS.keys()
        if unknown:
            raise ValueError(f"no fault named {', '.join(sorted(unknown))}; expected some of {', '.join(KINDS)}")
        if not 0 <= self.probability <= 1:
            raise ValueError(f"probability is {self.probability:g}, expected 0 to 1")

    def draw(self, number: int) -> Fate | None:
        """What befalls the request of this number; None where nothing does."""
        if not self.kinds or number < self.after:
            return None
        dice = random.Random(f"{self.seed}:{number}")
        if dice.random() >= self.probability:
            return None
        return Fate(dice.choice(self.kinds), dice.random(), self.at_byte)


NONE = Faults()
Sink = Callable[[bytes], object]


class _Left(Exception):
    """The client or the server has gone, or a fault ended the connection."""


class _Stream:
    """A socket read by heads and blocks."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.pending = b""

    def head(self) -> bytes:
        """Everything up to the empty line, that included; raises _Left where the other side closed before."""
        while b"\r\n\r\n" not in self.pending:
            more = self.socket.recv(BLOCK)
            if not more or len(self.pending) > LONGEST_HEAD:
                raise _Left
            self.pending += more
        head, _, self.pending = self.pending.partition(b"\r\n\r\n")
        return head + b"\r\n\r\n"

    def block(self, most: int) -> bytes:
        """Up to ``most`` bytes; raises _Left at the end of the stream."""
        found = self.pending[:most] if self.pending else self.socket.recv(min(most, BLOCK))
        self.pending = self.pending[len(found) :]
        if not found:
            raise _Left
        return found

    def line(self) -> bytes:
        """One line with its end."""
        while b"\r\n" not in self.pending:
            more = self.socket.recv(BLOCK)
            if not more:
                raise _Left
            self.pending += more
        line, _, self.pending = self.pending.partition(b"\r\n")
        return line + b"\r\n"


class FaultProxy(LoopbackServer):
    """Forwards to ``upstream`` (host, port) from a port of the loopback interface until `close`."""

    def __init__(self, upstream: tuple[str, int], faults: Faults = NONE) -> None:
        super().__init__()
        self.upstream = upstream
        self.counts: Counter[str] = Counter()
        self._faults = faults
        self._number = self._hit = 0
        self.start()

    @property
    def endpoint(self) -> str:
        """``http://127.0.0.1:PORT``."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def faults(self) -> Faults:
        """How requests are disturbed from now on; assigning counts requests from zero again."""
        return self._faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        with self._lock:
            self._faults, self._number, self._hit = faults, 0, 0

    def __enter__(self) -> FaultProxy:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def serve(self, connection: socket.socket) -> None:
        """Forward requests until either side leaves."""
        server = socket.create_connection(self.upstream, CONNECT_TIMEOUT_S)
        with server, self.ended_by_close(server), suppress(_Left):
            for one in (connection, server):
                one.settimeout(None)
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            ends = _Stream(connection), _Stream(server)
            while not self.closing.is_set():
                self._exchange(*ends)

    def _exchange(self, client: _Stream, server: _Stream) -> None:
        """One request and its answer."""
        head = client.head()
        method = head.split(b" ", 1)[0].decode("latin-1")
        faults, fate = self._fate(method)
        if faults.latency_s:
            self.closing.wait(faults.latency_s)
        if fate and fate.kind in REFUSALS:
            _refuse(client, head, fate.kind, faults.retry_after_s)
            return
        if _field(head, b"expect"):
            client.socket.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            head = _without(head, b"expect")
        server.socket.sendall(head)
        _pass_on(client, server.socket.sendall, _framing(head, answer=False), faults.bytes_per_s)
        answer = server.head()
        while answer.startswith(b"HTTP/1.1 1"):
            answer = server.head()
        framing = 0 if method == "HEAD" or _bodiless(answer) else _framing(answer, answer=True)
        if fate and fate.kind == "etag":
            answer = _with(answer, b"ETag", WRONG_ETAG)
        elif fate and framing is not None and framing > 0:
            self._disturb(client, server, answer, framing, fate)
            return
        client.socket.sendall(answer)
        _pass_on(server, client.socket.sendall, framing, faults.bytes_per_s)
        if framing is None or _field(answer, b"connection").lower() == b"close":
            raise _Left

    def _fate(self, method: str) -> tuple[Faults, Fate | None]:
        """Count a request and draw what befalls it."""
        with self._lock:
            faults = self._faults
            self.counts["requests"] += 1
            if method not in faults.methods or (faults.at_most is not None and self._hit >= faults.at_most):
                return faults, None
            fate = faults.draw(self._number)
            self._number += 1
            if fate:
                self._hit += 1
                self.counts[fate.kind] += 1
            return faults, fate

    def _disturb(self, client: _Stream, server: _Stream, answer: bytes, length: int, fate: Fate) -> None:
        """Send an answer whose body is wrong in the way of ``fate``; most such answers end the connection."""
        cut = fate.cut(length)
        if fate.kind == "short":
            answer = _with(answer, b"Content-Length", str(cut).encode())
        client.socket.sendall(answer)
        _copy(server, client.socket.sendall, cut, None)
        if fate.kind == "corrupt":
            client.socket.sendall(bytes([server.block(1)[0] ^ 0xFF]))
            _copy(server, client.socket.sendall, length - cut - 1, None)
            return
        if fate.kind == "stall":
            self._wait_for_leaving(client)
        if fate.kind == "reset":
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
        raise _Left

    def _wait_for_leaving(self, client: _Stream) -> None:
        """Until the client has had enough, or the proxy is closed."""
        with suppress(OSError):
            while not self.closing.is_set() and client.socket.recv(BLOCK):
                pass


def _refuse(client: _Stream, head: bytes, code: str, retry_after_s: float | None) -> None:
    """Answer without asking the server, once the body has come; one that is only announced ends the connection."""
    announced = bool(_field(head, b"expect"))
    if not announced:
        _pass_on(client, lambda _: None, _framing(head, answer=False), None)
    name, reason = REFUSALS[code]
    body = b"" if head.startswith(b"HEAD ") else f"<Error><Code>{name}</Code></Error>".encode()
    lines = [f"HTTP/1.1 {code} {reason}", "Content-Type: application/xml", f"Content-Length: {len(body)}"]
    if retry_after_s is not None:
        lines.append(f"Retry-After: {retry_after_s:g}")
    lines.append(f"Connection: {'close' if announced else 'keep-alive'}")
    client.socket.sendall("\r\n".join([*lines, "", ""]).encode() + body)
    if announced:
        raise _Left


def _field(head: bytes, name: bytes) -> bytes:
    """A header's value, empty where it is missing."""
    for line in head.split(b"\r\n")[1:]:
        found, _, value = line.partition(b":")
        if found.lower() == name:
            return value.strip()
    return b""


def _without(head: bytes, name: bytes) -> bytes:
    lines = head.split(b"\r\n")
    return b"\r\n".join([lines[0], *(line for line in lines[1:] if line.partition(b":")[0].lower() != name)])


def _with(head: bytes, name: bytes, value: bytes) -> bytes:
    return _without(head, name.lower())[:-2] + name + b": " + value + b"\r\n\r\n"


def _bodiless(answer: bytes) -> bool:
    return answer.split(b" ", 2)[1] in (b"204", b"304")


def _framing(head: bytes, *, answer: bool) -> int | None:
    """How the body is delimited: its length, CHUNKED, None for the end of the connection (answers only)."""
    if b"chunked" in _field(head, b"transfer-encoding").lower():
        return CHUNKED
    length = _field(head, b"content-length")
    if not length:
        return None if answer else 0
    return int(length)


def _pass_on(source: _Stream, sink: Sink, framing: int | None, bytes_per_s: float | None) -> None:
    """Forward a body."""
    if framing == CHUNKED:
        while (size := source.line()).strip() != b"0":
            sink(size)
            _copy(source, sink, int(size.split(b";")[0], 16) + 2, bytes_per_s)
        sink(size)
        while (trailer := source.line()) != b"\r\n":
            sink(trailer)
        sink(trailer)
    elif framing is None:
        with suppress(_Left):
            while True:
                sink(source.block(BLOCK))
    else:
        _copy(source, sink, framing, bytes_per_s)


def _copy(source: _Stream, sink: Sink, length: int, bytes_per_s: float | None) -> None:
    """Forward ``length`` bytes, fifty portions a second where the rate is bounded."""
    started, done = time.monotonic(), 0
    while done < length:
        most = length - done if bytes_per_s is None else min(length - done, max(int(bytes_per_s / 50), 1))
        block = source.block(most)
        sink(block)
        done += len(block)
        if bytes_per_s is not None:
            time.sleep(max(0.0, started + done / bytes_per_s - time.monotonic()))


def main(arguments: Sequence[str] | None = None) -> int:
    """Forward until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.faulty_proxy", description="A faulty proxy.")
    parser.add_argument("upstream", help="HOST:PORT of the server")
    host, _, port = parser.parse_args(arguments).upstream.rpartition(":")
    with FaultProxy((host, int(port))) as proxy:
        print(json.dumps({"port": proxy.port}), flush=True)
        for line in sys.stdin:
            if line.strip():
                fields: dict[str, Any] = json.loads(line)
                fields |= {name: tuple(fields[name]) for name in ("kinds", "methods") if name in fields}
                proxy.faults = Faults(**fields)
            print(json.dumps(dict(proxy.counts)), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
