"""A deployment's new replica, from the decision to its first answer, stage by stage; and replicas killed under load."""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import torch

from benchmarks.kept import Kept, Result
from benchmarks.loading.hosts import Facts, Host
from benchmarks.loading.loaders.process import Task
from benchmarks.loading.rig import Reserve
from jupyter_hyperpod.bench.laboratory import Observer, laboratory, progress, wait_for_idle
from jupyter_hyperpod.bench.report import bar, report, row
from jupyter_hyperpod.control import deploy, jobs
from jupyter_hyperpod.core.errors import ClusterError
from jupyter_hyperpod.core.events import REPLICA_STAGES
from jupyter_hyperpod.recipes import catalogue
from jupyter_hyperpod.recipes.config import DecoderConfig
from jupyter_hyperpod.recipes.decoder import Decoder
from jupyter_hyperpod.storage.store import Store
from tests.support.deployment_clients import Client, Drive, Reply
from tests.support.s3_servers import lean

T = TypeVar("T")
LOAD_LIMIT = 1.2  # times what loading takes alone
KILL_EVERY_S = 2.0
WAIT_S = 120.0
FORMAT = 2  # of what is kept of a round
WEIGHTS = "model.safetensors"
CASES = {"store": "lean server", "local": "local file"}
ROUNDS = {"store": 1, "local": 3}  # for each that is asked for: one of a few milliseconds varies more
BARS = {"store": "load_stage_over_loading_alone", "local": "load_stage_of_local_file_over_loading_alone"}


def run(
    runs: int = 5,
    layers: int = 16,
    width: int = 1024,
    rate: int = 50,
    seconds: int = 20,
    keep: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """``runs`` times, deploy a decoder of ``layers`` and ``width`` (by default 1 GB) from a lean object store, and
    three times as often scale one from a local file out; before and after that, load it in a warm process that does
    nothing else. Loads are judged as the loader's own bars judge them: until every page was touched, which takes as
    long in either. ``runs`` times, kill a replica of a small one every two seconds under ``rate`` requests a second for
    ``seconds``. Rounds found in the directory ``keep`` are not repeated.
    """
    kept = Kept(keep, layers=layers, width=width, rate=rate, seconds=seconds, format=FORMAT)
    growing = {case: [f"{case}-{number}" for number in range(ROUNDS[case] * runs)] for case in CASES}
    dying = [f"kill-{number}" for number in range(runs)]
    if any(name not in kept for name in [*dying, *chain(*growing.values())]):
        with laboratory(nodes=3, spares=0) as store:
            _scale_out(store, growing, kept, layers, width)
            for name in dying:
                if name not in kept:
                    kept.add(name, _killed(store, rate, seconds, random.Random(name)))
                    progress(f"{name}: {kept[name]}")
    found = {case: [kept[name] for name in names] for case, names in growing.items()}
    return _report(found, [kept[name] for name in dying], rate)


def _report(growing: Mapping[str, Sequence[Result]], dying: Sequence[Result], rate: int) -> dict[str, Any]:
    rows, ratios = [], {}
    for case, rounds in growing.items():
        label = f"{rounds[0]['bytes'] / 1e9:.2f} GB, {CASES[case]}"
        loads = [found["loaded"] - found["loading"] for found in rounds]
        calls = [took["call_s"] for found in rounds for took in found["alone"]]
        touching = [took["seconds"] - took["call_s"] for found in rounds for took in found["alone"]]
        rows += [
            row("jupyter_hyperpod", label, f"decision to {stage}", "s", [found[stage] for found in rounds])
            for stage in REPLICA_STAGES
        ]
        rows.append(row("jupyter_hyperpod", label, "load stage", "s", loads))
        rows.append(row("loader", label, "loading alone", "s", calls))
        rows.append(row("loader", label, "then touching every page", "s", touching))
        loads_s, calls_s, touching_s = map(statistics.median, (loads, calls, touching))
        ratios[case] = (loads_s + touching_s) / (calls_s + touching_s)
    kills, lost = (sum(found[name] for found in dying) for name in ("kills", "lost"))
    case = f"{rate} requests/s, {kills} kills"
    units = {"accepted": "requests", "lost": "requests", "sent_again": "requests"}
    units |= {"median_s": "s", "p99_s": "s", "longest_s": "s", "undisturbed_median_s": "s"}
    names = {name: name.removesuffix("_s").replace("_", " ") for name in units}
    rows += [
        row("jupyter_hyperpod", case, names[name], unit, [found[name] for found in dying])
        for name, unit in units.items()
    ]
    bars = [bar(BARS[case], ratio, LOAD_LIMIT) for case, ratio in ratios.items()]
    return report("serving", rows, [*bars, bar("accepted_requests_lost", lost, 0)])


def write_decoder(folder: Path, layers: int, width: int) -> Path:
    """Make ``folder`` and write a decoder with random weights to it: one safetensors file and its ``config.json``."""
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
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(asdict(config)))
    _write_weights(folder / WEIGHTS, config)
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


def _scale_out(store: Store, growing: Mapping[str, Sequence[str]], kept: Kept, layers: int, width: int) -> None:
    if all(name in kept for name in chain(*growing.values())):
        return
    with ExitStack() as stack:
        server = stack.enter_context(lean())
        assert server.root is not None
        model = write_decoder(server.root / "large", layers, width) / WEIGHTS
        size = model.stat().st_size
        reserve = stack.enter_context(closing(Reserve(int(1.5 * size))))
        host = stack.enter_context(Host(sys.executable, "ours"))
        local = Task(str(model))
        tasks = {"store": replace(local, bucket=server.bucket, key=f"large/{WEIGHTS}", endpoint=server.endpoint)}
        tasks["store"] = replace(tasks["store"], environment=server.environment)
        tasks["local"] = local
        missing = {case: [name for name in names if name not in kept] for case, names in growing.items()}
        for name in missing["store"]:
            alone = partial(_alone, host, tasks["store"], reserve)
            before = alone()
            with reserve.released():
                job_id = deploy.serve(store, f"{server.url}/large", name=name, env=server.environment)
                deploy.wait_ready(store, job_id)
                found = _newest(Observer(store, job_id), 1)
            _end(store, job_id)
            _keep(kept, name, found, [before, alone()], size)
        if missing["local"]:
            alone = partial(_alone, host, tasks["local"], reserve)
            _grow(store, str(model.parent), missing["local"], kept, alone, size)


def _grow(store: Store, model: str, names: Sequence[str], kept: Kept, alone: Callable[[], Facts], size: int) -> None:
    """Time second replicas of a deployment."""
    job_id = deploy.serve(store, model, name="local", replicas="1:2", scale_down_delay_s=3600.0)
    deploy.wait_ready(store, job_id)
    client, watch = Client.of(store, job_id), Observer(store, job_id)
    _until(lambda: _replicas(client) == 1)
    for number, name in enumerate(names):
        before = alone()
        jobs.scale(store, job_id, 2)
        found = _newest(watch, number + 2)
        jobs.scale(store, job_id, 1)
        _until(lambda: _replicas(client) == 1)
        _keep(kept, name, found, [before, alone()], size)
    _end(store, job_id)


def _keep(kept: Kept, name: str, stages: Result, alone: Sequence[Facts], size: int) -> None:
    kept.add(name, stages | {"alone": alone, "bytes": size})
    progress(f"{name}: {kept[name]}")


def _end(store: Store, job_id: str) -> None:
    jobs.stop(store, job_id)
    jobs.wait(store, job_id)
    wait_for_idle(store)


def _newest(watch: Observer, number: int) -> dict[str, float]:
    """The stages of the replica with this number, once it has answered: stage -> seconds since the decision."""

    def stages() -> dict[str, float]:
        replicas = watch.view["deployment"]["replicas"][number - 1 : number]
        return {stage["stage"]: stage["took_s"] for replica in replicas for stage in replica["stages"]}

    watch.until(lambda: "answered" in stages(), WAIT_S)
    return stages()


def _alone(host: Host, task: Task, reserve: Reserve) -> Facts:
    host.say(json.dumps(asdict(task)))
    host.expect("ready")
    with reserve.released():
        host.say("go")
        host.expect("loaded")
    host.say("verify")
    return host.facts()


def _replicas(client: Client) -> int:
    return len(client.ask("/healthz").json()["replicas"])


def _killed(store: Store, rate: int, seconds: int, chance: random.Random) -> Result:
    model = store.shared / "small"
    if not model.exists():
        write_decoder(model, 2, 64)
    job_id = deploy.serve(store, str(model), name="killed", replicas="2")
    deploy.wait_ready(store, job_id)
    client, over, kills = Client.of(store, job_id), threading.Event(), [0]
    _until(lambda: client.ask("/healthz").json()["ready"] == 2)

    def ask(drive_s: float) -> list[Reply]:
        body = {"max_tokens": 4}
        return Drive(client, "/v1/completions", lambda at: body | {"prompt": f"request {at}"}, rate).run(drive_s)

    def kill() -> None:
        while not over.wait(KILL_EVERY_S):
            if members := jobs.job_view(store, job_id)["members"]:
                with suppress(ProcessLookupError):  # it has just died of the kill before
                    os.kill(chance.choice(members)["pid"], signal.SIGKILL)
                    kills[0] += 1

    calm = ask(min(5.0, seconds))
    killer = threading.Thread(target=kill)
    killer.start()
    replies = ask(seconds)
    over.set()
    killer.join()
    health = client.ask("/healthz").json()
    _end(store, job_id)
    took = sorted(reply.took_s for reply in replies)
    lost = sum(reply.status != 200 for reply in replies)
    counts = {"kills": kills[0], "accepted": len(replies), "lost": lost, "sent_again": health["retried"]}
    times = {"median_s": statistics.median(took), "p99_s": took[len(took) * 99 // 100], "longest_s": took[-1]}
    return counts | times | {"undisturbed_median_s": statistics.median(reply.took_s for reply in calm)}


def _until(condition: Callable[[], T]) -> T:
    deadline_s = time.monotonic() + WAIT_S
    while not (found := condition()):
        if time.monotonic() > deadline_s:
            raise ClusterError(f"the deployment did not get there in {WAIT_S:g} s")
        time.sleep(0.02)
    return found
