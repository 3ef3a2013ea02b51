"""Keep-alive HTTP connections to one replica. Every failure of an answer raises the same error, `ReplicaBroken`."""

from __future__ import annotations

import ssl
import weakref
from collections.abc import Awaitable, Callable
from contextlib import suppress

from tornado.http1connection import HTTP1Connection, HTTP1ConnectionParameters
from tornado.httputil import HTTPHeaders, HTTPInputError, HTTPMessageDelegate, RequestStartLine, ResponseStartLine
from tornado.iostream import IOStream, StreamClosedError
from tornado.tcpclient import TCPClient
from tornado.util import TimeoutError as TooLate

from ..system.encryption import RENEW_BYTES
from .context import ANSWER_LIMIT_BYTES

CONNECT_S = 2.0
IDLE_KEPT = 32

Head = Callable[[int, HTTPHeaders], None]
Piece = Callable[[bytes], Awaitable[None]]


class ReplicaBroken(Exception):
    """The replica did not complete its answer; ``sent``: it may have begun to work on the request."""

    def __init__(self, reason: str, sent: bool) -> None:
        super().__init__(reason)
        self.sent = sent


class _Reading(HTTPMessageDelegate):
    def __init__(self, head: Head, piece: Piece) -> None:
        self._head, self._piece = head, piece
        self.begun = self.whole = False
        self.bytes = 0
        self.error: Exception | None = None

    def headers_received(self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders) -> None:
        assert isinstance(start_line, ResponseStartLine)
        self.begun = True
        self._head(start_line.code, headers)

    async def data_received(self, chunk: bytes) -> None:
        self.bytes += len(chunk)
        if self.error is None:
            try:
                await self._piece(chunk)
            except Exception as error:  # tornado would log it and close without a reason
                self.error = error

    def finish(self) -> None:
        self.whole = True


class ReplicaConnections:
    """Connections to ``host:port``, which ``encryption`` encrypts; a connection carries one request at a time."""

    def __init__(self, host: str, port: int, encryption: ssl.SSLContext | None = None) -> None:
        self.address = host, port
        self._encryption = encryption
        self._carried: weakref.WeakKeyDictionary[IOStream, int] = weakref.WeakKeyDictionary()  # bytes under one key
        self._idle: list[IOStream] = []
        self._busy: set[IOStream] = set()
        self._closed = False
        self._client = TCPClient()
        self._parameters = HTTP1ConnectionParameters(max_body_size=ANSWER_LIMIT_BYTES)

    async def ask(
        self, path: str, headers: HTTPHeaders, body: bytes, head: Head, piece: Piece, method: str = "POST"
    ) -> None:
        """Send a request; ``head(status, headers)`` and then ``piece(bytes)`` are called as the answer comes.

        The replica may have closed a kept connection long ago, which shows only now: without any answer on it, the
        request is sent once more on a new one. Raises ReplicaBroken, also where the connection is cut meanwhile, and
        the errors of ``piece``. Cancelling closes the connection, so that the replica notices.
        """
        start = RequestStartLine(method, path, "HTTP/1.1")
        stream, stale = self._take(), False
        if stream is not None:
            reading = _Reading(head, piece)
            try:
                return await self._exchange(stream, start, headers, body, reading)
            except ReplicaBroken:
                if reading.begun or self._closed:
                    raise
                stale = True
                self._drop_idle()  # the connections used before this one are even older
        try:
            self._check()
            stream = await self._client.connect(
                *self.address, ssl_options=self._encryption, max_buffer_size=ANSWER_LIMIT_BYTES, timeout=CONNECT_S
            )
        except (OSError, StreamClosedError, TooLate) as error:
            raise ReplicaBroken(str(error) or type(error).__name__, stale) from error
        await self._exchange(stream, start, headers, body, _Reading(head, piece))

    async def _exchange(
        self, stream: IOStream, start: RequestStartLine, headers: HTTPHeaders, body: bytes, reading: _Reading
    ) -> None:
        sent = False
        self._busy.add(stream)
        try:
            self._check()  # this line may have been closed while it connected
            stream.set_nodelay(True)
            connection = HTTP1Connection(stream, True, self._parameters)
            sent = True
            await connection.write_headers(start, headers, body)
            connection.finish()
            await connection.read_response(reading)
        except (OSError, StreamClosedError, HTTPInputError) as error:
            raise ReplicaBroken(str(error) or type(error).__name__, sent) from error
        finally:
            self._carried[stream] = self._carried.get(stream, 0) + len(body) + reading.bytes
            fresh = self._carried[stream] < RENEW_BYTES
            self._put_back(stream, fresh and reading.whole and reading.error is None)
        if reading.error is not None:
            raise reading.error
        if not reading.whole:
            raise ReplicaBroken("the connection ended before the answer did", sent)

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
        """Take no further request, and close idle connections."""
        self._closed = True
        self._drop_idle()

    def _drop_idle(self) -> None:
        for stream in self._idle:
            with suppress(OSError):
                stream.close()
        self._idle.clear()

    def cut(self) -> None:
        """Close all connections; requests in progress fail at once with ReplicaBroken."""
        self.close()
        for stream in list(self._busy):
            with suppress(OSError):
                stream.close()
