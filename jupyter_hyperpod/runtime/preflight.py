"""Examines a node before training: every rank of a small job runs it and prints JSON after `MARK`."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..health import nvidia, probes, tables
from ..policy.preflight import MARK

if TYPE_CHECKING:
    from .session.session import Session

PROBE_BYTES = 4 << 20
REDUCE_FLOATS = 4 << 20
PEERS_S = 60.0


def examine(directories: dict[str, str]) -> None:
    """Probe this node and print the findings; ``directories`` (mount -> path) are shared by all ranks.

    Each activity is printed before it starts, so that a reader knows what a hanging probe waits for.
    """
    rank, world, node = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), os.environ["HYPERPOD_NODE"]
    found: dict[str, Any] = {"node": node, "rank": rank, "storage": {}}
    show({"node": node, "doing": "counting devices"})
    found |= _devices()
    for name, directory in directories.items():
        show({"node": node, "doing": f"writing and reading the mount {name}"})
        found["storage"][name] = _storage(Path(directory), node, world)
    show({"node": node, "doing": "summing over all ranks"})
    show(found | _reduce(rank, world, bool(found["devices"])))


def train(
    steps: int,
    pause_s: float,
    device: str = "cpu",
    opened: Callable[[Session], None] | None = None,
    pause: Callable[[], None] | None = None,
) -> None:
    """A small training whose losses depend on data, dropout and optimizer, as in a real one.

    On ``device`` "cuda" ranks of one machine take its GPUs in turn. ``opened`` gets the session; ``pause()`` is called
    in every micro-batch, instead of a sleep of ``pause_s``.
    """
    import torch

    from .session.session import Session

    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Dropout(0.2), torch.nn.Linear(32, 1))
    if device == "cuda":
        device = f"cuda:{max(0, int(os.environ['RANK'])) % torch.cuda.device_count()}"
        torch.cuda.set_device(device)
    model.to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = [(x, x.sum().sin()) for x in torch.randn(64, 16)]

    def loss_of(batch: Any) -> Any:
        time.sleep(pause_s) if pause is None else pause()
        inputs, targets = (part.to(device) for part in batch)
        return torch.nn.functional.mse_loss(model(inputs).squeeze(-1), targets)

    with Session(model, optimizer, data, global_batch=16, micro_batch=2, seed=7) as session:
        if opened is not None:
            opened(session)
        for step in session.steps(steps):
            step.run(loss_of)


def show(found: dict[str, Any]) -> None:
    """Print findings of this rank."""
    print(MARK + json.dumps(found), flush=True)


def _devices() -> dict[str, Any]:
    """Device files, EFA interfaces and the driver's version."""
    gpus, neurons = glob.glob("/dev/nvidia[0-9]*"), glob.glob("/dev/neuron[0-9]*")
    place = probes.ProbeRoot()
    known = tables.instance(probes.type_of(place))
    found: dict[str, Any] = {"devices": len(gpus) + len(neurons), "efa": probes.efa(place) or 0}
    found |= {"devices_expected": known.devices if known else None, "efa_expected": known.efa if known else None}
    found |= {"driver": "", "driver_problem": ""}
    if gpus:
        found["driver"], found["driver_problem"] = _version(probes.ask(nvidia.QUERY_DRIVER))
    elif neurons:
        version = Path("/sys/module/neuron/version")
        found["driver"] = version.read_text().strip() if version.exists() else ""
        found["driver_problem"] = "" if version.exists() else f"no {version}"
    return found


def _version(answer: probes.CommandOutput) -> tuple[str, str]:
    """The first line of `nvidia-smi`'s output, and the reason if there is none."""
    if answer.missing or answer.late:
        return "", "nvidia-smi is not installed" if answer.missing else "nvidia-smi does not answer"
    lines = answer.text.split("\n")
    return ("", " ".join(answer.text.split())[:200] or "no answer") if answer.status else (lines[0].strip(), "")


def _storage(directory: Path, node: str, world: int) -> dict[str, Any]:
    """Write random bytes for the others and read theirs. File names are digests, because node names are arbitrary."""
    found: dict[str, Any] = {"written": "", "read": {}, "took_s": 0.0, "problem": ""}
    content = secrets.token_bytes(PROBE_BYTES)
    began_s = time.monotonic()
    try:
        found["written"] = hashlib.sha256(content).hexdigest()
        path = directory / hashlib.sha256(node.encode()).hexdigest()
        with open(path.with_suffix(".new"), "wb") as file:
            file.write(json.dumps(node).encode() + b"\n" + content)
            file.flush()
            os.fsync(file.fileno())
        path.with_suffix(".new").replace(path.with_suffix(".probe"))
        mine_s = time.monotonic() - began_s
        others = _wait_for(directory, world)
        began_s = time.monotonic()
        for other in others:
            name, _, body = other.read_bytes().partition(b"\n")
            found["read"][json.loads(name)] = hashlib.sha256(body).hexdigest()
        found["took_s"] = mine_s + time.monotonic() - began_s
    except (OSError, ValueError) as error:
        found["problem"] = str(error)
    return found


def _wait_for(directory: Path, world: int) -> list[Path]:
    deadline = time.monotonic() + PEERS_S
    while len(paths := sorted(directory.glob("*.probe"))) < world:
        if time.monotonic() > deadline:
            raise OSError(f"{len(paths)} of {world} nodes have written into {directory} within {PEERS_S:g} s")
        time.sleep(0.05)
    return paths


def _reduce(rank: int, world: int, accelerated: bool) -> dict[str, Any]:
    """A sum over all ranks of integers that floats hold exactly, timed."""
    import torch
    from torch import distributed

    usable = accelerated and torch.cuda.is_available()
    backend, device = ("nccl", f"cuda:{os.environ.get('LOCAL_RANK', '0')}") if usable else ("gloo", "cpu")
    size_mb = REDUCE_FLOATS * 4 / 1e6
    found = {"reduce_problem": "", "reduce_mb": size_mb, "reduce_mb_s": 0.0, "backend": backend}
    try:
        distributed.init_process_group(backend, timeout=timedelta(seconds=PEERS_S))
        ramp = torch.arange(REDUCE_FLOATS, device=device) % 1024
        for _ in range(2):  # the first one opens the connections
            mine = (ramp + rank).to(torch.float32)
            distributed.barrier()
            began_s = time.monotonic()
            distributed.all_reduce(mine)
            took_s = time.monotonic() - began_s
        expected = (ramp * world + world * (world - 1) // 2).to(torch.float32)
        found["reduce_mb_s"] = size_mb / took_s
        if not torch.equal(mine, expected):
            found["reduce_problem"] = f"{int((mine != expected).sum())} of {REDUCE_FLOATS} sums are wrong"
        distributed.destroy_process_group()
    except (RuntimeError, ValueError, OSError) as error:
        found["reduce_problem"] = " ".join(str(error).split())[:300]
    return found
