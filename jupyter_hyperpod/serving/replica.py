"""The replica's process: one per node. It loads the model, answers requests over HTTP, and reports to the gateway.

Each report holds the whole present state, so that a new gateway knows everything after one report.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.netutil import bind_sockets
from tornado.web import Application
from tornado.websocket import WebSocketClientConnection, WebSocketClosedError, websocket_connect

from ..core.errors import TrainingError
from ..core.events import GATEWAY
from ..storage import endpoint
from ..storage.endpoint import Endpoint
from ..storage.environment import begin_with, go_on_with
from .compute_thread import ComputeThread, aside
from .context import (
    ANSWER_LIMIT_BYTES,
    AUTHORIZATION,
    CREATED,
    ENGINE_PATHS,
    HOST,
    MODELS_PATH,
    REPLICA_PATH,
    REQUEST_ID,
    Site,
    shows,
)
from .external import ExternalEngine
from .http_server import GuardedServer, JsonHandler

if TYPE_CHECKING:  # they import torch, which a replica with an engine can do without
    from .models import Served, Task

BEAT_S = 0.25
LOOK_S = 1.0  # how often it is looked whether another gateway has taken over
RECONNECT_S = 0.02
CONNECT_TIMEOUT_S = 2.0
GIVE_UP_S = 600.0
DRAIN_S = 30.0
ERROR_LINES = 8


class ServingReplica:
    """The state of one replica; `run` is its whole life."""

    def __init__(self, site: Site) -> None:
        self.site = site
        apart = site.asked_host != HOST  # there, another replica of this node may have the same pid later
        born = f"{time.time_ns() // 1_000_000:x}." if apart else ""
        self.name = f"{site.node}.{born}{os.getpid()}"
        self.key = site.pass_between()
        self.compute = ComputeThread()
        self.external = ExternalEngine(site) if site.serve.engine is not None else None
        self.lost = False  # its engine has ended: it cannot answer any more
        self.served: Served | None = None
        self.tasks = 0
        self.state = "loading"
        self.error: dict[str, Any] | None = None
        self.progress = (0, 0)
        self.stages = {"started": time.time()}
        self.host, self.port = "", 0
        self._leave = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._changed = asyncio.Event()

    async def run(self) -> int:
        """Serve until told to end; returns the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGUSR1):
            loop.add_signal_handler(number, self.drain)
        link = asyncio.create_task(self._take_part())
        loading = asyncio.create_task(self._load())
        await self._leave.wait()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), 0 if self.lost else DRAIN_S)
        loading.cancel()
        link.cancel()
        if self.external is not None:
            await asyncio.wait([loading])  # an engine that was being started is known then
            await self.external.end(at_once=self.lost)
        return 1 if self.error or self.lost else 0

    def drain(self) -> None:
        """Take no further request, finish those in progress, then end."""
        self.state = "draining"
        self._changed.set()
        self._leave.set()

    async def _load(self) -> None:
        try:
            if self.external is not None:
                await self.external.begin(self._progressed, self._enter)
            else:
                self.served = await aside(self._loaded)
        except Exception as error:
            lines = traceback.format_exc().splitlines()
            print("\n".join(lines), file=sys.stderr, flush=True)
            self.error = {"type": type(error).__name__, "message": str(error), "traceback": lines[-ERROR_LINES:]}
            self.state = "failed"
            self._changed.set()
            return
        if self.state == "loading":
            self.state = "ready"
        self._enter("ready")
        self._changed.set()
        if self.external is not None and self.external.process is not None:
            how = await self.external.process.watch()
            print(f"{self.name}: its engine {how}; this replica ends", file=sys.stderr, flush=True)
            self.state, self.lost = "lost", True
            self._leave.set()

    def _loaded(self) -> Served:
        from . import models

        return models.load(self.site, self._progressed, self._enter)

    def _progressed(self, done: int, total: int) -> None:
        self.progress = (done, total)

    def _enter(self, stage: str) -> None:
        """Enter a stage. The loading thread calls this, too, so it does not wait for the gateway."""
        self.stages[stage] = time.time()

    def facts(self) -> dict[str, Any]:
        """The replica's state for the gateway."""
        path = self.served.path if self.served else ""
        model = self.served.identity if self.served else self.external.identity if self.external else ""
        me = {"replica": self.name, "node": self.site.node, "pid": os.getpid(), "host": self.host}
        me |= {"machine": socket.gethostname()}
        now = {"state": self.state, "tasks": self.tasks, "error": self.error, "progress": self.progress}
        load = {"load": self.external.load} if self.external is not None else {}
        return me | now | load | {"port": self.port, "path": path, "model": model, "stages": dict(self.stages)}

    # -- the gateway -------------------------------------------------------------------------------------------

    async def _take_part(self) -> None:
        """Listen for the gateway and stay connected to it, until the deployment has ended or no gateway comes."""
        try:
            await self._keep_linked()
        except TrainingError as error:  # this host cannot encrypt
            print(f"{self.name}: {error}", file=sys.stderr, flush=True)
            self.lost = True
        self.drain()

    async def _keep_linked(self) -> None:
        heard_s = time.monotonic()
        while time.monotonic() - heard_s < GIVE_UP_S:
            link = found = None
            with suppress(OSError, ValueError):  # it is not there yet, or is being written
                found = endpoint.read(self.site.endpoint_file)
                if found is None:
                    return
                self._listen()
                link = None if found.elsewhere else await self._connect(found)
            if link is not None and found is not None:
                await self._talk(link, found)
                heard_s = time.monotonic()
            await asyncio.sleep(RECONNECT_S)

    def _listen(self) -> None:
        """Listen where the gateway reaches this node. Raises OSError, TrainingError where it cannot encrypt."""
        if self.port:
            return
        host = self.site.host()
        encryption = self.site.encryption(host, self.name, calls=False)
        server = GuardedServer(application(self), knows=lambda header: shows(header, self.key), encryption=encryption)
        sockets = bind_sockets(0, host, family=socket.AF_INET)
        server.add_sockets(sockets)
        self.host, self.port = host, sockets[0].getsockname()[1]

    async def _connect(self, found: Endpoint) -> WebSocketClientConnection | None:
        encryption = self.site.encryption(found.host, GATEWAY, calls=True)
        url = f"{'wss' if encryption else 'ws'}://{found.host}:{found.port}{REPLICA_PATH}"
        request = HTTPRequest(
            url, headers={AUTHORIZATION: self.key}, connect_timeout=CONNECT_TIMEOUT_S, ssl_options=encryption
        )
        try:
            return await websocket_connect(request)
        except (OSError, HTTPClientError, WebSocketClosedError):
            return None

    async def _talk(self, link: WebSocketClientConnection, found: Endpoint) -> None:
        """Report every change to the gateway, and at least four times per second, until the gateway has gone."""
        reading, telling = asyncio.create_task(self._obey(link)), asyncio.create_task(self._tell(link))
        replaced = asyncio.create_task(self._until_replaced(found))
        try:
            await asyncio.wait((reading, replaced), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (reading, telling, replaced):
                task.cancel()
            link.close()
            ended = await asyncio.gather(reading, telling, replaced, return_exceptions=True)
        for error in ended:
            if isinstance(error, Exception):
                print(f"{self.name}: the connection to the gateway ended with {error!r}", file=sys.stderr, flush=True)

    async def _obey(self, link: WebSocketClientConnection) -> None:
        while (message := await link.read_message()) is not None:
            order = json.loads(message)
            if order["type"] == "end":
                self.drain()
            elif order["type"] == "break":
                os.kill(os.getpid(), order["number"])

    async def _until_replaced(self, found: Endpoint) -> None:
        """Wait until another gateway has taken over: the connection to a lost host would stay open for long."""
        while True:
            await asyncio.sleep(LOOK_S)
            with suppress(OSError, ValueError):
                if endpoint.read(self.site.endpoint_file) != found:
                    return

    async def _tell(self, link: WebSocketClientConnection) -> None:
        with suppress(WebSocketClosedError):
            while True:
                self._changed.clear()
                await link.write_message(json.dumps(self.facts()))
                if self.error:
                    self._leave.set()
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), BEAT_S)

    # -- requests ----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Count a request that begins."""
        self.tasks += 1
        self._idle.clear()

    def end(self) -> None:
        """Count a request that is answered, or whose client has gone."""
        self.tasks -= 1
        if not self.tasks:
            self._idle.set()


class _Answer(JsonHandler):
    replica: ServingReplica
    work: asyncio.Task[None] | None = None

    def initialize(self, replica: ServingReplica) -> None:
        self.replica = replica

    def prepare(self) -> None:
        if not shows(self.request.headers.get(AUTHORIZATION), self.replica.key):
            self.refuse(401, "a replica answers its gateway only; ask the gateway")

    async def post(self) -> None:
        await self._begin(ENGINE_PATHS)

    async def get(self) -> None:
        await self._begin((MODELS_PATH,))

    async def _begin(self, engine_paths: Sequence[str]) -> None:
        replica = self.replica
        served, external = replica.served, replica.external
        if (served is None and external is None) or replica.state != "ready":
            self.refuse(503, f"this replica is {replica.state}")
            return
        paths = engine_paths if served is None else (served.path,)
        if self.request.path not in paths:
            self.refuse(404, f"this model is asked at {' or '.join(paths)}, not at {self.request.path}")
            return
        replica.begin()
        try:
            self.work = asyncio.create_task(self._work(served, external))
            await self.work
        except asyncio.CancelledError:
            pass  # the client has gone
        finally:
            replica.end()

    async def _work(self, served: Served | None, external: ExternalEngine | None) -> None:
        if external is not None:
            await external.pass_on(self)
        elif served is not None:
            await self._answer(served)

    async def _answer(self, served: Served) -> None:
        from .completion_options import InvalidRequest
        from .models import new_task

        headers = self.request.headers
        try:
            task = new_task(self.request.body, headers.get(REQUEST_ID, ""), headers.get(CREATED))
            pieces = served.answer(task)
        except InvalidRequest as error:
            self.refuse(400, str(error))
            return
        try:
            await (self._stream(task, pieces) if task.streamed else self._whole(served, pieces))
        except Exception as error:
            print(traceback.format_exc(), file=sys.stderr, flush=True)
            if self._headers_written:
                self.request.connection.stream.close()  # type: ignore[union-attr]
            else:
                self.refuse(500, f"{type(error).__name__}: {error}")

    async def _whole(self, served: Served, pieces: Any) -> None:
        from .models import as_json

        answer = as_json(served.whole([piece async for piece in self.replica.compute.run(pieces)]))
        if len(answer) > ANSWER_LIMIT_BYTES:
            limit = f"the limit is {ANSWER_LIMIT_BYTES >> 20} MiB"
            self.refuse(500, f"the answer is {len(answer) / 2**20:.0f} MiB of JSON; {limit}: answer less, or a URL")
        else:
            self.finish(answer)

    async def _stream(self, task: Task, pieces: Any) -> None:
        from .models import as_json

        self.set_header("Content-Type", "text/event-stream")
        async for piece in self.replica.compute.run(pieces):
            self.write(f"data: {as_json(piece)}\n\n")
            await self.flush()
        self.finish("data: [DONE]\n\n")

    def on_connection_close(self) -> None:
        if self.work is not None:
            self.work.cancel()


def application(replica: ServingReplica) -> Application:
    """The routes of a replica."""
    routes = [(r".*", _Answer, {"replica": replica})]
    return Application(routes, log_function=lambda handler: None)


def main() -> int:
    """Entry point of a node's process."""
    site = Site.from_environment()
    go_on_with(site.job, __name__, site.node)
    return asyncio.run(ServingReplica(site).run())


if __name__ == "__main__":
    begun = Site.from_environment()
    begin_with(begun.job, begun.node)
    sys.exit(main())
