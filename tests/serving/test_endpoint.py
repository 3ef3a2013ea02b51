"""What people ask a deployment, and what they are told: completions, predict, errors, tokens. Over real HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets

from jupyter_hyperpod.control import deploy, jobs
from jupyter_hyperpod.core.errors import ClusterError, NotFound, SpecError
from jupyter_hyperpod.serving import routes
from jupyter_hyperpod.serving.context import ANSWER_LIMIT_BYTES, REQUEST_LIMIT_BYTES
from jupyter_hyperpod.serving.models import PythonModel
from jupyter_hyperpod.storage.store import Store
from tests.serving.conftest import Deployment, Serve, until


def test_a_completion_as_openai_clients_read_it(chat: Deployment) -> None:
    found = chat.complete("hello", max_tokens=5, seed=1)
    answer = found.json()
    assert found.status == 200
    assert answer["object"] == "text_completion" and answer["model"] == "chat"
    assert answer["id"] == f"cmpl-{found.headers['X-Request-Id']}"
    (choice,) = answer["choices"]
    assert len(choice["token_ids"]) == 5 and choice["finish_reason"] == "length"
    assert bytes(choice["token_ids"]).decode(errors="replace") == choice["text"]
    assert answer["usage"] == {"prompt_tokens": 5, "completion_tokens": 5, "total_tokens": 10}


def test_token_ids_are_a_prompt_too(chat: Deployment) -> None:
    by_text, by_ids = (chat.complete(prompt, seed=3) for prompt in ("hello", list(b"hello")))
    assert by_text.json()["choices"] == by_ids.json()["choices"]


def test_a_stream_says_what_the_whole_answer_says(chat: Deployment) -> None:
    whole = chat.complete("once", max_tokens=20, seed=4).json()["choices"][0]
    found = chat.complete("once", max_tokens=20, seed=4, stream=True)
    assert found.headers["Content-Type"].startswith("text/event-stream")
    *pieces, done = [line.removeprefix("data: ") for line in found.content.decode().split("\n\n") if line]
    choices = [json.loads(piece)["choices"][0] for piece in pieces]
    assert done == "[DONE]"
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    assert [choice["finish_reason"] for choice in choices] == [None] * 19 + ["length"]


def test_the_text_ends_before_a_stop(chat: Deployment) -> None:
    text = chat.complete("once", max_tokens=30, seed=4).json()["choices"][0]["text"]
    stop = text[10:12]
    found = chat.complete("once", max_tokens=30, seed=4, stop=[stop]).json()["choices"][0]
    assert found["text"] == text[: text.index(stop)] and found["finish_reason"] == "stop"


def test_a_bias_and_penalties_decide_what_is_said(chat: Deployment) -> None:
    found = chat.complete("once", max_tokens=6, seed=4, logit_bias={"65": 100}).json()["choices"][0]
    assert found["text"] == "AAAAAA"
    greedy = {"max_tokens": 30, "temperature": 0}
    plain, penalized = (
        chat.complete("once", **greedy, **more).json()["choices"][0]["token_ids"]
        for more in ({}, {"frequency_penalty": 2, "presence_penalty": 2})
    )
    assert len({*plain}) < len({*penalized})


def test_the_last_piece_of_a_stream_counts_where_that_is_asked_for(chat: Deployment) -> None:
    found = chat.complete("once", stream=True, stream_options={"include_usage": True})
    *pieces, last, done = [line.removeprefix("data: ") for line in found.content.decode().split("\n\n") if line]
    assert done == "[DONE]" and {json.loads(piece)["usage"] for piece in pieces} == {None}
    assert json.loads(last)["choices"] == [] and json.loads(last)["usage"]["completion_tokens"] == 4


def test_a_request_that_is_repeated_gets_the_same_answer(chat: Deployment) -> None:
    """Drawn with the request's own id as seed, answered once where it is asked twice at the same time."""
    body = {"prompt": "again", "max_tokens": 40}
    before = chat.health()["answered"]
    with ThreadPoolExecutor(8) as threads:
        found = [threads.submit(chat.client.ask, "/v1/completions", body, request_id="mine") for _ in range(8)]
    answers = {one.result().content for one in found}
    assert len(answers) == 1
    assert chat.health()["answered"] == before + 1
    other = chat.client.ask("/v1/completions", body, request_id="another").json()["choices"]
    assert other != json.loads(answers.pop())["choices"]


@pytest.mark.parametrize("token", ["", "wrong", "ü"])
@pytest.mark.parametrize("path", ["/healthz", "/v1/models", "/v1/completions", "/predict", "/-/replica", "/nothing"])
def test_nobody_is_answered_without_the_token(chat: Deployment, path: str, token: str) -> None:
    bad = token.encode().decode("latin-1")
    for body in (None, {"prompt": "x"}):
        found = chat.client.ask(path, body, token=bad)
        assert found.status == 401 or (path == "/-/replica" and found.status in (400, 401, 405))
        assert b"choices" not in found.content


def test_the_token_is_private_and_is_nowhere_else(chat: Deployment) -> None:
    path = deploy.token_file(chat.store, chat.job_id)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    token = path.read_bytes()
    told = [file for file in path.parent.rglob("*") if file.is_file() and file != path and token in file.read_bytes()]
    assert told == []


def test_people_s_token_opens_no_replica(chat: Deployment) -> None:
    found = chat.client.ask("/-/replica", None)
    assert found.status in (400, 401)
    assert chat.health()["ready"] == 1


def test_it_listens_on_loopback_only(chat: Deployment) -> None:
    assert chat.client.host == "127.0.0.1"
    own = socket.gethostbyname(socket.gethostname())
    if not own.startswith("127."):
        with pytest.raises(OSError), socket.create_connection((own, chat.client.port), 1):
            pass


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "the request is not JSON"),
        (b"[1]", "expected a JSON object"),
        ({"max_tokens": 3}, "prompt must be text or a list of token ids"),
        ({"prompt": ""}, "the prompt is empty"),
        ({"prompt": [999]}, "token 999 is not in the vocabulary"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens is 0; expected a whole number from 1"),
        ({"prompt": "x", "temperature": "hot"}, 'temperature is "hot", a text; expected a number'),
        ({"prompt": "x" * 4096}, "the prompt has 4096 tokens, and the model reads and says at most 4096 in all"),
        ({"prompt": "x", "max_tokens": 4096}, "from 1 to 4095, because the model reads and says at most 4096 tokens"),
        ({"prompt": "x", "n": 2}, "n is 2; this endpoint only knows 1"),
        ({"prompt": "x", "tools": [{}]}, "tools is [{}]; this endpoint only knows []"),
        ({"prompt": "x", "stop": [""]}, "stop must be text"),
        ({"prompt": "x", "stream": True, "seed": -1}, "seed is -1"),
    ],
)
def test_a_request_that_cannot_be_answered_is_told_why(chat: Deployment, body: object, message: str) -> None:
    found = chat.client.ask("/v1/completions", body)
    assert found.status == 400
    assert message in found.json()["error"]["message"]


def test_other_paths_say_what_there_is(chat: Deployment) -> None:
    assert chat.client.ask("/nothing").status == 404
    assert "asked at /v1/completions" in chat.client.ask("/predict", {"inputs": 1}).json()["error"]["message"]
    health = chat.health()
    assert (health["state"], health["ready"], health["queued"]) == ("running", 1, 0)


def test_a_request_for_another_model_is_not_answered(chat: Deployment, decoder: Path) -> None:
    names = [model["id"] for model in chat.client.ask("/v1/models").json()["data"]]
    assert names == ["chat", str(decoder)]
    assert [chat.complete(model=name).status for name in (*names, None)] == [200] * 3
    for name, stream in (("gpt-4", False), ("gpt-4", True), ("", False), (7, False)):
        found = chat.complete(model=name, stream=stream)
        error = found.json()["error"]
        assert (found.status, error["code"], error["param"]) == (404, "model_not_found", "model")
        assert f"the model {json.dumps(name)} is not served here; expected chat or {decoder}" in error["message"]


def test_a_handler_predicts_and_its_errors_are_told(serve: Serve, number: tuple[Path, Path]) -> None:
    model, handler = number
    found = serve(model, handler=handler, name="number")
    assert found.predict(4).json()["outputs"]["y"] == 10.0
    wrong = found.client.ask("/predict", {"inputs": {}})
    assert (wrong.status, wrong.json()["error"]["message"]) == (500, "KeyError: 'x'")
    assert found.client.ask("/predict", {"x": 1}).status == 400
    left = found.client.ask("/predict", {"inputs": {"leave": "enough"}})
    assert (left.status, left.json()["error"]["message"]) == (500, "RuntimeError: SystemExit: enough")
    unknown = found.client.ask("/predict", {"inputs": {"nan": True}})
    said = unknown.json()["error"]["message"]
    assert unknown.status == 500 and "outputs['y'][1] is NaN, which JSON cannot hold" in said
    assert found.predict(2).json()["outputs"]["y"] == 5.0, "it serves on after an error"


def test_a_handler_is_compiled_as_if_it_were_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    (tmp_path / "kept").write_text(
        "import dataclasses, inspect\n\n@dataclasses.dataclass\nclass Box:\n    x: int\n\n"
        "def load(path):\n    return dataclasses.fields(Box)[0].type, inspect.getsource(load), __file__\n\n"
        "def predict(model, inputs):\n    return model\n"
    )
    filename = str(tmp_path / "handler.py")
    kind, source, told = PythonModel(tmp_path / "kept", filename, "model")._model
    assert kind is int and source.startswith("def load(path):\n    return") and told == filename


def test_a_request_that_is_broken_off_leaves_nothing() -> None:
    async def run() -> None:
        # all that a handler asks of it before there is a body
        deployment: Any = SimpleNamespace(token="Bearer t", ending=None)
        sockets = bind_sockets(0, "127.0.0.1")
        server = HTTPServer(routes.application(deployment))
        server.add_sockets(sockets)
        before = asyncio.all_tasks()
        _, writer = await asyncio.open_connection(*sockets[0].getsockname())
        writer.write(b"POST /predict HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer t\r\nContent-Length: 1000\r\n\r\n{")
        await writer.drain()
        await until(lambda: any("_execute" in repr(task) for task in asyncio.all_tasks() - before))
        writer.close()
        await until(lambda: asyncio.all_tasks() == before)
        server.stop()

    asyncio.run(run())


def test_what_is_too_long_is_told(serve: Serve, number: tuple[Path, Path]) -> None:
    model, handler = number
    found = serve(model, handler=handler, name="long")
    answer = found.client.ask("/predict", {"inputs": {"letters": ANSWER_LIMIT_BYTES}})
    assert answer.status == 500
    assert (
        "the answer is 64 MiB of JSON; the limit is 64 MiB: answer less, or a URL" in answer.json()["error"]["message"]
    )
    request = found.client.ask("/predict", {"inputs": {"x": "x" * REQUEST_LIMIT_BYTES}})
    assert request.status == 413
    assert "the request is 16.0 MiB; the limit is 16 MiB: send less at a time" in request.json()["error"]["message"]
    stranger = found.client.ask("/predict", {"x": "x" * (5 << 20)}, token="wrong")
    assert stranger.status == 401, "not cut off while it sends"
    assert found.health()["retried"] == 0, "nobody computes that again elsewhere"
    assert found.predict(2).json()["outputs"]["y"] == 5.0


def test_a_model_that_is_not_there_is_refused_at_once(shared_cluster: Store, tmp_path: Path) -> None:
    before = shared_cluster.job_ids()
    with pytest.raises(NotFound, match=f"there is no model at {tmp_path}/nothing"):
        deploy.serve(shared_cluster, str(tmp_path / "nothing"))
    for replicas in ("2:1", "0", "x", "-1", "1:2:3"):
        with pytest.raises(SpecError, match="replicas"):
            deploy.serve(shared_cluster, str(tmp_path), replicas=replicas)
    with pytest.raises(SpecError, match="choose one of them"):
        deploy.serve(shared_cluster, str(tmp_path), handler="h.py", recipe="llama-tiny")
    assert shared_cluster.job_ids() == before


@pytest.mark.parametrize("what", ["weights", "config", "handler", "leaves"])
def test_a_model_that_cannot_be_served_ends_the_deployment_with_the_reason(
    shared_cluster: Store, tmp_path: Path, decoder: Path, what: str
) -> None:
    options: dict[str, Any] = {}
    if what == "weights":
        (tmp_path / "config.json").write_bytes((decoder / "config.json").read_bytes())
        (tmp_path / "model.safetensors").write_bytes((decoder / "model.safetensors").read_bytes()[:-100])
    elif what in ("handler", "leaves"):
        error = "OSError('cannot be opened')" if what == "handler" else "SystemExit('no licence')"
        (tmp_path / "handler.py").write_text(f"def load(path):\n    raise {error}\n\npredict = print\n")
        options["handler"] = tmp_path / "handler.py"
    job_id = deploy.serve(shared_cluster, str(tmp_path), **options)
    with pytest.raises(ClusterError, match="failed: the model cannot be served: "):
        deploy.wait_ready(shared_cluster, job_id, 60)
    view = jobs.job_view(shared_cluster, job_id)
    assert view["state"] == "failed"
    told = {"weights": "model.safetensors", "config": "config.json", "handler": "cannot be opened"}
    assert told.get(what, "SystemExit: no licence") in view["error"]["message"]
