"""The HTTP server of gateways and replicas. Callers without a token cannot occupy all its connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tornado.http1connection import HTTP1Connection
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPMessageDelegate, HTTPServerRequest
from tornado.iostream import IOStream
from tornado.routing import Router
from tornado.web import Application, RequestHandler

from .context import AUTHORIZATION, REQUEST_LIMIT_BYTES, error_body

MOST_STRANGERS = 128
IDLE_S = 60.0  # a connection without a complete request is closed after this time

Knows = Callable[[str | None], bool]  # whether it knows a request's Authorization header


class JsonHandler(RequestHandler):
    def refuse(self, status: int, message: str) -> None:
        """Answer with an error, as JSON."""
        self.set_status(status)
        self.finish(error_body(status, message))


class GuardedServer(HTTPServer):
    """Closes the oldest connection without a token where these occupy all places."""

    def initialize(self, application: Application, knows: Knows) -> None:  # type: ignore[override]
        """``knows(header)``: whether the Authorization header has a valid token."""
        super().initialize(
            _Listening(application, self._heard),
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

    def _heard(self, request: HTTPServerRequest) -> None:
        if self._knows(request.headers.get(AUTHORIZATION)) and isinstance(request.connection, HTTP1Connection):
            self._strangers.pop(request.connection.stream, None)


class _Listening(Router):
    """Tells of every request when its headers have arrived, and leaves the routes to the application."""

    def __init__(self, application: Application, heard: Callable[[HTTPServerRequest], None]) -> None:
        self._application, self._heard = application, heard

    def find_handler(self, request: HTTPServerRequest, **more: Any) -> HTTPMessageDelegate | None:
        self._heard(request)
        return self._application.find_handler(request, **more)
