"""A real Jupyter server with the extension on it, and clients that speak to it."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tornado.httpclient import HTTPClientError
from traitlets.config import Config

import jupyter_hyperpod.server
from jupyter_hyperpod.core.spec import JobSpec
from jupyter_hyperpod.server.extension import HyperpodExtension
from jupyter_hyperpod.storage.journal import event_writer
from jupyter_hyperpod.storage.store import JobStore, Store
from tests.server.client import Client

ROOT = "jupyter_hyperpod/api/v1"
THREADS = ("hyperpod-tailer", "hyperpod-request", "hyperpod-files", "hyperpod-stream")
Api = Callable[..., Awaitable[tuple[int, Any]]]
MakeJob = Callable[..., JobStore]


@pytest.fixture(scope="session")
def openapi() -> dict[str, Any]:
    path = Path(jupyter_hyperpod.server.__file__).with_name("openapi.yaml")
    document: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return document


@pytest.fixture
def extension_config() -> dict[str, Any]:
    """Override to configure the extension."""
    return {}


@pytest.fixture
def server_config() -> dict[str, Any]:
    """Override to configure Jupyter's own parts."""
    return {}


@pytest.fixture
def jp_server_config(store: Store, extension_config: dict[str, Any], server_config: dict[str, Any]) -> Config:
    quick = {"store": str(store.root), "poll_interval_s": 0.005, "idle_interval_s": 0.05}
    return Config(
        {
            "ServerApp": {"jpserver_extensions": {"jupyter_hyperpod": True}},
            "HyperpodExtension": quick | extension_config,
            **server_config,
        }
    )


@pytest.fixture
def jp_serverapp(jp_serverapp: Any) -> Iterator[Any]:
    """The server; the databases that it leaves open itself are closed, for Python 3.13 warns of each."""
    yield jp_serverapp
    jp_serverapp.contents_manager.notary.store.close()
    if jp_serverapp.session_manager._connection is not None:
        jp_serverapp.session_manager.close()
        jp_serverapp.session_manager._connection.close()


@pytest.fixture
def extension(jp_serverapp: Any, jp_asyncio_loop: asyncio.AbstractEventLoop) -> Iterator[HyperpodExtension]:
    """The running extension; stopped afterwards, with every thread of it gone."""
    app: HyperpodExtension = jp_serverapp.extension_manager.extension_points["jupyter_hyperpod"].app

    async def begin() -> None:
        app.begin()

    jp_asyncio_loop.run_until_complete(begin())
    yield app
    jp_asyncio_loop.run_until_complete(app.stop_extension())
    deadline = time.monotonic() + 30
    while left := [thread.name for thread in threading.enumerate() if thread.name.startswith(THREADS)]:
        assert time.monotonic() < deadline, f"threads left behind: {left}"
        time.sleep(0.01)


@pytest.fixture
def api(extension: HyperpodExtension, jp_fetch: Any) -> Api:
    """``await api("POST", "/jobs/x/stop", {})`` -> (status, JSON)."""

    async def call(method: str, path: str, body: Any = None, **kwargs: Any) -> tuple[int, Any]:
        if method in ("POST", "PUT", "PATCH") and not isinstance(body, bytes):
            body = json.dumps({} if body is None else body)
        try:
            answer = await jp_fetch(*f"{ROOT}{path}".split("/"), method=method, body=body, **kwargs)
        except HTTPClientError as error:
            assert error.response is not None, error
            answer = error.response
        return answer.code, json.loads(answer.body or b"null")

    return call


@pytest.fixture
def connect(
    extension: HyperpodExtension, jp_ws_fetch: Any, jp_asyncio_loop: asyncio.AbstractEventLoop
) -> Iterator[Callable[[], Awaitable[Client]]]:
    """Open websockets, closed after the test."""
    clients: list[Client] = []

    async def open_client() -> Client:
        client = Client(await jp_ws_fetch(*ROOT.split("/"), "stream"))
        clients.append(client)
        return client

    yield open_client

    async def close_all() -> None:
        for client in clients:
            client.close()
        for _ in range(3000):
            if not extension.sockets:
                return
            await asyncio.sleep(0.01)
        raise AssertionError(f"sockets left open: {extension.sockets}")

    jp_asyncio_loop.run_until_complete(close_all())


@pytest.fixture
def make_job(store: Store) -> MakeJob:
    """Write a job into the store as control does, without a cluster."""

    def make(name: str = "tinylm", nodes: int = 2, source: str = "print(1)\n", **fields: Any) -> JobStore:
        job = store.create_job(JobSpec(name=name, cell_digest=store.put_cell(source), nodes=nodes, **fields))
        with event_writer(job.events, "control") as journal:
            journal.append("job.submitted", {"id": job.id, "spec": job.spec().to_json()})
        return job

    return make
