"""The HTTP server of gateways and replicas. Callers without a token occupy neither all connections nor memory."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from typing import Any

from tornado.http1connection import HTTP1Connection
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPHeaders, HTTPMessageDelegate, HTTPServerRequest, RequestStartLine, ResponseStartLine
from tornado.iostream import IOStream
from tornado.routing import Router
from tornado.web import Application, RequestHandler

from .context import AUTHORIZATION, REQUEST_LIMIT_BYTES, error_body

MOST_STRANGERS = 128
IDLE_S = 60.0  # a connection without a complete request is closed after this time
BODY_S = 10.0  # for the whole body of a request without a token

Knows = Callable[[str | None], bool]  # whether it knows a request's Authorization header


class JsonHandler(RequestHandler):
    def refuse(self, status: int, message: str, **more: str) -> None:
        """Answer with an error, as JSON; ``more`` are fields of it."""
        self.set_status(status)
        self.finish(error_body(status, message, **more))


class GuardedServer(HTTPServer):
    """Closes the oldest connection without a token where these occupy all places."""

    def initialize(  # type: ignore[override]
        self, application: Application, knows: Knows, encryption: ssl.SSLContext | None = None
    ) -> None:
        """``knows(header)``: whether the Authorization header has a valid token."""
        super().initialize(
            _Listening(application, self._heard),
            ssl_options=encryption,
            idle_connection_timeout=IDLE_S,
            max_body_size=REQUEST_LIMIT_BYTES,
            max_buffer_size=2 * REQUEST_LIMIT_BYTES,
        )
        self._knows = knows
        self._strangers: dict[IOStream, None] = {}  # oldest first

    def handle_stream(self, stream: IOStream, address: tuple[Any, ...]) -> None:
        self._strangers[stream] = None
        if len(self._strangers) > MOST_STRANGERS:
            self._strangers = {stranger: None for stranger in self._strangers if not stranger.closed()}
        if len(self._strangers) > MOST_STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]
            oldest.close()
        super().handle_stream(stream, address)

    def _heard(self, request: HTTPServerRequest) -> bool:
        """Whether the request has a valid token."""
        known, connection = self._knows(request.headers.get(AUTHORIZATION)), request.connection
        if isinstance(connection, HTTP1Connection):
            if known:
                self._strangers.pop(connection.stream, None)
            else:
                connection.set_body_timeout(BODY_S)
        return known


class _Listening(Router):
    """Tells of every request when its headers have arrived, and leaves the routes to the application."""

    def __init__(self, application: Application, heard: Callable[[HTTPServerRequest], bool]) -> None:
        self._application, self._heard = application, heard

    def find_handler(self, request: HTTPServerRequest, **more: Any) -> HTTPMessageDelegate | None:
        known = self._heard(request)
        handler = self._application.find_handler(request, **more)
        return handler if known or handler is None else _WithoutBody(handler)


class _WithoutBody(HTTPMessageDelegate):
    """Answers when the whole request has been sent, as for any other, but keeps nothing of its body."""

    def __init__(self, handler: HTTPMessageDelegate) -> None:
        self._handler = handler

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None] | None:
        return self._handler.headers_received(start_line, headers)

    def data_received(self, chunk: bytes) -> None:
        """Nobody reads it."""

    def finish(self) -> None:
        self._handler.finish()

    def on_connection_close(self) -> None:
        self._handler.on_connection_close()
