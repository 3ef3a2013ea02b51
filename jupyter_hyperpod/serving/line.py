"""Kept-alive HTTP connections to one replica. Whatever happens to an answer on its way is one error: `Broken`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress

from tornado.http1connection import HTTP1Connection, HTTP1ConnectionParameters
from tornado.httputil import HTTPHeaders, HTTPInputError, HTTPMessageDelegate, RequestStartLine, ResponseStartLine
from tornado.iostream import IOStream, StreamClosedError
from tornado.tcpclient import TCPClient
from tornado.util import TimeoutError as TooLate

BODY_LIMIT_BYTES = 64 << 20
CONNECT_S = 2.0
IDLE_KEPT = 32

Head = Callable[[int, HTTPHeaders], None]
Piece = Callable[[bytes], Awaitable[None]]


class Broken(Exception):
    """The replica did not answer to the end; ``sent`` tells whether it may have begun to."""

    def __init__(self, reason: str, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


class _Reading(HTTPMessageDelegate):
    def __init__(self, head: Head, piece: Piece) -> None:
        self._head, self._piece = head, piece
        self.whole = False
        self.error: Exception | None = None

    def headers_received(self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders) -> None:
        assert isinstance(start_line, ResponseStartLine)
        self._head(start_line.code, headers)

    async def data_received(self, chunk: bytes) -> None:
        if self.error is None:
            try:
                await self._piece(chunk)
            except Exception as error:  # tornado would log it and close without a reason
                self.error = error

    def finish(self) -> None:
        self.whole = True


class Line:
    """Connections to ``host:port``; a connection carries one request at a time."""

    def __init__(self, host: str, port: int) -> None:
        self.address = host, port
        self._idle: list[IOStream] = []
        self._busy: set[IOStream] = set()
        self._closed = False
        self._client = TCPClient()
        self._parameters = HTTP1ConnectionParameters(max_body_size=BODY_LIMIT_BYTES)

    async def ask(self, path: str, headers: HTTPHeaders, body: bytes, head: Head, piece: Piece) -> None:
        """Send a request; ``head(status, headers)`` and then ``piece(bytes)`` are called as the answer comes.

        Raises Broken, also where the connection is cut meanwhile, and what ``piece`` raises. Being cancelled closes the
        connection, by which the replica notices.
        """
        sent, stream = False, None
        reading = _Reading(head, piece)
        try:
            stream = await self._open()
            self._check()  # it may have been closed while it connected
            stream.set_nodelay(True)
            connection = HTTP1Connection(stream, True, self._parameters)
            sent = True
            await connection.write_headers(RequestStartLine("POST", path, "HTTP/1.1"), headers, body)
            connection.finish()
            await connection.read_response(reading)
        except (OSError, StreamClosedError, HTTPInputError, TooLate) as error:
            raise Broken(str(error) or type(error).__name__, sent) from error
        finally:
            if stream is not None:
                self._put_back(stream, reading.whole and reading.error is None)
        if reading.error is not None:
            raise reading.error
        if not reading.whole:
            raise Broken("the connection ended before the answer did", sent)

    async def _open(self) -> IOStream:
        self._check()
        stream = self._take()
        if stream is None:
            stream = await self._client.connect(*self.address, max_buffer_size=BODY_LIMIT_BYTES, timeout=CONNECT_S)
        self._busy.add(stream)
        return stream

    def _check(self) -> None:
        if self._closed:
            raise ConnectionAbortedError("the replica was given up")

    def _take(self) -> IOStream | None:
        while self._idle:
            stream = self._idle.pop()
            if not stream.closed():
                return stream
        return None

    def _put_back(self, stream: IOStream, good: bool) -> None:
        self._busy.discard(stream)
        if good and not self._closed and not stream.closed() and len(self._idle) < IDLE_KEPT:
            self._idle.append(stream)
        else:
            stream.close()

    def close(self) -> None:
        """Take no further request, and close the connections that carry nothing."""
        self._closed = True
        for stream in self._idle:
            with suppress(OSError):
                stream.close()
        self._idle.clear()

    def cut(self) -> None:
        """Close all connections: whoever waits for an answer hears at once that it is broken."""
        self.close()
        for stream in list(self._busy):
            with suppress(OSError):
                stream.close()
