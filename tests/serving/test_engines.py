"""Other servers as engines of replicas: started, asked, streamed, killed, replaced. Real processes, a real server."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from jupyter_hyperpod.cli import main
from jupyter_hyperpod.control import deploy, jobs
from jupyter_hyperpod.core.errors import ClusterError
from jupyter_hyperpod.system.processes import descendants
from tests.serving.conftest import Deployment, Serve
from tests.support import ROOT
from tests.support.deployment_clients import Drive

SERVER = ROOT / "tests" / "support" / "openai_server.py"
QUESTION = {"model": "m", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
CHAT = "/v1/chat/completions"
Wait = Callable[..., object]


def command(options: str = "") -> str:
    return f"{sys.executable} {SERVER} {{model}} --port {{port}} --name {{name}} {options}"


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    (tmp_path / "weights").write_text("seven")
    return tmp_path / "weights"


def ready(deployment: Deployment, replicas: int) -> Callable[[], bool]:
    return lambda: deployment.health().get("ready") == replicas


def alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def events(found: Deployment, body: dict[str, Any]) -> Iterator[tuple[float, str]]:
    """The data of a stream's events, and when each came."""
    connection = http.client.HTTPConnection(found.client.host, found.client.port, timeout=60)
    try:
        headers = {"Authorization": f"Bearer {found.client.token}"}
        connection.request("POST", CHAT, json.dumps(body | {"stream": True}), headers)
        answer = connection.getresponse()
        assert answer.status == 200 and answer.headers["Content-Type"].startswith("text/event-stream")
        while line := answer.readline():
            if line.strip():
                yield time.monotonic(), line.decode().removeprefix("data: ").strip()
    finally:
        connection.close()


def text_of(stream: list[str]) -> str:
    return "".join(json.loads(event)["choices"][0]["delta"]["content"] for event in stream if event != "[DONE]")


def test_an_engine_answers_through_the_gateway_and_leaves_nothing(
    serve: Serve, weights: Path, eventually: Wait, capsys: pytest.CaptureFixture[str]
) -> None:
    found = serve(weights, engine=command("--pause 0.05"), engine_args="--helper", name="engine")
    ask = found.client.ask
    whole = ask(CHAT, QUESTION).json()["choices"][0]["message"]["content"]
    assert len(whole.split()) == 8
    assert ask("/v1/completions", {"prompt": "x", "max_tokens": 2}).json()["object"] == "text_completion"
    assert len(ask("/v1/embeddings", {"input": "x"}).json()["data"][0]["embedding"]) == 4
    assert [model["id"] for model in ask("/v1/models").json()["data"]] == ["engine"]
    refused = ask("/v1/completions", {"prompt": "x", "n": 2})
    assert (refused.status, refused.json()["error"]["message"]) == (422, "n is not for this server")
    busy = ask("/v1/completions", {"prompt": "x", "busy": True})
    assert busy.status == 503 and "too much" in busy.json()["error"]["message"] and found.health()["retried"] == 0
    assert ask("/predict", {"inputs": 1}).status == 404 and ask(CHAT, QUESTION, token="x").status == 401
    came = list(events(found, QUESTION))
    assert text_of([event for _, event in came]) == whole and came[-1][1] == "[DONE]"
    assert came[-1][0] - came[0][0] > 0.2, "it came as it was computed"
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(ask, CHAT, QUESTION | {"max_tokens": 80})
        eventually(lambda: found.view["metrics"].get("engine_running") == 1)
        assert main(["--store", str(found.store.root), "describe", found.job_id]) == 0
        assert "requests in the engines: 1 running, 0 waiting" in capsys.readouterr().out
        assert asked.result().status == 200
    left = descendants(found.pids()[0])
    assert len(left) == 3, "the keeper, the engine, its helper"
    jobs.stop(found.store, found.job_id)
    jobs.wait(found.store, found.job_id, timeout_s=60)
    eventually(lambda: not [pid for pid in left if alive(pid)])


KEEPER_KILLED = """
import asyncio, json, os, signal, sys
from jupyter_hyperpod.core.spec import EngineSpec
from jupyter_hyperpod.serving.engine_process import EngineProcess, free_port
from jupyter_hyperpod.system.processes import descendants

async def run():
    port = free_port()
    command = [word.replace("PORT", str(port)) for word in sys.argv[1:]]
    engine = EngineProcess(EngineSpec("e", ("x", "{port}")), command, port, os.environ)
    await engine.start()
    begun = descendants(os.getpid())
    os.kill(begun[0], signal.SIGKILL)
    how = await engine.watch()
    await engine.end(at_once=True)
    print(json.dumps([how, begun, descendants(os.getpid())]))

asyncio.run(run())
"""


@pytest.mark.quick
def test_an_engine_whose_keeper_is_killed_leaves_nothing(weights: Path) -> None:
    """Its helper has a session of its own, so that no signal to a group reaches it."""
    words = [sys.executable, str(SERVER), str(weights), "--port", "PORT", "--helper"]
    done = subprocess.run([sys.executable, "-c", KEEPER_KILLED, *words], capture_output=True, text=True, timeout=50)
    how, begun, left = json.loads(done.stdout)
    assert how == "was ended by SIGKILL" or "ended with status" in how, done.stderr
    assert len(begun) == 3 and left == [] and not [pid for pid in begun if alive(pid)]


def test_replicas_and_engines_are_killed_and_no_request_is_lost(serve: Serve, weights: Path, eventually: Wait) -> None:
    found = serve(weights, engine=command("--pause 0.01"), engine_args="--helper", replicas="2", name="killed")
    drive = Drive(found.client, CHAT, lambda at: QUESTION | {"user": str(at)}, rate=30)
    expected = found.client.ask(CHAT, QUESTION).json()["choices"]
    with ThreadPoolExecutor(1) as threads:
        driving = threads.submit(drive.run, 60.0)
        try:
            for part, number in ((0, signal.SIGKILL), (2, signal.SIGKILL), (2, signal.SIGSTOP)):
                eventually(ready(found, 2))
                replica = found.pids()[0]
                parts = [replica, *descendants(replica)]  # then its keeper, its engine, the engine's helper
                os.kill(parts[part], number)
                eventually(lambda parts=parts: not [pid for pid in parts if alive(pid)])
                eventually(lambda replica=replica: replica not in found.pids() and len(found.pids()) == 2)
        finally:
            drive.stop()
        replies = driving.result()
    assert {reply.status for reply in replies} == {200}, "an accepted request was lost"
    assert all(reply.json()["choices"] == expected for reply in replies)
    assert len(found.view["incidents"]) == 3


@pytest.mark.parametrize("options", ["", "--plain"])
def test_a_stream_that_is_cut_says_so(serve: Serve, weights: Path, eventually: Wait, options: str) -> None:
    """Another replica is there, and could begin again; it must not go on in the middle."""
    found = serve(weights, engine=command(f"--pause 0.1 {options}"), replicas="2", name="cut")
    eventually(ready(found, 2))
    came = []
    for _, event in events(found, QUESTION | {"max_tokens": 100}):
        came.append(event)
        if len(came) == 3:
            engine = int(json.loads(event)["system_fingerprint"].removeprefix("pid-"))
            os.kill(engine, signal.SIGKILL)
    *said, last = came
    assert json.loads(last)["error"]["message"].startswith("the stream was cut") and "[DONE]" not in said
    assert len(said) < 20 and all("choices" in json.loads(event) for event in said)
    health = found.health()
    assert (health["failed"], health["retried"]) == (1, 0)
    whole = found.client.ask(CHAT, QUESTION | {"max_tokens": len(said)}).json()
    assert whole["choices"][0]["message"]["content"] == text_of(said), "what came is the beginning of the answer"


def test_one_that_is_not_ready_gets_nothing_and_one_that_cannot_start_says_why(
    serve: Serve, weights: Path, tmp_path: Path, eventually: Wait
) -> None:
    (tmp_path / "late").touch()
    store = (found := serve(weights, engine=command(), name="first")).store
    job_id = deploy.serve(store, str(weights), engine=command(f"--slow {tmp_path / 'late'}"), name="late")
    eventually(lambda: (jobs.job_view(store, job_id)["deployment"] or {}).get("replicas"))
    stages = [stage["stage"] for stage in jobs.job_view(store, job_id)["deployment"]["replicas"][0]["stages"]]
    assert "ready" not in stages and jobs.job_view(store, job_id)["state"] != "running"
    (tmp_path / "late").unlink()
    deploy.wait_ready(store, job_id, 60)
    jobs.stop(store, job_id)
    ended = "ended with status 1 before it was ready; its last lines: no room"
    for options, start_timeout_s, why in (
        (command("--fail 'no room on the device'"), 60.0, ended),
        (command(f"--slow {SERVER}"), 2.0, "was not ready at /health or /v1/models after 2 s; give it longer"),
        (command("--host 0.0.0.0"), 60.0, "listens for other machines, too, and asks nobody for the token"),
    ):
        failing = deploy.serve(store, str(weights), engine=options, start_timeout_s=start_timeout_s, name="fails")
        with pytest.raises(ClusterError, match=why):
            deploy.wait_ready(store, failing, 120)
    assert found.client.ask(CHAT, QUESTION).status == 200
