"""A thousand strangers at a gateway and at a replica."""

from __future__ import annotations

import json
import os
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from jupyter_hyperpod.storage.store import Store
from tests.serving.conftest import Serve
from tests.strangers import BOUND_S, PLACES, Wait, all_kinds, descriptors, resident_bytes, strangers


@all_kinds
@pytest.mark.parametrize("whom", ["gateway", "replica"])
def test_deployment(whom: str, kind: str, serve: Serve, number: tuple[Path, Path], eventually: Wait) -> None:
    model, handler = number
    deployment = serve(model, handler=str(handler), replicas="1", name="strangers")
    client = deployment.client
    pid = deployment.pids()[0] if whom == "replica" else gateway_pid(deployment.store, deployment.job_id)
    address = listens(pid)
    before, bytes_before = descriptors(pid), resident_bytes(pid)
    with strangers(address, kind, "http"):
        eventually(lambda: client.ask("/predict", {"inputs": {"x": 2.0}}).status == 200, BOUND_S)
        assert descriptors(pid) <= before + PLACES
        assert resident_bytes(pid) - bytes_before < 64 << 20
    eventually(lambda: descriptors(pid) <= before + 5, BOUND_S, "strangers keep their places")
    assert not deployment.view["incidents"]


def test_a_replica_refuses_every_path_without_its_key(serve: Serve, number: tuple[Path, Path]) -> None:
    model, handler = number
    host, port = listens(serve(model, handler=str(handler), replicas="1", name="refuses").pids()[0])
    for path in ("/predict", "/nothing"):
        with closing(HTTPConnection(host, port, timeout=BOUND_S)) as connection:
            connection.request("GET", path)
            assert connection.getresponse().status == 401, path


def gateway_pid(store: Store, job_id: str) -> int:
    return int(json.loads((store.job(job_id).path / "coordinator.json").read_text())["pid"])


def listens(pid: int) -> tuple[str, int]:
    """Where a process listens, as the kernel tells."""
    own = {os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")}
    for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A" and f"socket:[{fields[9]}]" in own:
            return "127.0.0.1", int(fields[1].partition(":")[2], 16)
    raise AssertionError(f"process {pid} does not listen")
