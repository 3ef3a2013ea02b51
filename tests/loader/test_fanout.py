"""Ranks of one job share a load: real processes, a real object store, bytes counted at its side."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import xxhash

from jupyter_hyperpod.loader.read.plan import CHUNK_BYTES
from tests.conftest import SHARED_MARK
from tests.loader.crew import Crew, Zygote, digests
from tests.loader.models import encoded
from tests.runtime.conftest import Submit, job
from tests.support.faulty_proxy import Faults
from tests.support.s3_servers import S3Server, ask

__all__ = ["job"]

BLOCKS = 8
SLOW = Faults(bytes_per_s=8e6)  # a second a chunk and connection


@pytest.fixture(scope="module")
def state() -> dict[str, torch.Tensor]:
    make = torch.Generator().manual_seed(1)
    rows, width = 256, CHUNK_BYTES // 1024
    return {
        f"layers.{block}.{kind}.weight": torch.randint(-(2**31), 2**31, (rows // 2, width), generator=make).int()
        for block in range(BLOCKS)
        for kind in ("up_proj", "o_proj")
    }


@pytest.fixture(scope="module")
def server(lean_s3: S3Server, state: dict[str, torch.Tensor]) -> S3Server:
    assert lean_s3.root is not None
    (lean_s3.root / "fan").mkdir()
    (lean_s3.root / "fan" / "model.safetensors").write_bytes(encoded(state))
    return lean_s3


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(SHARED_MARK, "crew")  # it outlives the test that asks for it first
        made = Zygote()
    yield made
    made.close()


@pytest.fixture
def crew(zygote: Zygote, tmp_path: Path) -> Iterator[Crew]:
    made = Crew(zygote, tmp_path)
    try:
        yield made
    finally:
        made.end()


def place(server: S3Server, apart: bool, node: str) -> dict[str, str]:
    """The environment of a rank; those `apart` behave like ranks of different hosts, unless they are of one node."""
    if not apart:
        return server.environment
    return server.environment | {"HYPERPOD_SOCKETS_ONLY": "1", "HYPERPOD_NODE": node, "HYPERPOD_ENCRYPT": "on"}


def once(alone: int, state: dict[str, torch.Tensor]) -> float:
    """The most bytes that are read together where each alone would make `alone` times all: late ones are read again."""
    return sum(tensor.nbytes for tensor in state.values()) * (1 + alone) / 2


def sent(server: S3Server) -> int:
    return ask(server.process)["body_bytes"]


def size(state: dict[str, torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in state.values())


@pytest.mark.parametrize("nodes", ["", "aabb", "abcd"], ids=["one host", "two hosts", "four hosts"])
def test_the_store_is_read_once_for_all_ranks(
    nodes: str, crew: Crew, server: S3Server, state: dict[str, torch.Tensor], eventually: Callable[..., Any]
) -> None:
    before = sent(server)
    (crew.job.path / "coordinator.json").write_text(json.dumps({"host": "127.0.0.1", "port": 9}))
    for at, name in enumerate("abcd"):
        bind = {"HYPERPOD_BIND": "auto"} if nodes else {}
        crew.start(name, f"{server.url}/fan", place(server, bool(nodes), nodes[at:][:1]) | bind)
    records = [eventually(lambda name=name: crew.record(name), 60) for name in "abcd"]
    assert all(record.get("tensors") == digests(state) for record in records), records
    assert sent(server) - before <= once(2 if nodes == "aabb" else 4, state)


@pytest.mark.parametrize("apart", [False, True], ids=["one host", "different hosts"])
def test_a_late_joiner_loads_from_a_peer_for_as_long_as_one_lives(
    apart: bool, crew: Crew, server: S3Server, state: dict[str, torch.Tensor], eventually: Callable[..., Any]
) -> None:
    url = f"{server.url}/fan"
    first = crew.start(
        "first", url, place(server, apart, "a"), scribble=True
    )  # its own copy is not what it gives to others
    eventually(lambda: crew.record("first"), 60)
    before = sent(server)
    late = crew.start("late", url, place(server, apart, "b"))
    record = eventually(lambda: crew.record("late"), 60)
    assert record["tensors"] == digests(state)
    assert sent(server) - before <= size(state) / 2
    for pid in (first, late):
        os.kill(pid, signal.SIGKILL)
    crew.start("alone", url, place(server, apart, "c"))
    record = eventually(lambda: crew.record("alone"), 60)
    assert record["tensors"] == digests(state)
    assert sent(server) - before >= size(state)


@pytest.mark.parametrize("apart", [False, True], ids=["one host", "four hosts"])
@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_dies_or_stands_still_is_not_waited_for(
    blow: signal.Signals, apart: bool, crew: Crew, server: S3Server, state: dict[str, torch.Tensor],
    eventually: Callable[..., Any], fault_proxy: Callable[..., Any],
) -> None:  # fmt: skip
    _, slow = fault_proxy(server, SLOW)
    pids = {name: crew.start(name, f"{slow.url}/fan", place(slow, apart, name), connections=2) for name in "abcd"}
    eventually(lambda: crew.begun("a"))
    assert crew.record("a") is None
    os.kill(pids["a"], blow)
    for name in "bcd":
        assert eventually(lambda name=name: crew.record(name), 60)["tensors"] == digests(state)
    if blow == signal.SIGSTOP:
        os.kill(pids["a"], signal.SIGCONT)
        assert eventually(lambda: crew.record("a"), 60)["tensors"] == digests(state)


def test_slices_are_shared_by_the_ranks_that_hold_the_same(
    crew: Crew, server: S3Server, state: dict[str, torch.Tensor], eventually: Callable[..., Any]
) -> None:
    before = sent(server)
    for number, name in enumerate("abcd"):
        crew.start(name, f"{server.url}/fan", server.environment, tp=(number % 2, 2))
    records = [eventually(lambda name=name: crew.record(name), 60) for name in "abcd"]
    for number, record in enumerate(records):
        assert record["tensors"] == columns(state, number % 2, 2)
    assert sent(server) - before <= once(2, state)


def columns(state: dict[str, torch.Tensor], rank: int, size: int) -> dict[str, str]:
    """What a tensor-parallel rank has to hold."""
    dims = {name: 1 if "o_proj" in name else 0 for name in state}
    return digests({name: tensor.tensor_split(size, dims[name])[rank] for name, tensor in state.items()})


@pytest.mark.parametrize("size", [3, 8])
def test_tensor_parallel_ranks_read_every_row_once(
    size: int, crew: Crew, server: S3Server, state: dict[str, torch.Tensor], eventually: Callable[..., Any]
) -> None:
    before = sent(server)
    for rank in range(size):
        crew.start(f"{rank}", f"{server.url}/fan", server.environment, tp=(rank, size))
    for rank in range(size):
        record = eventually(lambda rank=rank: crew.record(f"{rank}"), 60)
        assert record["tensors"] == columns(state, rank, size), record.get("error")
    assert sent(server) - before <= once(size, state)
    assert not list((crew.job.path / "fanout").glob("rows-*/at-*")), "the rows are let go when all have their columns"


def test_tensor_parallel_ranks_of_two_hosts_have_rows_from_each_other(
    zygote: Zygote, tmp_path: Path, server: S3Server, state: dict[str, torch.Tensor], eventually: Callable[..., Any]
) -> None:
    before, crew = sent(server), Crew(zygote, tmp_path, replica=2)
    (crew.job.path / "coordinator.json").write_text(json.dumps({"host": "127.0.0.1", "port": 9}))
    try:
        for rank, host in product(range(2), "ab"):
            environment = place(server, True, host) | {"HYPERPOD_BIND": "auto"}
            crew.start(f"{host}{rank}", f"{server.url}/fan", environment, tp=(rank, 2))
        for rank, host in product(range(2), "ab"):
            record = eventually(lambda name=f"{host}{rank}": crew.record(name), 60)
            assert record["tensors"] == columns(state, rank, 2), record.get("error")
    finally:
        crew.end()
    assert sent(server) - before < 3 * size(state), "each host reads it once, each rank alone would be four times"


def test_rows_that_nobody_else_comes_to_read_are_read_alone(
    crew: Crew, server: S3Server, state: dict[str, torch.Tensor], eventually: Callable[..., Any]
) -> None:
    crew.start("alone", f"{server.url}/fan", server.environment, tp=(1, 3))
    record = eventually(lambda: crew.record("alone"), 60)
    assert record["tensors"] == columns(state, 1, 3), record.get("error")


def test_off_and_jobs_of_one_rank_read_for_themselves(
    tmp_path: Path, crew: Crew, server: S3Server, state: dict[str, torch.Tensor], eventually: Callable[..., Any]
) -> None:
    before = sent(server)
    for name in "ab":
        crew.start(name, f"{server.url}/fan", server.environment, fanout="off")
    for name in "ab":
        assert eventually(lambda name=name: crew.record(name), 60)["tensors"] == digests(state)
    assert sent(server) - before >= 2 * size(state)
    assert not (crew.job.path / "fanout").exists()
    crew.start("c", f"{server.url}/fan", server.environment, fanout="sometimes")
    assert "auto, off" in eventually(lambda: crew.record("c"), 60)["error"]


CELL = """
import os, torch, torch.distributed as dist, xxhash, jupyter_hyperpod as hp
dist.init_process_group("gloo")
state = hp.load_model("{url}")
dist.barrier()
whole = xxhash.xxh3_128()
for name in sorted(state):
    whole.update(state[name].numpy().data)
    state[name].zero_()
print("loaded", whole.hexdigest())
dist.barrier()
dist.destroy_process_group()
"""


def test_the_ranks_of_a_job_on_a_cluster(job: Submit, server: S3Server, state: dict[str, torch.Tensor]) -> None:
    whole = xxhash.xxh3_128()
    for name in sorted(state):
        whole.update(state[name].numpy().data)
    before = sent(server)
    run = job(CELL.replace("{url}", f"{server.url}/fan"), nodes=4, spares=0, env=server.environment)
    run.finish()
    assert run.text() == {rank: f"loaded {whole.hexdigest()}\n" for rank in range(4)}
    assert [load["state"] for load in run.view["loads"]] == ["loaded"] * 4
    assert sent(server) - before <= once(4, state)
