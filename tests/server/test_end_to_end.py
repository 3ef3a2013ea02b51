"""The whole way: a cluster started from the browser's side, a job that loses a rank, a server that is restarted."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tornado.httpclient import AsyncHTTPClient, HTTPRequest
from tornado.websocket import websocket_connect

from jupyter_hyperpod.control import cluster as control
from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.control.runs.resources import resources_for_browser
from jupyter_hyperpod.core.errors import ClusterError
from jupyter_hyperpod.storage.journal import event_writer, read_events
from jupyter_hyperpod.storage.store import Store
from jupyter_hyperpod.system.variables import SAMPLES_VARIABLE
from tests.cells import train
from tests.server.client import Client
from tests.server.conftest import ROOT, Api, MakeJob

pytestmark = pytest.mark.slow

TOKEN = "of-the-restarted-server"
AUTHORIZED = {"Authorization": f"token {TOKEN}"}


@pytest.fixture
def stopped_afterwards(store: Store) -> Iterator[Store]:
    """A store whose cluster, if a test started one, is stopped."""
    yield store
    with suppress(ClusterError):
        control.stop(store)


async def test_a_cluster_and_a_job_from_the_browsers_side(
    stopped_afterwards: Store, api: Api, connect: Callable[[], Awaitable[Client]]
) -> None:
    store = stopped_afterwards
    client = await connect()
    await client.subscribe("cluster", "jobs")
    status, view = await api("POST", "/cluster/start", {"nodes": 3, "spares": 1})
    assert (status, view["state"] in ("starting", "running")) == (200, True)
    status, answer = await api("POST", "/cluster/start", {"nodes": 2})
    assert status == 409 and "3 nodes" in answer["message"]
    await client.until(lambda: "cluster" in client.views)
    await client.until(lambda: [n["state"] for n in client.views["cluster"]["nodes"]] == ["idle"] * 4, 60)

    job_id = await asyncio.to_thread(jobs.submit, store, train(), nodes=2, elastic="1:3", name="watched")
    await client.subscribe(job_id, cursors={job_id: {}})
    view = await client.until(lambda: client.views[job_id]["step"] >= 3 and client.views[job_id], 60)
    assert "trains" in "".join(line["text"] for line in view["output"])
    assert (await api("GET", f"/jobs/{job_id}/cell"))[1] == {"source": train()}

    assert (await api("POST", f"/jobs/{job_id}/fault", {"fault": "kill", "rank": 1}))[0] == 202
    incident = await client.until(
        lambda: next((i for i in client.views[job_id]["incidents"] if i["resumed_s"]), None), 60
    )
    assert {"detected", "resumed"} <= {stage["stage"] for stage in incident["stages"]}
    assert (await api("POST", f"/jobs/{job_id}/scale", {"target": 3}))[0] == 202
    await client.until(lambda: client.views[job_id]["world_size"] == 3, 60)
    assert (await api("POST", f"/jobs/{job_id}/stop", {"reason": "seen enough"}))[0] == 202
    await client.until(lambda: client.views[job_id]["state"] == "stopped", 60)
    await client.until(lambda: client.jobs and client.jobs[0]["state"] == "stopped")
    assert (await api("POST", f"/jobs/{job_id}/stop"))[0] == 409

    status, view = await api("POST", "/cluster/stop", request_timeout=60)
    assert (status, view["state"]) == (200, "stopped")
    await client.until(lambda: client.views["cluster"]["state"] == "stopped")
    await client.until(lambda: client.views[job_id]["seen"] == jobs.job_view(store, job_id)["seen"])
    kinds = {(event.writer, event.seq): event.kind for event in read_events(store.job(job_id).events)}
    facts = [gap for gap in client.gaps if kinds[gap] != "metric.logged"]  # a later sample in a message replaces one
    assert not facts and not client.problems


class Server:
    """`jupyter server` as a person starts it, in a process of its own."""

    def __init__(self, store: Store, port: int, **settings: Any) -> None:
        self.port = port
        config = {
            "ServerApp": {"jpserver_extensions": {"jupyter_hyperpod": True}, "port": port, "port_retries": 0},
            "IdentityProvider": {"token": TOKEN},
            "HyperpodExtension": {"store": str(store.root)} | settings,
        }
        path = store.root.parent / f"config-{port}.json"
        path.write_text(json.dumps(config))
        command = [sys.executable, "-m", "jupyter_server", "--config", str(path), "--no-browser", "--allow-root"]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=store.root.parent
        )

    async def connect(self) -> Client:
        """Connect as soon as the server answers."""
        request = HTTPRequest(f"ws://127.0.0.1:{self.port}/{ROOT}/stream", headers=AUTHORIZED)
        for _ in range(600):
            assert self.process.poll() is None, self.process.communicate()[0].decode()
            with suppress(OSError):
                return Client(await websocket_connect(request))
            await asyncio.sleep(0.05)
        raise AssertionError("the server does not answer")

    async def run_cells(self, *cells: str) -> str:
        """Run cells in a new kernel of this server; return what they print. An error fails the test."""
        place = f"127.0.0.1:{self.port}/api/kernels"
        asked = HTTPRequest(f"http://{place}", method="POST", body="{}", headers=AUTHORIZED)
        kernel = json.loads((await AsyncHTTPClient().fetch(asked)).body)["id"]
        channels = await websocket_connect(HTTPRequest(f"ws://{place}/{kernel}/channels", headers=AUTHORIZED))
        printed = ""
        for at, code in enumerate(cells):
            header = {"msg_id": f"cell-{at}", "msg_type": "execute_request", "session": "test", "username": "test"}
            content = {"code": code, "silent": False, "store_history": False, "allow_stdin": False}
            message = {"header": header | {"version": "5.3", "date": ""}, "parent_header": {}, "metadata": {}}
            await channels.write_message(json.dumps(message | {"content": content, "channel": "shell"}))
            while True:
                received = await asyncio.wait_for(channels.read_message(), 90)
                assert isinstance(received, str), "the kernel has gone"
                answer = json.loads(received)
                if answer["parent_header"].get("msg_id") != header["msg_id"]:
                    continue
                printed += answer["content"].get("text", "")
                if answer["msg_type"] == "execute_reply":
                    assert answer["content"]["status"] == "ok", answer["content"]
                    break
        channels.close()
        return printed

    def end(self, sent: signal.Signals) -> str:
        """Send a signal and return what the server has said."""
        self.process.send_signal(sent)
        out: bytes = self.process.communicate(timeout=60)[0]
        return out.decode()


@pytest.fixture
def servers(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Server]]:
    home = tmp_path / "home"
    home.mkdir()  # in a home that is not there yet, IPython takes a temporary directory and leaves it behind
    monkeypatch.setenv("HOME", str(home))
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    started: list[Server] = []

    def start(**settings: Any) -> Server:
        started.append(Server(store, port, **settings))
        return started[-1]

    yield start
    for server in started:
        if server.process.poll() is None:
            server.end(signal.SIGKILL)


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGKILL])
async def test_a_reader_goes_on_after_the_server_was_restarted(
    servers: Callable[[], Server], make_job: MakeJob, ending: signal.Signals
) -> None:
    job = make_job()
    server = servers()
    client = await server.connect()
    await client.subscribe(job.id, "cluster", "jobs")
    await client.until(lambda: job.id in client.views and "cluster" in client.views)
    with event_writer(job.events, "a") as journal:
        journal.append("warning.raised", {"text": "before"})
        await client.until(lambda: client.views[job.id]["warnings"])
        said = server.end(ending)
        journal.append("warning.raised", {"text": "meanwhile"})
        again = await servers().connect()
        again.views = client.views
        cursors = {topic: view["seen"] for topic, view in client.views.items()}
        await again.subscribe(job.id, "cluster", cursors=cursors)
        journal.append("warning.raised", {"text": "after"})
        await again.until(lambda: len(again.views[job.id]["warnings"]) == 3)
    assert [line["text"] for line in again.views[job.id]["warnings"]] == ["before", "meanwhile", "after"]
    assert again.snapshots == [] and not again.gaps
    assert "Traceback" not in said
    again.close()
    client.close()
    AsyncHTTPClient().close()


BUSY = """
import time
while time.process_time() < 3.0:
    pass
print("has worked")
"""


async def test_a_server_without_samples_of_nodes_has_none_of_its_kernels_jobs(
    servers: Callable[..., Server], stopped_afterwards: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = stopped_afterwards
    monkeypatch.delenv(SAMPLES_VARIABLE, raising=False)
    server = servers(node_samples=False)
    (await server.connect()).close()
    printed = await server.run_cells("%load_ext jupyter_hyperpod", f"%%hyperpod --nodes 1 --spares 0\n{BUSY}")
    assert "has worked" in printed
    (of_kernel,) = store.job_ids()
    assert resources_for_browser(store, of_kernel)["times_s"] == []

    other = await asyncio.to_thread(jobs.submit, store, BUSY, nodes=1, spares=0)
    ended = await asyncio.to_thread(jobs.wait, store, other, timeout_s=90)
    assert ended["state"] == "succeeded"
    assert resources_for_browser(store, other)["times_s"], "the cluster of that kernel serves people who want samples"
    AsyncHTTPClient().close()


def test_the_extension_describes_each_of_its_settings() -> None:
    from jupyter_hyperpod.server.extension import HyperpodExtension

    own = [trait for name, trait in HyperpodExtension.class_own_traits(config=True).items()]
    assert len(own) >= 8
    for trait in own:
        assert trait.help.strip().endswith("."), trait.name
    assert os.path.basename(HyperpodExtension.name) == "jupyter_hyperpod"


async def test_a_node_is_drained_rebooted_and_returned_from_the_browsers_side(
    stopped_afterwards: Store, api: Api, connect: Callable[[], Awaitable[Client]], openapi: dict[str, Any]
) -> None:
    client = await connect()
    await client.subscribe("cluster")
    await api("POST", "/cluster/start", {"nodes": 2, "spares": 0})

    def node(name: str) -> dict[str, Any]:
        known = client.views.get("cluster", {"nodes": []})["nodes"]
        return next((one for one in known if one["node"] == name), {"state": "", "incarnation": 0})

    await client.until(lambda: [node(f"node-{n}")["state"] for n in (1, 2)] == ["idle"] * 2, 60)
    # the health agent, as it starts, says that it watches each node: what was asked for before that is void
    await client.until(lambda: {"node-1", "node-2"} <= set(client.views["cluster"]["health"]), 60)
    status, answer = await api("POST", "/cluster/node", {"node": "node-1", "action": "drain", "reason": "a loud fan"})
    assert (status, answer["said"]) == (202, "node-1 gets no new work")
    schema = {"$ref": "#/components/schemas/NodeAsked", "components": openapi["components"]}
    Draft202012Validator(schema).validate(answer)
    await client.until(lambda: node("node-1")["state"] == "drained" and "loud fan" in node("node-1")["reason"], 30)
    assert (await api("POST", "/cluster/node", {"node": "node-1", "action": "resume"}))[0] == 202
    await client.until(lambda: node("node-1")["state"] == "idle", 30)
    assert (await api("POST", "/cluster/node", {"node": "node-2", "action": "reboot"}))[0] == 202
    await client.until(lambda: (node("node-2")["state"], node("node-2")["incarnation"]) == ("idle", 2), 60)
    status, answer = await api("POST", "/cluster/node", {"node": "node-7", "action": "drain"})
    assert status == 404 and "node-1, node-2" in answer["message"]
    assert (await api("POST", "/cluster/keep", {}))[0] == 200
    assert (await api("POST", "/cluster/node", {"node": "node-1", "action": "melt"}))[0] == 400
