"""A newcomer gets the state by process groups of two, while the members train: the same bits, whoever is killed."""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from jupyter_hyperpod.runtime.comm import pair_transfer
from jupyter_hyperpod.runtime.comm.kinds import CHUNK, gloo
from jupyter_hyperpod.runtime.comm.pair_transfer import StripeServer, StripeSource, fetch, source_of
from jupyter_hyperpod.runtime.comm.reduction import as_bytes
from jupyter_hyperpod.runtime.comm.snapshot import StripeMemory, fill, gathered

from .conftest import TRAIN, Run, Submit
from .meshes import SECRET

HOST = "127.0.0.1"
PAIR = gloo(HOST, CHUNK)


def until_readable(descriptor: int) -> None:
    assert select.select([descriptor], [], [], 50)[0]


def test_stripes_of_several_donors_are_the_state(eventually: Callable[..., Any]) -> None:
    tensors = [torch.randn(1000, 33), torch.zeros(0), torch.tensor(3), torch.randn(7).to(torch.bfloat16)]
    memories = [StripeMemory() for _ in range(3)]
    for part, memory in enumerate(memories):
        memory.write(tensors, part, 3)
    stripes = [memory.content() for memory in memories]
    assert all(torch.equal(a, gathered(tensors, part, 3, a.device)) for part, a in enumerate(stripes))
    servers = [StripeServer(PAIR, HOST, SECRET, 4, stripe) for stripe in stripes]
    sources = [source_of(server.source.text()) for server in servers]
    for _ in range(2):  # two newcomers
        copies = [torch.empty_like(tensor) for tensor in tensors]
        for part, stripe in enumerate(fetch(PAIR, HOST, SECRET, sources, until_readable)):
            fill(copies, as_bytes(stripe), part, 3)
        assert all(torch.equal(a, b) for a, b in zip(copies, tensors, strict=True))
    for server in servers:
        server.close()
    eventually(lambda: not any(thread.name == "hyperpod-stripe" for thread in threading.enumerate()))


def test_a_stripe_is_for_those_only_who_know_the_secret() -> None:
    server = StripeServer(PAIR, HOST, SECRET, 1, torch.zeros(10, dtype=torch.uint8))
    tried = threading.Event()

    def wait(descriptor: int) -> None:
        tried.set()
        assert not select.select([descriptor], [], [], 0.5)[0]
        raise TimeoutError

    with pytest.raises(TimeoutError):
        fetch(PAIR, HOST, b"x" * 32, [server.source], wait)
    server.close()


def test_a_donor_that_has_gone_is_said_at_once() -> None:
    with socket.create_server((HOST, 0)) as gone:
        source = StripeSource(HOST, gone.getsockname()[1], 1, 10)
    server = StripeServer(PAIR, HOST, SECRET, 1, torch.zeros(10, dtype=torch.uint8))
    with pytest.raises(OSError, match="did not arrive"):
        fetch(PAIR, HOST, SECRET, [server.source, source], until_readable)
    server.close()


def test_a_donor_that_stops_in_mid_transfer_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_transfer, "CHUNK_BYTES", 1 << 16)
    stripe = torch.zeros(1 << 20, dtype=torch.uint8)
    server = StripeServer(PAIR, HOST, SECRET, 1, stripe)
    count = 0
    send = pair_transfer.ProcessGroup.send

    def sent(group: pair_transfer.ProcessGroup, chunk: torch.Tensor, rank: int) -> None:
        nonlocal count
        count += 1
        if count == 3:
            server.close()
        send(group, chunk, rank)

    monkeypatch.setattr(pair_transfer.ProcessGroup, "send", sent)
    with pytest.raises(OSError, match="did not arrive"):
        fetch(PAIR, HOST, SECRET, [server.source], until_readable)


def test_any_error_of_one_stripe_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("no such device")

    server = StripeServer(PAIR, HOST, SECRET, 1, torch.zeros(10, dtype=torch.uint8))
    monkeypatch.setattr(pair_transfer.ProcessGroup, "receive", broken)
    with pytest.raises(OSError, match="did not arrive: no such device"):
        fetch(PAIR, HOST, SECRET, [server.source], until_readable)
    server.close()


def test_other_text_names_no_source() -> None:
    for text in ("", "[1]", "{", "[1, 2, 3]"):
        with pytest.raises(OSError, match="names no source"):
            source_of(text)


# members of different hosts, as far as they can tell; every transfer is shown, and waits for the file `go`
APART = {"HYPERPOD_SOCKETS_ONLY": "1", "PAUSE_S": "0.02"}
SHOWN = """
import os, time
from jupyter_hyperpod.runtime.comm import transfer
from jupyter_hyperpod.runtime.comm.process_group import ProcessGroup
send, receive, take = ProcessGroup.send, ProcessGroup.receive, transfer.StateTransfer.take
def hold(name):
    open(os.path.join(os.environ["FOLDER"], f"{name}-{os.getpid()}"), "a").close()
    end = time.monotonic() + 60
    while not os.path.exists(os.path.join(os.environ["FOLDER"], "go")) and time.monotonic() < end:
        time.sleep(0.01)
def sends(*given):
    hold("send")
    send(*given)
def receives(*given):
    hold("receive")
    receive(*given)
def takes(*given):
    told = take(*given)
    with open(os.path.join(os.environ["FOLDER"], "told"), "a") as file:
        file.write(told + "\\n")
    return told
ProcessGroup.send, ProcessGroup.receive, transfer.StateTransfer.take = sends, receives, takes
"""


def held(run: Run, folder: Path, name: str, count: int) -> list[int]:
    """The processes that are in mid-transfer, once there are ``count``."""
    run.until(lambda: len(list(folder.glob(f"{name}-*"))) >= count or run.ended, 60)
    return [int(path.name.rpartition("-")[2]) for path in folder.glob(f"{name}-*")]


def grown(job: Submit, folder: Path) -> Run:
    """A run of two members, and a newcomer that is in mid-transfer."""
    env = {**APART, "FOLDER": str(folder)}  # a folder of temporary files that is named in the cell is refused
    run = job(SHOWN + TRAIN, nodes=2, elastic="1:3", collectives="gloo", env=env)
    run.until_step(2)
    run.scale(3)
    held(run, folder, "send", 2)
    return run


def test_members_train_on_while_a_newcomer_gets_the_state(job: Submit, reference: Run, tmp_path: Path) -> None:
    run = grown(job, tmp_path)
    before = max(run.losses())
    run.until_step(before + 2)  # nobody waits for the transfer
    (tmp_path / "go").touch()
    run.until_world(3)
    run.finish()
    assert "by process groups of two, while they trained" in (tmp_path / "told").read_text(), run.story()
    run.same_as(reference)


@pytest.mark.parametrize("struck", ["send", "receive"], ids=["a donor", "the newcomer"])
def test_a_side_that_is_killed_in_mid_transfer_changes_no_bit(
    job: Submit, reference: Run, tmp_path: Path, struck: str
) -> None:
    run = grown(job, tmp_path)
    os.kill(held(run, tmp_path, struck, 1)[-1], signal.SIGKILL)
    (tmp_path / "go").touch()
    run.finish()
    run.same_as(reference)
