"""The HTTP server of gateways and replicas. Callers without a token cannot occupy all its connections."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from tornado.http1connection import HTTP1Connection
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPConnection, HTTPHeaders, HTTPMessageDelegate, RequestStartLine, ResponseStartLine
from tornado.iostream import IOStream
from tornado.web import Application

from .context import AUTHORIZATION, REQUEST_LIMIT_BYTES

MOST_STRANGERS = 128
IDLE_S = 60.0  # a connection without a complete request is closed after this time

Knows = Callable[[str | None], bool]  # whether it knows a request's Authorization header


class GuardedServer(HTTPServer):
    """Closes the oldest connection without a token where these occupy all places."""

    def initialize(self, application: Application, knows: Knows) -> None:  # type: ignore[override]
        """``knows(header)``: whether the Authorization header has a valid token."""
        super().initialize(
            application,
            idle_connection_timeout=IDLE_S,
            max_body_size=REQUEST_LIMIT_BYTES,
            max_buffer_size=2 * REQUEST_LIMIT_BYTES,
        )
        self._knows = knows
        self._strangers: dict[IOStream, None] = {}  # oldest first

    def handle_stream(self, stream: IOStream, address: tuple[Any, ...]) -> None:
        """Accept a connection."""
        self._strangers[stream] = None
        if len(self._strangers) > MOST_STRANGERS:
            self._strangers = {stranger: None for stranger in self._strangers if not stranger.closed()}
        if len(self._strangers) > MOST_STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.close()
        super().handle_stream(stream, address)

    def start_request(self, server_conn: object, request_conn: HTTPConnection) -> HTTPMessageDelegate:
        """A request begins."""
        return _Reading(super().start_request(server_conn, request_conn), self, request_conn)

    def heard(self, connection: HTTPConnection, headers: HTTPHeaders) -> None:
        """The headers of a request have arrived."""
        if self._knows(headers.get(AUTHORIZATION)) and isinstance(connection, HTTP1Connection):
            self._strangers.pop(connection.stream, None)


class _Reading(HTTPMessageDelegate):
    def __init__(self, inner: HTTPMessageDelegate, server: GuardedServer, connection: HTTPConnection) -> None:
        self._inner, self._server, self._connection = inner, server, connection

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None] | None:
        self._server.heard(self._connection, headers)
        return self._inner.headers_received(start_line, headers)

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        return self._inner.data_received(chunk)

    def finish(self) -> None:
        self._inner.finish()

    def on_connection_close(self) -> None:
        self._inner.on_connection_close()
