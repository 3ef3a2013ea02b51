"""Replicas at other addresses, where no signal reaches: what they were asked is asked again elsewhere.

The gateway and the replicas are real processes, without a cluster that would end or replace them.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from tornado.httpclient import HTTPRequest
from tornado.websocket import WebSocketClientConnection, websocket_connect

from jupyter_hyperpod.core.elastic import ElasticRange
from jupyter_hyperpod.core.spec import JobSpec, ServeSpec
from jupyter_hyperpod.serving.context import AUTHORIZATION, HOST_VARIABLE, REPLICA_PATH, Site
from jupyter_hyperpod.storage.journal import event_writer
from jupyter_hyperpod.storage.store import Store
from jupyter_hyperpod.supervisor import launch
from jupyter_hyperpod.system.processes import is_stopped
from tests.serving.conftest import Deployment
from tests.serving.test_replicas import ready, strip_created
from tests.support.deployment_clients import Client

pytestmark = pytest.mark.slow

Wait = Callable[..., Any]
FAR, NEAR = "127.0.0.2", "127.0.0.3"  # to the gateway, both are other hosts
TIMEOUT_S = 45.0  # for a request: far more than it takes to give a replica up and to start another one


class ByHand:
    """A deployment of two replicas whose processes the test starts itself."""

    def __init__(self, store: Store, serve: ServeSpec, source: str = "") -> None:
        self.spec = JobSpec("by-hand", store.put_cell(source), nodes=2, elastic=ElasticRange(1, 2), serve=serve)
        self.store, self.job = store, store.create_job(self.spec)
        with event_writer(self.job.events, "control") as journal:
            journal.append("job.submitted", {"id": self.job.id, "spec": self.spec.to_json()})
        self.processes: list[subprocess.Popen[bytes]] = []
        self.start(launch.GATEWAY, "head", "127.0.0.1")

    def start(self, module: str, node: str, host: str) -> subprocess.Popen[bytes]:
        more = launch.environment(self.store, self.job, self.spec) | {"HYPERPOD_NODE": node, HOST_VARIABLE: host}
        process = subprocess.Popen([sys.executable, "-m", module], env={**os.environ, **more})
        self.processes.append(process)
        return process

    def opened(self) -> Deployment | None:
        """The deployment, once its gateway answers."""
        with suppress(TypeError):  # its journal does not name an address yet
            found = Deployment(self.store, self.job.id, Client.of(self.store, self.job.id))
            return found if found.health() else None
        return None

    def link_request(self) -> HTTPRequest:
        """What connects to the gateway as a replica does."""
        site = Site(self.job, FAR, Path(), self.spec, self.spec.serve or ServeSpec(""))
        endpoint = site.endpoint()
        assert endpoint is not None
        url = f"ws://{endpoint.host}:{endpoint.port}{REPLICA_PATH}"
        return HTTPRequest(url, headers={AUTHORIZATION: site.pass_between()})


@pytest.fixture
def begun(store: Store) -> Iterator[list[ByHand]]:
    """Deployments by hand; their processes are killed when the test is over."""
    found: list[ByHand] = []
    try:
        yield found
    finally:
        for process in [process for one in found for process in one.processes]:
            process.kill()
            process.wait()


def begin(begun: list[ByHand], eventually: Wait, store: Store, serve: ServeSpec, source: str = "") -> Deployment:
    begun.append(ByHand(store, serve, source))
    found: Deployment = eventually(begun[-1].opened)
    return found


def test_a_replica_elsewhere_stands_still_and_all_it_was_asked_is_answered_by_another(
    store: Store, begun: list[ByHand], decoder: Path, eventually: Wait
) -> None:
    """Whole answers, and a stream that goes on where it stopped; nobody can kill the process that stands still."""
    serve = ServeSpec(str(decoder), request_timeout_s=TIMEOUT_S)
    found = begin(begun, eventually, store, serve)
    far = begun[0].start(launch.REPLICA, "far", FAR)
    eventually(ready(found, 1))
    body: dict[str, Any] = {"prompt": "long", "max_tokens": 1000, "seed": 9}
    connection = http.client.HTTPConnection(found.client.host, found.client.port, timeout=2 * TIMEOUT_S)
    identity = {"Authorization": f"Bearer {found.client.token}", "X-Request-Id": "twin"}
    with closing(connection), ThreadPoolExecutor(2) as threads:
        whole = [threads.submit(found.client.ask, "/v1/completions", body, request_id=f"r{at}") for at in range(2)]
        connection.request("POST", "/v1/completions", json.dumps(body | {"stream": True}), identity)
        answer = connection.getresponse()
        first = answer.readline()
        eventually(lambda: found.health()["outstanding"] == 3)
        far.send_signal(signal.SIGSTOP)
        begun[0].start(launch.REPLICA, "near", NEAR)
        disturbed = first + answer.read()
        assert [one.result().status for one in whole] == [200, 200]
    again = found.client.ask("/v1/completions", body | {"stream": True}, request_id="twin").content
    assert strip_created(disturbed) == strip_created(again)
    assert is_stopped(far.pid)
    health = found.health()
    assert (health["failed"], health["retried"]) == (0, 3)
    eventually(lambda: [incident["resumed_s"] is not None for incident in found.view["incidents"]] == [True])


def asked(listener: socket.socket) -> socket.socket:
    """Take a connection and see that a request has come; it is never answered."""
    connection, _ = listener.accept()
    connection.settimeout(60)
    assert connection.recv(1)
    return connection


def ended(connection: socket.socket) -> bool:
    """Whether the other side has closed it by now; raises BlockingIOError where it has not."""
    connection.setblocking(False)
    while connection.recv(1 << 16):
        pass
    return True


async def linked(request: HTTPRequest, port: int) -> WebSocketClientConnection:
    """Say to the gateway what a replica says that is ready."""
    link = await websocket_connect(request)
    now = {"state": "ready", "tasks": 0, "error": None, "progress": [0, 0], "path": "/predict"}
    me = {"replica": f"far.{os.getpid()}", "node": "far", "pid": os.getpid(), "host": FAR, "port": port}
    await link.write_message(json.dumps(me | now | {"stages": {"started": time.time()}}))
    return link


async def hung_up(link: WebSocketClientConnection) -> None:
    """Wait until a connection has ended on both sides."""
    assert await asyncio.wait_for(link.read_message(), 50) is None
    link.close()


@pytest.mark.parametrize("how", ["says no more", "links again and says no more", "hangs up"])
def test_a_replica_that_takes_a_request_and_never_answers_is_given_up_with_it(
    store: Store, begun: list[ByHand], number: tuple[Path, Path], eventually: Wait, how: str
) -> None:
    serve = ServeSpec(str(number[0]), task="predict", request_timeout_s=TIMEOUT_S)
    found = begin(begun, eventually, store, serve, number[1].read_text())

    async def lose(listener: socket.socket, threads: ThreadPoolExecutor) -> None:
        request, port = begun[0].link_request(), listener.getsockname()[1]
        links = [await linked(request, port)]
        await asyncio.to_thread(eventually, ready(found, 1))
        reply = threads.submit(found.predict, 4)
        with closing(await asyncio.to_thread(asked, listener)) as connection:
            if how.startswith("links again"):
                links.append(await linked(request, port))
            if how == "hangs up":
                links[0].close()
            begun[0].start(launch.REPLICA, "near", NEAR)
            if how == "says no more":
                await hung_up(links.pop())
                assert ended(connection), "it is cut before the gateway hangs up"
            answer = await asyncio.wrap_future(reply)
        assert answer.status == 200 and answer.json()["outputs"]["y"] == 10.0
        for link in links:
            link.close()
            await hung_up(link)

    with socket.create_server((FAR, 0)) as listener, ThreadPoolExecutor(1) as threads:
        listener.settimeout(60)
        asyncio.run(lose(listener, threads))
    assert (found.health()["failed"], found.health()["retried"]) == (0, 1)
