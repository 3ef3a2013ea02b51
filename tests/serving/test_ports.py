"""A port that another program has: refused before anything is submitted, told in a sentence where it is too late."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application
from tornado.websocket import WebSocketHandler

from jupyter_hyperpod.control import deploy, jobs
from jupyter_hyperpod.core.errors import Conflict
from jupyter_hyperpod.core.spec import JobSpec, ServeSpec
from jupyter_hyperpod.serving import gateway
from jupyter_hyperpod.serving.context import REPLICA_PATH, Site
from jupyter_hyperpod.serving.gateway import Gateway
from jupyter_hyperpod.serving.replica import ServingReplica
from jupyter_hyperpod.storage.endpoint import Endpoint, OwnEndpoint
from jupyter_hyperpod.storage.journal import event_writer
from jupyter_hyperpod.storage.store import JobStore, Store


@pytest.fixture
def taken() -> Iterator[int]:
    """A port at which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def deployment(store: Store, port: int) -> JobStore:
    """One that was submitted and that nobody has started."""
    spec = JobSpec("chat", store.put_cell(""), serve=ServeSpec("/model", port=port))
    job = store.create_job(spec)
    with event_writer(job.events, "control") as journal:
        journal.append("job.submitted", {"id": job.id, "spec": spec.to_json()})
    return job


def test_a_port_in_use_is_refused_before_anything_is_submitted(store: Store, tmp_path: Path, taken: int) -> None:
    with pytest.raises(Conflict, match=rf"^port {taken} is in use; choose another --port"):
        deploy.serve(store, str(tmp_path), port=taken)
    assert store.job_ids() == []
    ours = deployment(store, taken)
    with event_writer(ours.events, "gateway") as journal:
        journal.append("deployment.opened", {"url": f"http://127.0.0.1:{taken}", "model": "m", "task": "completions"})
    with pytest.raises(Conflict, match=f"is in use by the deployment {ours.id}; choose another"):
        deploy.serve(store, str(tmp_path), port=taken)
    assert store.job_ids() == [ours.id]


def test_a_gateway_whose_port_was_taken_meanwhile_ends_the_deployment_with_a_sentence(store: Store, taken: int) -> None:
    job = deployment(store, taken)
    spec = job.spec()
    assert spec.serve is not None
    assert asyncio.run(Gateway(Site(job, "head", job.path, spec, spec.serve)).run()) == 0, "nobody starts it again"
    view = jobs.job_view(store, job.id)
    assert view["state"] == "failed" and view["reason"].startswith(f"port {taken} is in use; choose another --port")


async def until(condition: Callable[[], object]) -> None:
    until_s = time.monotonic() + 50
    while not condition():
        assert time.monotonic() < until_s
        await asyncio.sleep(0.01)


def site(job: JobStore) -> Site:
    spec = job.spec()
    assert spec.serve is not None
    return Site(job, "head", job.path, spec, spec.serve)


def test_a_gateway_that_takes_over_where_the_port_is_taken_goes_on_at_another_one(
    store: Store, taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "PORT_WAIT_S", 0.1)
    job = deployment(store, taken)
    found = site(job)
    OwnEndpoint(found.endpoint_file, 0).announce("127.0.0.1", 1, taken)
    later = Gateway(found)

    async def live() -> str:
        running = asyncio.create_task(later.run())
        await until(lambda: running.done() or jobs.job_view(store, job.id)["deployment"])
        view = jobs.job_view(store, job.id)
        assert view["state"] == "pending" and not running.done(), "the deployment goes on"
        later.deployment.end("stopped", "asked for")
        await running
        (warning,) = view["warnings"]
        assert f"port {taken}, at which" in warning["text"] and "get the token" in warning["text"]
        return str(view["deployment"]["url"])

    assert not asyncio.run(live()).endswith(f":{taken}")
    assert json.loads(found.endpoint_file.read_text()) == {"ended": "stopped"}


def test_a_gateway_that_ends_leaves_the_deployment_to_a_newer_one(store: Store) -> None:
    found = site(job := deployment(store, 0))
    earlier = Gateway(found)

    async def live() -> None:
        running = asyncio.create_task(earlier.run())
        await until(lambda: jobs.job_view(store, job.id)["deployment"])
        OwnEndpoint(found.endpoint_file, 1).announce("127.0.0.1", 1)
        earlier.deployment.end("stopped", "the gateway was told to terminate")
        assert await running == 0

    asyncio.run(live())
    assert json.loads(found.endpoint_file.read_text())["turn"] == 1
    view = jobs.job_view(store, job.id)
    assert view["state"] == "pending" and "has taken over this job" in view["warnings"][0]["text"]


def test_a_gateway_that_is_told_to_terminate_leaves_the_deployment_to_the_next_one(store: Store) -> None:
    """As when its host is shut down, or the SLURM job ends that serves the store."""
    found = site(job := deployment(store, 0))

    async def live() -> int:
        running = asyncio.create_task(Gateway(found).run())
        await until(lambda: jobs.job_view(store, job.id)["deployment"])
        os.kill(os.getpid(), signal.SIGTERM)
        return await running

    assert asyncio.run(live()) == 143, "it is started again"
    assert "ended" not in json.loads(found.endpoint_file.read_text())
    view = jobs.job_view(store, job.id)
    assert view["state"] == "pending" and "told to terminate" in view["warnings"][0]["text"]


def test_an_order_that_a_replica_cannot_read_is_told(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """It is in the replica's log, and the replica connects again."""

    class Orders(WebSocketHandler):
        def open(self, *_: str, **__: str) -> None:
            self.write_message("{}")

    async def live() -> None:
        sockets = bind_sockets(0, "127.0.0.1")
        server = HTTPServer(Application([(REPLICA_PATH, Orders)]))
        server.add_sockets(sockets)
        found = Endpoint("127.0.0.1", sockets[0].getsockname()[1], 0)
        replica = ServingReplica(site(deployment(store, 0)))
        link = await replica._connect(found)
        assert link is not None
        await asyncio.wait_for(replica._talk(link, found), 50)
        server.stop()
        await server.close_all_connections()

    asyncio.run(live())
    assert "the connection to the gateway ended with KeyError('type')" in capsys.readouterr().err
