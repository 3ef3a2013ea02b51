"""A small HTTP/1.1 client for ranges: blocking sockets receive each body directly into its final memory.

The kernel copies each byte once, into its final place: `MSG_WAITALL` lets one call do it for a whole chunk, and a
receive timeout on the socket bounds a stall without polling.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import cast

from .http_target import Proxy, Target

MAX_HEAD_BYTES = 65_536
RECEIVE_BYTES = 16_384
BATCH_BYTES = 512 * 1024  # waking up for every packet would cost a fifth more CPU time
_TIMEVAL = struct.Struct("ll")
_END = b"\r\n\r\n"


class Cancelled(Exception):
    """These bytes are not needed any more: they have been read otherwise, or the load has failed."""


class ConnectionBroken(Exception):
    """A connection failed after `got` bytes of the body; a retry may help. `fresh`: without an answer before."""

    def __init__(self, reason: str, got: int = 0, fresh: bool = True) -> None:
        super().__init__(reason)
        self.got, self.fresh = got, fresh


class Malformed(Exception):
    """The answer is not HTTP/1.1 as this client understands it."""


class Cancel:
    """Cancels one read from another thread, even in the middle of a receive."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        self._event = threading.Event()

    def cancel(self) -> None:
        """Make the read fail with Cancelled, soon."""
        self._event.set()
        with self._lock:
            if self._connection is not None:
                self._connection.abort()

    def check(self) -> None:
        """Raise Cancelled if the read was cancelled."""
        if self._event.is_set():
            raise Cancelled

    def sleep(self, seconds: float) -> None:
        """Wait, or raise Cancelled."""
        if self._event.wait(seconds):
            raise Cancelled

    @contextmanager
    def over(self, connection: Connection) -> Iterator[None]:
        """The read uses `connection` within this block."""
        with self._lock:
            self.check()
            self._connection = connection
        try:
            yield
        except ConnectionBroken:
            self.check()
            raise
        finally:
            with self._lock:
                self._connection = None


@dataclass(frozen=True, slots=True)
class Head:
    """Status and header fields (lower case) of a response."""

    status: int
    fields: dict[str, str]

    @property
    def length(self) -> int | None:
        """Bytes of the body, None if not announced."""
        text = self.fields.get("content-length", "")
        return int(text) if text.isdigit() else None


class Connection:
    """One keep-alive connection. Only `abort` is thread-safe."""

    def __init__(self, target: Target) -> None:
        self._buffer = bytearray()
        self._plain = target.tls is None
        self.served = 0  # responses so far
        self.spent = False  # a body was read only partly, so the connection cannot be reused
        self._socket = _connect(target)

    def send(self, request: bytes | memoryview) -> None:
        """Send one or more requests, or a part of one. Raises ConnectionBroken."""
        try:
            self._socket.sendall(request)
        except OSError as error:
            raise self._broken(error) from None

    def head(self) -> Head:
        """Receive a response's head. Raises ConnectionBroken and Malformed."""
        while (end := self._buffer.find(_END)) < 0:
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise Malformed(f"a response head of more than {MAX_HEAD_BYTES} bytes")
            self._buffer += self._receive()
        head = _parse_head(bytes(self._buffer[:end]))
        del self._buffer[: end + len(_END)]
        return self.head() if 100 <= head.status < 200 else head

    def fill(self, view: memoryview) -> None:
        """Receive exactly `view`. Raises ConnectionBroken with the bytes that came."""
        got = min(len(self._buffer), len(view))
        if got:
            view[:got] = self._buffer[:got]
            del self._buffer[:got]
        if self._plain and len(view) - got > 2 * BATCH_BYTES:
            self._wake_at(BATCH_BYTES)
            got = self._fill_until(view, got, len(view) - BATCH_BYTES)
            self._wake_at(1)
        self._fill_until(view, got, len(view))
        self.served += 1

    def _fill_until(self, view: memoryview, got: int, end: int) -> int:
        """Receive `view[got:end]`; returns `end`. A part smaller than a batch is taken after the timeout."""
        while got < end:
            try:
                count = self._socket.recv_into(view[got:end], 0, socket.MSG_WAITALL if self._plain else 0)
            except OSError as error:
                raise self._broken(error, got) from None
            if not count:
                raise ConnectionBroken(f"the connection was closed after {got} of {len(view)} bytes", got)
            got += count
        return end

    def _wake_at(self, count: int) -> None:
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)

    def rest(self, head: Head, limit: int) -> bytes:
        """Receive the body of a short response: at most `limit` bytes of it. Raises ConnectionBroken and Malformed."""
        if head.fields.get("transfer-encoding", "").lower() == "chunked":
            return self._chunked(limit)
        length = head.length if head.length is not None else limit
        self.spent = head.length is None or length > limit
        content = memoryview(bytearray(min(length, limit)))
        try:
            self.fill(content)
        except ConnectionBroken as error:
            if head.length is not None:
                raise
            return bytes(content[: error.got])
        return bytes(content)

    def abort(self) -> None:
        """End the present operation; may be called from another thread.

        With TLS, its own `shutdown` is not used: it drops the cipher first, and a receiving thread would then write
        encrypted bytes into memory that another connection may have filled.
        """
        with suppress(OSError):
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()

    def _chunked(self, limit: int) -> bytes:
        content = bytearray()
        while True:
            while b"\r\n" not in self._buffer:
                self._buffer += self._receive()
            line, _, rest = bytes(self._buffer).partition(b"\r\n")
            self._buffer = bytearray(rest)
            try:
                length = int(line.split(b";")[0], 16)
            except ValueError:
                raise Malformed(f"a chunk that begins with {line[:20]!r}") from None
            if length < 0:
                raise Malformed(f"a chunk of {length} bytes")
            room = limit - len(content)
            piece = bytearray(length + 2 if length <= room else room)
            self.fill(memoryview(piece))
            content += piece[:length]
            self.spent = length > room
            if self.spent or not length:
                return bytes(content)

    def _receive(self) -> bytes:
        try:
            content = self._socket.recv(RECEIVE_BYTES)
        except OSError as error:
            raise self._broken(error) from None
        if not content:
            raise ConnectionBroken("the connection was closed before an answer", fresh=not self.served)
        return content

    def _broken(self, error: OSError, got: int = 0) -> ConnectionBroken:
        stalled = isinstance(error, (TimeoutError, BlockingIOError))
        reason = "nothing was received for too long" if stalled else f"the connection failed: {error.strerror or error}"
        return ConnectionBroken(reason, got, fresh=stalled or not self.served)


def _parse_head(content: bytes) -> Head:
    lines = content.decode("latin-1").split("\r\n")
    version, _, rest = lines[0].partition(" ")
    if version not in ("HTTP/1.1", "HTTP/1.0") or not (len(rest) >= 3 and rest[:3].isdigit()):
        raise Malformed(f"an answer that begins with {lines[0][:40]!r}")
    fields: dict[str, str] = {"connection": "close"} if version == "HTTP/1.0" else {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon:
            raise Malformed(f"a header field {line[:40]!r}")
        fields[name.strip().lower()] = value.strip()
    return Head(int(rest[:3]), fields)


def _connect(target: Target) -> socket.socket:
    proxy = target.proxy
    address = (proxy.host, proxy.port) if proxy else (target.host, target.port)
    host = address[0].encode() if address[0].isascii() else address[0]  # text would load tables of alphabets
    try:
        raw = socket.create_connection((cast(str, host), address[1]), target.timeout_s)
        try:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if proxy and target.tls:
                _tunnel(raw, target.address, proxy)
            if target.tls:  # TLS reads single records, where a timeout in Python costs nothing
                return target.tls.wrap_socket(raw, server_hostname=target.host)
            raw.settimeout(None)
            set_timeout(raw, target.timeout_s)
            return raw
        except BaseException:
            raw.close()
            raise
    except ssl.SSLCertVerificationError as error:
        raise Malformed(f"a certificate that is not trusted ({error.verify_message})") from None
    except OSError as error:
        where = f"{address[0]}:{address[1]}"
        raise ConnectionBroken(f"cannot connect to {where}: {error.strerror or error}") from None


def set_timeout(sock: socket.socket, seconds: float) -> None:
    """Let the kernel end calls that wait for longer (0: never); the socket stays blocking."""
    timeout = _TIMEVAL.pack(int(seconds), int(seconds % 1 * 1e6))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)


def _tunnel(raw: socket.socket, where: str, proxy: Proxy) -> None:
    lines = [f"CONNECT {where} HTTP/1.1", f"Host: {where}", *(f"{key}: {value}" for key, value in proxy.fields.items())]
    raw.sendall("\r\n".join([*lines, "\r\n"]).encode())
    answer = b""
    while _END not in answer:
        piece = raw.recv(RECEIVE_BYTES)
        if not piece or len(answer) > MAX_HEAD_BYTES:
            raise OSError("the proxy closed the connection")
        answer += piece
    status = _parse_head(answer.partition(_END)[0]).status
    if status != 200:
        raise Malformed(f"status {status} of the proxy for a tunnel to {where}")


class Connections:
    """Idle connections to one target, newest first. Thread-safe.

    Threads make `early` of them at once, so that they are ready when the header has been read.
    """

    def __init__(self, target: Target, early: int = 0) -> None:
        self.target = target
        self._idle: deque[Connection] = deque()
        self._closed = False
        for _ in range(early):
            threading.Thread(target=self._connect, name="connect", daemon=True).start()

    @contextmanager
    def borrow(self, cancel: Cancel) -> Iterator[Connection]:
        """A connection for one exchange; it is kept only if the exchange succeeds."""
        try:
            connection = self._idle.pop()
        except IndexError:
            connection = Connection(self.target)
        try:
            with cancel.over(connection):
                yield connection
        except BaseException:
            connection.close()
            raise
        if connection.spent:
            connection.close()
            return
        self._idle.append(connection)
        if self._closed:  # the load has ended during this exchange
            self.forget_idle()

    def _connect(self) -> None:
        with suppress(ConnectionBroken, Malformed):  # the thread that needs a connection gets the error
            self._idle.append(Connection(self.target))
        if self._closed:
            self.forget_idle()

    def close(self) -> None:
        """Close idle connections now and the others at the end of their exchange."""
        self._closed = True
        self.forget_idle()

    def forget_idle(self) -> None:
        """Close idle connections: the server may have closed them all."""
        while self._idle:
            with suppress(IndexError):
                self._idle.pop().close()
