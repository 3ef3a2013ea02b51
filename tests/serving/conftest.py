"""A tiny decoder on disk, and deployments that are stopped when their test is over."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from jupyter_hyperpod.control import cluster, deploy, jobs
from jupyter_hyperpod.core.events import TERMINAL_STATES, Event
from jupyter_hyperpod.core.views import View
from jupyter_hyperpod.recipes.config import DecoderConfig
from jupyter_hyperpod.recipes.decoder import Decoder
from jupyter_hyperpod.storage.store import Store
from tests.support.deployment_clients import Client, Reply

CONFIG = DecoderConfig(
    vocab_size=256,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    max_position_embeddings=4096,
    rope_theta=10_000.0,
)
# sleeps for inputs["s"] seconds or until there is a file inputs["until"], so that a test decides how long a request
# takes, and says who answered. What computes keeps the interpreter lock for that time. A file `.begin` beside the model
# is run before it is loaded.
HANDLER = """
import itertools
import os
import time


def compute(seconds):
    began, count = time.monotonic(), 5 * 10**6
    sum(itertools.repeat(1, count))
    sum(itertools.repeat(1, int(count * seconds / (time.monotonic() - began))))


def load(path):
    if os.path.exists(path + ".begin"):
        with open(path + ".begin") as file:
            exec(file.read())
    with open(path) as file:
        return float(file.read())


def predict(model, inputs):
    time.sleep(inputs.get("s", 0.0))
    while "until" in inputs and not os.path.exists(inputs["until"]):
        time.sleep(0.01)
    if inputs.get("leave"):
        raise SystemExit(inputs["leave"])
    if inputs.get("nan"):
        return {"y": [0.0, float("nan")]}
    if inputs.get("die"):
        os.kill(os.getpid(), 9)
    if inputs.get("letters"):
        return "x" * inputs["letters"]
    if inputs.get("compute"):
        compute(inputs["compute"])
    return {"y": model * inputs["x"], "pid": os.getpid()}
"""


def write_safetensors(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    """The format in its own words: length of the header, header, tensors one after the other."""
    header, at, parts = {}, 0, []
    for name, tensor in tensors.items():
        content = tensor.contiguous().numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, at + len(content)]}
        at += len(content)
        parts.append(content)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))


@pytest.fixture(scope="session")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with config.json and model.safetensors."""
    return write_decoder(tmp_path_factory.mktemp("decoder"))


def write_decoder(folder: Path) -> Path:
    """Put the files of a tiny decoder there."""
    torch.manual_seed(0)
    write_safetensors(folder / "model.safetensors", dict(Decoder(CONFIG).state_dict()))
    (folder / "config.json").write_text(json.dumps(asdict(CONFIG)))
    return folder


@pytest.fixture(scope="session")
def number(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A "model" that is one number, and the handler that multiplies with it."""
    folder = tmp_path_factory.mktemp("number")
    (folder / "model.txt").write_text("2.5")
    (folder / "handler.py").write_text(HANDLER)
    return folder / "model.txt", folder / "handler.py"


@dataclass
class Deployment:
    """One deployment under test."""

    store: Store
    job_id: str
    client: Client

    @property
    def view(self) -> View:
        """What a person sees of it."""
        return jobs.job_view(self.store, self.job_id)

    def events(self, kind: str) -> list[Event]:
        """Its events of one kind."""
        return [event for event in jobs.follow(self.store, self.job_id).poll() if event.kind == kind]

    def health(self) -> dict[str, Any]:
        """What the gateway says of itself; empty where it does not answer."""
        found = self.client.ask("/healthz")
        record: dict[str, Any] = found.json() if found.status in (200, 503) else {}
        return record

    def complete(self, prompt: str | list[int] = "hello", **more: Any) -> Reply:
        """Ask the decoder."""
        return self.client.ask("/v1/completions", {"prompt": prompt, "max_tokens": 4, **more})

    def predict(self, x: float, seconds: float = 0.0) -> Reply:
        """Ask the handler, which takes so many seconds."""
        return self.client.ask("/predict", {"inputs": {"x": x, "s": seconds}})

    def predict_until(self, x: float, there: Path) -> Reply:
        """Ask the handler, which answers when there is this file."""
        return self.client.ask("/predict", {"inputs": {"x": x, "until": str(there)}})

    def pids(self) -> list[int]:
        """The processes of the replicas that answer."""
        return [member["pid"] for member in self.view["members"]]


Serve = Callable[..., Deployment]


def start(store: Store, model: Path | str, **options: Any) -> Deployment:
    """Serve and wait until it answers."""
    job_id = deploy.serve(store, str(model), **options)
    deploy.wait_ready(store, job_id, 60)
    return Deployment(store, job_id, Client.of(store, job_id))


def end(store: Store, job_ids: list[str]) -> None:
    """Stop what has not ended, and wait until its nodes are free again."""
    for job_id in job_ids:
        if jobs.job_view(store, job_id)["state"] not in TERMINAL_STATES:
            jobs.stop(store, job_id)
            jobs.wait(store, job_id, timeout_s=60)
    deadline = time.monotonic() + 50
    while any(set(node["jobs"]) & set(job_ids) for node in cluster.status(store)["nodes"]):
        assert time.monotonic() < deadline, "nodes still run what has ended"
        time.sleep(0.02)


@pytest.fixture
def serve(shared_cluster: Store) -> Iterator[Serve]:
    """serve(model, **options): a deployment on the shared cluster, stopped when the test is over."""
    begun: list[str] = []

    def begin(model: Path, **options: Any) -> Deployment:
        found = start(shared_cluster, model, **options)
        begun.append(found.job_id)
        return found

    try:
        yield begin
    finally:
        end(shared_cluster, begun)


@pytest.fixture(scope="module")
def chat(shared_cluster: Store, decoder: Path) -> Iterator[Deployment]:
    """A deployment of the tiny decoder for all tests of a module that only ask it something."""
    found = start(shared_cluster, decoder, name="chat")
    try:
        yield found
    finally:
        end(shared_cluster, [found.job_id])


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; raises AssertionError."""
    for _ in range(5000):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("not within 50 s")
