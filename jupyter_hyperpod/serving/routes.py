"""The gateway's HTTP routes: OpenAI's API, predict, health, and the replicas' reports.

Every route needs a token: the clients' one, or the one between gateway and replicas.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from contextlib import suppress
from typing import Any

from tornado.http1connection import HTTP1Connection
from tornado.iostream import StreamClosedError
from tornado.web import Application, stream_request_body
from tornado.websocket import WebSocketHandler

from ..policy.serving import retry_after_s
from . import commands
from .context import (
    AUTHORIZATION,
    ENGINE_PATHS,
    MODELS_PATH,
    REPLICA_PATH,
    REQUEST_ID,
    REQUEST_LIMIT_BYTES,
    STREAM,
    error_body,
    shown,
    shows,
)
from .deployment import Deployment
from .http_server import JsonHandler
from .pool import PooledReplica, QueueFull
from .relay import ClientRequest, ReplicaResponse, Unanswered

_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}")
PATHS = {"completions": ("/v1/completions",), "predict": ("/predict",), "engine": ENGINE_PATHS}


class _Guarded(JsonHandler):
    """Refuses requests without the token."""

    deployment: Deployment

    def initialize(self, deployment: Deployment) -> None:
        self.deployment = deployment

    def prepare(self) -> None:
        if not self.is_known():
            self.refuse_stranger()

    def set_default_headers(self) -> None:
        self.set_header("Server", "jupyter_hyperpod")

    def is_known(self) -> bool:
        """Whether the request bears the token."""
        return shows(self.request.headers.get(AUTHORIZATION), self.deployment.token)

    def refuse_stranger(self) -> None:
        """Answer a request without the token."""
        self.set_header("WWW-Authenticate", "Bearer")
        path = self.deployment.site.job.path / "token"
        self.refuse(401, f"send the header `Authorization: Bearer TOKEN`; the token is in {path}")


class _Health(_Guarded):
    def get(self) -> None:
        deployment = self.deployment
        serving = deployment.ending is None and deployment.state == "running"
        state = "draining" if deployment.ending else deployment.state
        replicas = [
            {
                "replica": r.name,
                "node": r.node,
                "state": "retired" if r.retired else r.state,
                "outstanding": r.outstanding,
            }
            for r in deployment.pool
        ]
        self.set_status(200 if serving else 503)
        self.finish({"state": state, "replicas": replicas} | deployment.facts())


@stream_request_body
class _Ask(_Guarded):
    """Refuses only after the body has arrived, as tornado does; a client that is cut off earlier would not see why."""

    _ended_event = True  # what the client has received of a stream ends with a whole event
    work: asyncio.Task[ReplicaResponse] | None = None

    def prepare(self) -> None:
        self._body, self._too_long, self._known = bytearray(), 0, self.is_known()
        if self.request.method != "POST":
            super().prepare()
            return
        length = self.request.headers.get("Content-Length", "")
        if self._known and length.isdecimal() and int(length) > REQUEST_LIMIT_BYTES:
            self._too_long = int(length)
            connection = self.request.connection
            assert isinstance(connection, HTTP1Connection)
            connection.set_max_body_size(self._too_long)

    def data_received(self, chunk: bytes) -> None:
        if self._known and not self._too_long:
            self._body += chunk

    async def post(self) -> None:
        deployment = self.deployment
        if not self._known:
            self.refuse_stranger()
            return
        if self._too_long:
            found, limit = f"{self._too_long / 2**20:.1f} MiB", f"{REQUEST_LIMIT_BYTES >> 20} MiB"
            self.refuse(413, f"the request is {found}; the limit is {limit}: send less at a time, or a URL of the data")
            return
        if deployment.ending is not None:
            self.refuse(503, "this deployment is ending")
            return
        paths = PATHS[deployment.site.serve.task]
        if self.request.path not in paths:
            self.refuse(404, f"this deployment is asked at {' or '.join(paths)}, not at {self.request.path}")
            return
        request = self._request(bytes(self._body))
        said, names = _object(request.body), deployment.site.model_names
        if self.request.path.startswith("/v1/") and names and said.get("model") not in (None, *names):
            problem = f"the model {shown(said['model'])} is not served here; expected {' or '.join(names)}, or no model"
            self.refuse(404, problem, param="model", code="model_not_found")
            return
        if said.get("stream") is True:
            request.stream = self._pass_on
        await self._ask(request)

    async def get(self) -> None:
        """The models: an engine names its own, unless it can only be told their names by us."""
        deployment = self.deployment
        if self.request.path != MODELS_PATH:
            self.refuse(405, f"{self.request.path} is asked with POST")
            return
        names = deployment.site.model_names
        if not names and deployment.ending is None:
            await self._ask(self._request(b""))
            return
        card = {"object": "model", "created": deployment.opened_s, "owned_by": "jupyter_hyperpod"}
        self.finish({"object": "list", "data": [{"id": name} | card for name in names or (deployment.site.spec.name,)]})

    def _request(self, body: bytes) -> ClientRequest:
        given = self.request.headers.get(REQUEST_ID, "")
        request_id = given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(12)
        self.set_header(REQUEST_ID, request_id)
        repeatable = self.deployment.site.serve.engine is None
        method = self.request.method or "POST"
        return ClientRequest(self.request.path, body, request_id, repeatable=repeatable, method=method)

    async def _ask(self, request: ClientRequest) -> None:
        deployment = self.deployment
        self.work = asyncio.create_task(deployment.relay.answer(request))
        try:
            answer = await self.work
        except QueueFull:
            rate, _, _ = deployment.ledger.recent()
            self.set_header("Retry-After", str(retry_after_s(deployment.pool.outstanding, rate)))
            self.refuse(429, f"{deployment.pool.waiting} requests wait already")
        except Unanswered as error:
            self._fail(error)
        except (asyncio.CancelledError, StreamClosedError):
            pass  # the client has gone
        else:
            if answer.streamed:
                self.finish()
                return
            self.set_status(answer.status)
            self.set_header("Content-Type", answer.content_type)
            self.finish(answer.body)

    def _fail(self, error: Unanswered) -> None:
        if not self._headers_written:
            self.refuse(error.status, str(error))
        else:
            begin = "" if self._ended_event else "\n\n"
            self.finish(f"{begin}data: {json.dumps(error_body(error.status, str(error)))}\n\n")

    async def _pass_on(self, content: bytes) -> None:
        if not self._headers_written:
            self.set_header("Content-Type", STREAM)
            self.set_header("Cache-Control", "no-store")
        self._ended_event = content.endswith((b"\n\n", b"\r\n\r\n"))
        self.write(content)
        await self.flush()

    def on_connection_close(self) -> None:
        super().on_connection_close()  # ends the wait for the rest of a body
        if self.work is not None:
            self.work.cancel()


class _Link(WebSocketHandler):
    """The connection of a replica, for its reports and the order to end."""

    deployment: Deployment
    replica: PooledReplica | None = None

    def initialize(self, deployment: Deployment) -> None:
        self.deployment = deployment

    def prepare(self) -> None:
        if not shows(self.request.headers.get(AUTHORIZATION), self.deployment.key):
            self.set_status(401)
            self.finish()

    def on_message(self, message: str | bytes) -> None:
        if self.replica is None:
            commands.obey_all(self.deployment)  # its report may result from a command that has not been read yet
        before = self.replica.state if self.replica else ""
        self.replica = self.deployment.replicas.heard(json.loads(message), self)
        if self.replica.state == "ready" != before:
            self.deployment.welcome(self.replica)

    def on_close(self) -> None:
        if self.replica is not None and not self.deployment.handed_over:
            self.deployment.replicas.left(self.replica)


class _Nothing(_Guarded):
    def prepare(self) -> None:
        super().prepare()
        if not self._finished:
            there = ", ".join(dict.fromkeys(path for paths in PATHS.values() for path in paths))
            self.refuse(404, f"nothing is at {self.request.path}; expected one of {there}, /v1/models or /healthz")


def _object(body: bytes) -> dict[str, Any]:
    """What a request says; empty where it is no object of JSON, which the replica refuses."""
    with suppress(ValueError, RecursionError):
        found: Any = json.loads(body)
        return found if isinstance(found, dict) else {}
    return {}


def application(deployment: Deployment) -> Application:
    """The routes of the gateway."""
    settings = {"deployment": deployment}
    routes = [
        (r"/healthz", _Health, settings),
        ("|".join(map(re.escape, (MODELS_PATH, "/predict", *ENGINE_PATHS))), _Ask, settings),
        (REPLICA_PATH, _Link, settings),
    ]
    return Application(
        routes,
        default_handler_class=_Nothing,
        default_handler_args=settings,
        log_function=lambda handler: None,
        websocket_ping_interval=None,
    )
