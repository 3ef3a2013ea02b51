"""Trials of the devices' exchange of gradients, which the self-check runs in jobs: faults in collectives, and times."""

from __future__ import annotations

import hashlib
import os
import secrets
import signal
import socket
import statistics
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch import distributed

from ..policy.batching import assign, holdings_of
from .comm import process_group
from .comm.device_collectives import DeviceCollectives
from .comm.kinds import CHUNK, Kind, gloo
from .comm.mesh import Address, Mesh, MeshListener, PeerLost, all_gather
from .comm.pair_transfer import StripeServer, fetch, source_of
from .comm.process_group import ProcessGroup
from .comm.reduction import FinishedNodes, Layout
from .micro_batch.gradient_capture import GradientCapture
from .preflight import show, train
from .session.session import Session

LATE_S = 2.0  # until a collective hangs
ALONE_S = 0.1  # per micro-batch, while a rank is restarted
STRIKES = ("kill", "stop", "hang", "abort")
TIMEOUT_S = 60.0
FORMED, ROUNDS, STEPS = 5, 5, 6
WIDTH, LAYERS, BATCH, STRIPE_BYTES = 512, 8, 128, 64 << 20
TEXT_BYTES = 128


def train_struck(steps: int, pause_s: float, device: str, collective: str, nodes: int) -> None:
    """The training of `preflight`, in which the last rank strikes itself in ``collective``, once in each of `STRIKES`.

    It strikes only while all ``nodes`` take part; the others wait longer for a rank that is restarted.
    """
    enter = getattr(ProcessGroup, collective)
    opened: list[Session] = []

    def struck(group: ProcessGroup, *given: Any) -> None:
        session = opened[0]
        if session.world_size == nodes > 1 and session.rank == nodes - 1 and session.step > 1:
            fault = next((fault for fault in STRIKES if session._group.once(f"strike {collective} {fault}")), "")
            strike(group, fault)
        enter(group, *given)

    def pause() -> None:
        time.sleep(pause_s if opened[0].world_size == nodes else ALONE_S)

    setattr(ProcessGroup, collective, struck)
    process_group.LATE_S = LATE_S  # of this process, which only trains this
    train(steps, 0.0, device, opened.append, pause)
    if opened[0].rank == 0:
        show({"struck": [f for f in STRIKES if not opened[0]._group.once(f"strike {collective} {f}")]})


def strike(group: ProcessGroup, fault: str) -> None:
    """Suffer ``fault`` (one of `STRIKES`, or "" for none) where the other members are in a collective."""
    if fault in ("kill", "stop"):
        os.kill(os.getpid(), signal.SIGKILL if fault == "kill" else signal.SIGSTOP)
    elif fault == "hang":
        group.run(_endless)
    elif fault == "abort":
        group.run(_aborted)


def _endless(_: Any) -> None:
    threading.Event().wait()


def _aborted(_: Any) -> None:
    raise RuntimeError("aborted by the self-check")


def measure(device_type: str) -> None:
    """Form process groups, compare a step with that of DDP, and fetch a stripe of bytes; every rank shows its times."""
    rank = int(os.environ["RANK"])
    host = _own_address()
    kind, pair, device = _kinds(device_type, rank, host)
    distributed.init_process_group(kind.name, timeout=timedelta(seconds=TIMEOUT_S))
    secret = bytes.fromhex(_gather(secrets.token_hex(32), device)[0])
    with socket.create_server((host, 0)) as listener:
        entrance = MeshListener(listener, secret)
        found = [text.split() for text in _gather(f"{host} {listener.getsockname()[1]}", device)]
        addresses = [Address(name, int(port)) for name, port in found]
        mesh = entrance.form(1, rank, addresses, -1, _nothing, _nothing)
        entrance.close()
    links = TrialLinks(mesh)
    shown = {"rank": rank, "verified_on": f"{kind.description}, {kind.name}, torch {torch.__version__}"}
    show(shown | _formed(kind, links) | _steps(kind, links) | _fetched(pair, links, host, secret, device))
    distributed.barrier()
    mesh.close()
    distributed.destroy_process_group()


class TrialLinks:
    """The members of a trial: see `Links`. Without a coordinator, a lost peer ends the trial."""

    collectives = host = ""
    near: frozenset[int] = frozenset()
    neighbours: frozenset[Any] = frozenset()

    def __init__(self, mesh: Mesh) -> None:
        self.generation, self.rank, self.world_size = mesh.generation, mesh.rank, mesh.world_size
        self._mesh = mesh

    def exchange(self, sends: Any, receives: Any) -> None:
        """Exchange buffers. Raises PeerLost."""
        self._mesh.exchange(sends, receives, -1, _nothing)

    def wait_for(self, descriptor: int, timeout_s: float | None = None) -> bool:
        """Wait until `descriptor` can be read; False after the timeout. Raises PeerLost."""
        return self._mesh.wait_for(descriptor, timeout_s, -1, _nothing)

    def lost(self, lost: PeerLost, cause: Exception | None = None) -> Any:
        """Raise what was lost."""
        raise lost from cause

    def warn(self, text: str) -> None:
        """The error that follows says it."""


def _own_address() -> str:
    """The address from which this node reaches rank 0."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))  # sends nothing
        return str(probe.getsockname()[0])


def _kinds(device_type: str, rank: int, host: str) -> tuple[Kind, Kind, torch.device]:
    """The kind of a generation's groups and of pairs, and this rank's device."""
    if device_type == "cpu":
        return gloo(host), gloo(host, CHUNK), torch.device("cpu")
    from .comm.cuda import nccl, nccl_pair

    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return nccl(device), nccl_pair(device), device


def _gather(text: str, device: torch.device) -> list[str]:
    """A text of every rank."""
    own = torch.tensor(list(text.encode().ljust(TEXT_BYTES)), dtype=torch.uint8, device=device)
    others = [torch.empty_like(own) for _ in range(distributed.get_world_size())]
    distributed.all_gather(others, own)
    return [bytes(other.tolist()).decode().rstrip() for other in others]


def _formed(kind: Kind, links: TrialLinks) -> dict[str, Any]:
    """Median times to form a process group, and to give one up."""
    forming, aborting = [], []
    for _ in range(FORMED if links.world_size > 1 else 0):
        distributed.barrier()
        began_s = time.perf_counter()
        group = ProcessGroup(kind, links)
        forming.append(time.perf_counter() - began_s)
        distributed.barrier()
        began_s = time.perf_counter()
        group.abandon()
        aborting.append(time.perf_counter() - began_s)
    return {"form_s": _median(forming), "abort_s": _median(aborting)}


def _steps(kind: Kind, links: TrialLinks) -> dict[str, Any]:
    """Median times of forward, backward and exchange, of ours and of DDP's, in turn, and that of our exchange."""
    rank, world = links.rank, links.world_size
    model, theirs_model = (
        torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))).to(kind.device) for _ in "ab"
    )
    wrapped = torch.nn.parallel.DistributedDataParallel(theirs_model)
    batch = torch.randn(BATCH, WIDTH, device=kind.device)
    parameters = list(model.parameters())
    collectives = DeviceCollectives(links, kind, partial(Layout, parameters, 0, 0))
    collectives.begin([])
    finished, capture = FinishedNodes(collectives.layout, world), GradientCapture(parameters)
    holdings = holdings_of([()] * world, assign(world, world), world)
    weights = torch.zeros(world, dtype=torch.float64)
    weights[rank] = 1.0
    exchanging: list[float] = []

    def ours() -> None:
        buffer, adding = finished.open(rank)
        capture.backward(model(batch).square().mean(), buffer, adding)
        buffer.meta.zero_()
        finished.close(rank, buffer)
        kind.finish()
        began_s = time.perf_counter()
        collectives.reduce(finished, holdings, [], weights, True)
        kind.finish()
        exchanging.append(time.perf_counter() - began_s)
        finished.clear()

    def theirs() -> None:
        wrapped(batch).square().mean().backward()
        theirs_model.zero_grad()
        kind.finish()

    times: dict[Callable[[], None], list[float]] = {ours: [], theirs: []}
    for number in range(ROUNDS + 1):  # the first warms up
        for act, found in times.items():
            distributed.barrier()
            began_s = time.perf_counter()
            for _ in range(STEPS):
                act()
            if number:
                found.append((time.perf_counter() - began_s) / STEPS)
    capture.release()
    collectives.release()
    return {"step_s": _median(times[ours]), "ddp_s": _median(times[theirs]), "exchange_s": _median(exchanging)}


def _fetched(pair: Kind, links: TrialLinks, host: str, secret: bytes, device: torch.device) -> dict[str, Any]:
    """Rank 1 fetches a stripe of rank 0 by a process group of the two; whether it has the same bits, and how fast."""
    rank = links.rank
    stripe = torch.arange(STRIPE_BYTES, device=device).to(torch.uint8) if rank == 0 else torch.empty(0)
    server = StripeServer(pair, host, secret, 1, stripe) if rank == 0 else None
    digest = hashlib.sha256(stripe.cpu().numpy().tobytes()).hexdigest()
    sources, digests = _gather(server.source.text() if server else "", device), _gather(digest, device)
    found: dict[str, Any] = {}
    if rank == 1:
        began_s = time.perf_counter()
        (copy,) = fetch(pair, host, secret, [source_of(sources[0])], _until_readable)
        found["fetch_mb_s"] = STRIPE_BYTES / 1e6 / (time.perf_counter() - began_s)
        found["fetched"] = hashlib.sha256(copy.cpu().numpy().tobytes()).hexdigest() == digests[0]
    # a collective that waits on the device would hold up the pair, whose forming waits for the device
    all_gather(links.exchange, links.rank, links.world_size, b".")
    if server is not None:
        server.close()
    return found


def _until_readable(descriptor: int) -> None:
    import select

    select.select([descriptor], [], [], TIMEOUT_S)


def _median(found: list[float]) -> float:
    return statistics.median(found) if found else 0.0


def _nothing(*_: Any) -> None:
    """No coordinator is watched."""
