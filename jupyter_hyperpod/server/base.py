"""The base of all REST handlers: authentication, size limits, JSON, and work in threads."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

from jupyter_server.base.handlers import APIHandler
from tornado import web

from ..core.errors import HyperpodError, UserError
from ..storage.store import Store
from ..system.users import own_name
from .errors import JsonErrors, RequestRefused, refusal
from .services import SETTINGS, Services

ROOT = "/jupyter_hyperpod/api/v1"
Result = TypeVar("Result")
_EXACT = 2.0**53  # larger integers are not exact as floating-point numbers
_LENGTH = re.compile(r"[0-9]{1,18}")
_MADE_UP = re.compile(r"[0-9a-f]{32}")  # as `IdentityProvider.generate_anonymous_user` names them


def _number(text: str) -> int | float:
    """A number of a JSON text: 8.0 is an integer there."""
    value = float(text)
    return int(value) if value.is_integer() and abs(value) < _EXACT else value


@web.stream_request_body
class ApiHandler(JsonErrors, APIHandler):
    """Authentication, a bounded body, JSON in and out, and errors as ``{"message", "hint"?}``."""

    auth_resource = SETTINGS  # see services.py

    def initialize(self, services: Services) -> None:
        self.services = services
        self.store = services.job_store
        self._body = bytearray()

    async def prepare(self) -> None:  # type: ignore[override]
        """Refuse unauthenticated requests, and too large bodies before reading them."""
        limit, told = self.limit_bytes(), self.request.headers.get("Content-Length", "0")
        if not _LENGTH.fullmatch(told):
            raise RequestRefused(400, f"Content-Length is {told[:80]!r}; expected a number of bytes")
        length = int(told)
        self.request.connection.set_max_body_size(limit)  # type: ignore[union-attr]
        try:
            await super().prepare()
        except web.HTTPError as error:
            if not 0 < length <= self.services.max_body_bytes:
                raise
            self._refuse_after_the_body(error)
        if length > limit:
            raise RequestRefused(413, f"the body is larger than {limit} bytes")

    def _refuse_after_the_body(self, error: web.HTTPError) -> None:
        """Answer with ``error`` when the body has come.

        Tornado would close the connection under a proxy that still sends it, which would answer in its own words.
        """

        def refuse(*_: str) -> None:
            raise error

        assert self.request.method is not None
        setattr(self, self.request.method.lower(), refuse)

    def limit_bytes(self) -> int:
        """The largest allowed body."""
        return self.services.max_body_bytes

    def data_received(self, chunk: bytes) -> None:
        """Collect the body; `prepare` has bounded it."""
        self._body += chunk

    def body(self, operation: str) -> dict[str, Any]:
        """The request's JSON, checked against the OpenAPI file; an empty body is ``{}``. Raises RequestRefused."""
        try:
            value = json.loads(bytes(self._body) or b"{}", parse_float=_number)
        except (ValueError, RecursionError) as error:
            raise RequestRefused(400, f"the body is not JSON: {error}") from error
        try:
            return self.services.contract.check_body(operation, value)
        except UserError as error:
            raise refusal(error) from error

    def query(self, operation: str) -> dict[str, Any]:
        """The request's parameters, checked against the OpenAPI file. Raises RequestRefused."""
        given = self.request.query_arguments
        try:
            return self.services.contract.check_query(
                operation, {name: [value.decode("utf-8", "replace") for value in given[name]] for name in given}
            )
        except UserError as error:
            raise refusal(error) from error

    async def call(self, function: Callable[..., Result], *arguments: Any, **named: Any) -> Result:
        """Run ``function(store, …)`` in a thread; raises its expected errors as RequestRefused."""
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(self.services.requests, lambda: function(self.store, *arguments, **named))
        except (HyperpodError, OSError) as error:
            raise refusal(error) from error

    def identity(self) -> str:
        """The person's user name in Jupyter, which no other has and nobody can change; "" for the one that the server
        makes up for its only user."""
        user = self.current_user
        made_up = _MADE_UP.fullmatch(user.username) is not None and user.name.startswith("Anonymous ")
        return "" if made_up else str(user.username)

    async def command(self, name: str, job_id: str, *arguments: Any, **named: Any) -> None:
        """Give a command to a running job and confirm it. It is journaled now; its effect arrives as events."""
        await self.call(_commanded, name, job_id, *arguments, identity=self.identity(), **named)
        self.log.info("%s asked %s to %s", self.identity() or own_name(), job_id, name)
        self.set_status(202)
        self.finish(json.dumps({"id": job_id, "command": name}))


def _commanded(store: Store, name: str, *arguments: Any, **named: Any) -> None:
    from ..control import jobs  # the start of a server does not pay for it

    commands: dict[str, Callable[..., None]] = {"stop": jobs.stop, "scale": jobs.scale, "fault": jobs.fault}
    commands[name](store, *arguments, **named)
