"""Serves with an engine: brings the model to the node, runs the engine, and passes requests and answers through.

What the engine answers is passed on unchanged, as it comes. An answer of which nobody can tell that it is whole counts
as cut: then the connection to the gateway is closed, which knows whether another replica may be asked.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from tornado.httputil import HTTPHeaders
from tornado.iostream import StreamClosedError

from ..core.spec import MODEL_VARIABLE, EngineSpec, filled_in
from ..loader.local_model import local_model
from ..mounts import remote
from ..mounts.table import known_mounts, resolve_url
from . import model_identity
from .compute_thread import aside
from .connection import ReplicaBroken, ReplicaConnections
from .context import ANSWER_LIMIT_BYTES, FROM_ENGINE, HOST, REQUEST_ID, STREAM, Site
from .engine_process import EngineProcess, free_port
from .http_server import JsonHandler

DONE = b"data: [DONE]"
PASSED_HEADERS = ("Accept", REQUEST_ID)
JSON = "application/json"


class ExternalEngine:
    """The engine of one replica."""

    def __init__(self, site: Site) -> None:
        assert site.serve.engine is not None
        self._site, self._spec = site, site.serve.engine
        self._model_name = ""
        self.identity = ""  # which model it has (`model_identity`)
        self._line: ReplicaConnections | None = None
        self.process: EngineProcess | None = None

    @property
    def load(self) -> dict[str, float]:
        """What the engine says of its requests."""
        return self.process.load if self.process is not None else {}

    async def begin(self, report: Callable[[int, int], None], enter: Callable[[str], None]) -> None:
        """Bring the model here and start the engine; returns when it is ready.

        Raises SpecError, NotFound, LoaderError and StoreError for the model, EngineFailed for the engine.
        """
        url = os.environ.get(MODEL_VARIABLE, self._site.serve.model)
        # the engine gets neither the address, of which parts may be secret, nor the keys with which the model is read
        environment = {name: value for name, value in os.environ.items() if name != MODEL_VARIABLE}
        enter("loading")
        path = await aside(partial(_placed, url, report))
        report(0, 0)  # nothing can be said of how far the engine itself is
        enter("loaded")
        port = free_port()
        command, self._model_name = _command(self._spec, self._site, path, port)
        self._line = ReplicaConnections(HOST, port)
        self.process = EngineProcess(self._spec, command, port, environment)
        before = await aside(partial(model_identity.of_files, path))
        await self.process.start()
        self.identity = model_identity.joined(before, await aside(partial(model_identity.of_files, path)))

    async def end(self, at_once: bool = False) -> None:
        """End the engine with all its processes."""
        if self._line is not None:
            self._line.cut()
        if self.process is not None:
            await self.process.end(at_once)

    async def pass_on(self, handler: JsonHandler) -> None:
        """Ask the engine what the gateway asks, and pass its answer on as it comes."""
        assert self._line is not None
        request, answer = handler.request, _Passing(handler)
        body = self._named(request.body)
        fields = {name: value for name in PASSED_HEADERS if (value := request.headers.get(name))}
        fields |= {"Host": f"{HOST}:{self._line.address[1]}"}
        if request.method == "POST":
            fields |= {"Content-Type": JSON, "Content-Length": str(len(body))}
        try:
            method = request.method or "POST"
            await self._line.ask(request.path, HTTPHeaders(fields), body, answer.head, answer.piece, method)
            answer.end()
        except ReplicaBroken as error:
            if error.sent:
                answer.cut()
            else:
                handler.refuse(503, f"the engine cannot be reached: {error}")
        except StreamClosedError:
            pass  # the gateway has gone

    def _named(self, body: bytes) -> bytes:
        """The request with the engine's own name of the model, where it has one that clients may use, or none."""
        if not self._model_name or not body:
            return body
        try:
            found: Any = json.loads(body)
        except (ValueError, RecursionError):
            return body
        if not isinstance(found, dict) or found.get("model") not in (None, *self._site.model_names):
            return body
        return json.dumps(found | {"model": self._model_name}).encode()


class _Passing:
    """An answer of the engine on its way to the gateway. A stream is passed on in pieces, all else as a whole."""

    def __init__(self, handler: JsonHandler) -> None:
        self._handler = handler
        self._body, self._end = bytearray(), b""
        self._streams = self._delimited = False

    def head(self, status: int, headers: HTTPHeaders) -> None:
        handler, kind = self._handler, headers.get("Content-Type", JSON)
        chunked = headers.get("Transfer-Encoding", "").lower() == "chunked"
        self._delimited = chunked or "Content-Length" in headers or status == 204
        self._streams = kind.startswith(STREAM)
        handler.set_status(status)
        handler.set_header("Content-Type", kind)
        handler.set_header(FROM_ENGINE, "1")

    async def piece(self, content: bytes) -> None:
        if self._streams:
            self._end = (self._end + content)[-64:]
            self._handler.write(content)
            await self._handler.flush()
        elif len(self._body) + len(content) > ANSWER_LIMIT_BYTES:
            raise ReplicaBroken(f"the engine's answer is longer than {ANSWER_LIMIT_BYTES >> 20} MiB", True)
        else:
            self._body += content

    def end(self) -> None:
        """The connection says that this was all. Raises ReplicaBroken where it may have been cut instead."""
        if not self._delimited and not self._is_whole():
            raise ReplicaBroken("the engine ended its answer without saying that it is whole", True)
        self._handler.finish(None if self._streams else bytes(self._body))

    def _is_whole(self) -> bool:
        """Whether an answer of unknown length can be told to be whole."""
        if self._streams:
            return self._end.rstrip().endswith(DONE)
        try:
            json.loads(self._body)
        except ValueError:
            return False
        return True

    def cut(self) -> None:
        """Close the connection in the middle of the answer."""
        connection = self._handler.request.connection
        connection.stream.close()  # type: ignore[union-attr]


def _placed(url: str, report: Callable[[int, int], None]) -> str:
    """The path of the model on this node."""
    mounts = known_mounts()
    os.environ.update(remote.environment(resolve_url(url, mounts), mounts.specs))  # this process reads no other model
    return local_model(url, report)


def _command(spec: EngineSpec, site: Site, model: str, port: int) -> tuple[list[str], str]:
    """The engine's arguments, and what it calls the model."""
    values = {
        "model": model,
        "port": str(port),
        "host": HOST,
        "name": site.spec.name,
        "device": _device() if any("{device}" in part for part in (*spec.command, spec.model_name)) else "",
        "threads": str(site.spec.threads),
    }
    return [filled_in(part, values) for part in spec.command], filled_in(spec.model_name, values)


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
