"""A deployment's new replica, from the decision to its first answer, stage by stage; and replicas killed under load."""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from ..control import cluster, deploy, jobs
from ..core.errors import ClusterError
from ..core.events import REPLICA_STAGES
from ..recipes import catalogue
from ..recipes.config import DecoderConfig
from ..recipes.decoder import Decoder
from ..storage.store import Store
from .clients import Client, Drive
from .laboratory import laboratory, progress
from .report import bar, report, row

T = TypeVar("T")
LOAD_LIMIT = 1.2  # times what loading takes alone
KILL_EVERY_S = 2.0
WAIT_S = 120.0
_ALONE = """
import sys, time
import torch
from jupyter_hyperpod.serving.models import weights
began_s = time.monotonic()
found = weights(sys.argv[1], lambda done, total: None)
print(time.monotonic() - began_s)
"""


def run(
    runs: int = 5, layers: int = 16, width: int = 1024, rate: float = 50.0, seconds: float = 20.0
) -> dict[str, Any]:
    """Scale a decoder of ``layers`` and ``width`` (by default 1 GB) out ``runs`` times, each time beside loading it in
    a process of its own; then kill a replica of a small one every two seconds under ``rate`` requests a second."""
    with laboratory(nodes=3, spares=0) as store:
        large, small = write_decoder(store, "large", layers, width), write_decoder(store, "small", 2, 64)
        rows, ratio = _scale_out(store, large, runs)
        more, lost = _killed(store, small, rate, seconds)
    bars = [bar("load_stage_over_loading_alone", ratio, LOAD_LIMIT), bar("accepted_requests_lost", lost, 0)]
    return report("serving", [*rows, *more], bars)


def write_decoder(store: Store, name: str, layers: int, width: int) -> Path:
    """Write a decoder with random weights, one safetensors file and its ``config.json``, to the store's shared area."""
    config = replace(
        catalogue.load("llama-tiny").config,
        vocab_size=256,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=width // 16,
        num_key_value_heads=width // 32,
        head_dim=16,
    )
    folder = store.shared / name
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(asdict(config)))
    _write_weights(folder / "model.safetensors", config)
    return folder


def _write_weights(path: Path, config: DecoderConfig) -> None:
    with torch.device("meta"):
        shapes = {name: tuple(tensor.shape) for name, tensor in Decoder(config).state_dict().items()}
    header, at = {}, 0
    for name, shape in shapes.items():
        size = 4 * torch.Size(shape).numel()
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for shape in shapes.values():
            file.write((torch.rand(shape) * 0.04 - 0.02).numpy().tobytes())


def _scale_out(store: Store, model: Path, runs: int) -> tuple[list[dict[str, Any]], float]:
    job_id = deploy.serve(store, str(model), name="large", replicas="1:2", scale_down_delay_s=3600.0)
    deploy.wait_ready(store, job_id)
    client = Client.of(store, job_id)
    _until(lambda: _replicas(client) == 1)
    took: dict[str, list[float]] = {stage: [] for stage in REPLICA_STAGES}
    alone = []
    for number in range(runs):
        jobs.scale(store, job_id, 2)
        stages = _newest(store, job_id, number + 2)
        for stage in REPLICA_STAGES:
            took[stage].append(stages[stage])
        jobs.scale(store, job_id, 1)
        _until(lambda: _replicas(client) == 1)
        alone.append(_loaded_alone_s(model))
        progress(f"scale-out {number}: first answer after {stages['answered']:.2f} s; loading alone {alone[-1]:.2f} s")
    jobs.stop(store, job_id)
    jobs.wait(store, job_id)
    loads = [loaded - loading for loading, loaded in zip(took["loading"], took["loaded"], strict=True)]
    size = f"{(model / 'model.safetensors').stat().st_size / 1e9:.2f} GB"
    rows = [row("jupyter_hyperpod", size, f"decision to {stage}", "s", samples) for stage, samples in took.items()]
    rows += [row("jupyter_hyperpod", size, "load stage", "s", loads), row("loader", size, "loading alone", "s", alone)]
    return rows, statistics.median(loads) / statistics.median(alone)


def _newest(store: Store, job_id: str, number: int) -> dict[str, float]:
    """The stages of the replica with this number, once it has answered: stage -> seconds since the decision."""

    def found() -> dict[str, float]:
        replicas = jobs.job_view(store, job_id)["deployment"]["replicas"]
        stages = {s["stage"]: s["took_s"] for s in replicas[number - 1]["stages"]} if len(replicas) >= number else {}
        return stages if "answered" in stages else {}

    return _until(found)


def _loaded_alone_s(model: Path) -> float:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", _ALONE, str(model)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


def _replicas(client: Client) -> int:
    return len(client.ask("/healthz").json()["replicas"])


def _killed(store: Store, model: Path, rate: float, seconds: float) -> tuple[list[dict[str, Any]], int]:
    _until(lambda: all(node["state"] == "idle" for node in cluster.status(store)["nodes"]))
    job_id = deploy.serve(store, str(model), name="killed", replicas="2")
    deploy.wait_ready(store, job_id)
    client, over, kills = Client.of(store, job_id), threading.Event(), [0]

    def kill() -> None:
        while not over.wait(KILL_EVERY_S):
            if members := jobs.job_view(store, job_id)["members"]:
                os.kill(random.choice(members)["pid"], signal.SIGKILL)
                kills[0] += 1

    killer = threading.Thread(target=kill)
    killer.start()
    body = {"max_tokens": 4}
    replies = Drive(client, "/v1/completions", lambda at: body | {"prompt": f"request {at}"}, rate).run(seconds)
    over.set()
    killer.join()
    health = client.ask("/healthz").json()
    jobs.stop(store, job_id)
    jobs.wait(store, job_id)
    lost = sum(reply.status != 200 for reply in replies)
    progress(f"{kills[0]} replicas killed: {len(replies)} requests, {lost} lost, {health['retried']} sent again")
    case = f"{rate:g} requests/s, {kills[0]} replicas killed"
    counts = {"accepted": len(replies), "answered": len(replies) - lost, "lost": lost, "sent again": health["retried"]}
    rows = [row("jupyter_hyperpod", case, name, "requests", [count]) for name, count in counts.items()]
    return [*rows, row("jupyter_hyperpod", case, "latency", "s", [reply.took_s for reply in replies])], lost


def _until(condition: Callable[[], T]) -> T:
    deadline_s = time.monotonic() + WAIT_S
    while not (found := condition()):
        if time.monotonic() > deadline_s:
            raise ClusterError(f"the deployment did not get there in {WAIT_S:g} s")
        time.sleep(0.02)
    return found
