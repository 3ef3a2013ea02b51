"""A thousand strangers at every listener: members still get in, and neither memory, descriptors nor lines grow."""

from __future__ import annotations

import json
import math
import os
import resource
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

import pytest

from jupyter_hyperpod.control import cluster as control
from jupyter_hyperpod.control import jobs, metrics
from jupyter_hyperpod.core.errors import ClusterError
from jupyter_hyperpod.loader.share import peers
from jupyter_hyperpod.runtime.comm import mesh as collectives
from jupyter_hyperpod.runtime.comm import rendezvous
from jupyter_hyperpod.runtime.connection import HANDSHAKE_TIMEOUT_S, Channel
from jupyter_hyperpod.runtime.coordinator.unauthenticated import MOST_PLACES, MOST_STRANGERS, Strangers, places
from jupyter_hyperpod.storage.store import Store
from jupyter_hyperpod.system.json_lines import connect
from tests.cells import train
from tests.strangers import BOUND_S, COUNT, PLACES, Wait, all_kinds, descriptors, kinds, resident_bytes, strangers

# -- the fan-out of models -----------------------------------------------------------------------------------------


@all_kinds
def test_fanout(kind: str, eventually: Wait) -> None:
    secret, content = os.urandom(32), os.urandom(1 << 16)
    descriptor = os.memfd_create("content")
    os.pwrite(descriptor, content, 0)
    server = peers.ChunkServer("127.0.0.1", secret, b"a model", descriptor, lambda number: (0, len(content)))
    threads = threading.active_count() + (kind == "send slowly")  # which needs one itself

    def served() -> bool:
        with suppress(OSError):
            client = peers.Client(server.address, secret, b"a model")
            found = bytearray(len(content))
            got = client.get(0, memoryview(found))
            client.close()
            return got == "got" and found == content
        return False

    try:
        with strangers(server.address, kind, "fanout"):
            eventually(served, BOUND_S)
            assert threading.active_count() <= threads + PLACES
            eventually(lambda: threading.active_count() <= threads, BOUND_S, "strangers keep their places")
        eventually(served, BOUND_S)
    finally:
        server.close()
        os.close(descriptor)


# -- the coordinator -----------------------------------------------------------------------------------------------


@all_kinds
def test_coordinator(kind: str, shared_cluster: Store, eventually: Wait) -> None:
    job_id = jobs.submit(shared_cluster, train(), nodes=2, elastic="1:4", spares=0)
    try:
        eventually(lambda: jobs.job_view(shared_cluster, job_id)["step"] > 0, BOUND_S)
        endpoint = json.loads((shared_cluster.job(job_id).path / "coordinator.json").read_text())
        pid, before = endpoint["pid"], jobs.job_view(shared_cluster, job_id)
        open_before, bytes_before = descriptors(pid), resident_bytes(pid)
        with strangers((endpoint["host"], endpoint["port"]), kind, "control"):
            jobs.scale(shared_cluster, job_id, 3)
            eventually(lambda: jobs.job_view(shared_cluster, job_id)["world_size"] == 3, BOUND_S, "nobody gets in")
            assert descriptors(pid) <= open_before + PLACES
            patience_s = BOUND_S + HANDSHAKE_TIMEOUT_S
            eventually(lambda: descriptors(pid) <= open_before + 5, patience_s, "strangers keep their places")
        after = jobs.job_view(shared_cluster, job_id)
        assert after["step"] > before["step"] and not after["incidents"], after["incidents"]
        assert len(after["warnings"]) <= 3, after["warnings"]
        assert resident_bytes(pid) - bytes_before < 64 << 20
    finally:
        jobs.stop(shared_cluster, job_id)
        jobs.wait(shared_cluster, job_id, timeout_s=BOUND_S)


def test_a_coordinator_without_a_free_descriptor_goes_on(shared_cluster: Store, eventually: Wait) -> None:
    job_id = jobs.submit(shared_cluster, train(), nodes=1, elastic="1:4", spares=0)
    try:
        eventually(lambda: jobs.job_view(shared_cluster, job_id)["step"] > 0, BOUND_S)
        endpoint = json.loads((shared_cluster.job(job_id).path / "coordinator.json").read_text())
        pid = endpoint["pid"]
        before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (max(map(int, os.listdir(f"/proc/{pid}/fd"))) + 3, before[1]))
        with strangers((endpoint["host"], endpoint["port"]), "leave at once", "control"):
            step = jobs.job_view(shared_cluster, job_id)["step"]
            eventually(lambda: jobs.job_view(shared_cluster, job_id)["step"] > step + 20, BOUND_S, "training stands")
            full = "no file descriptor is left"
            eventually(lambda: full in str(jobs.job_view(shared_cluster, job_id)["warnings"]), BOUND_S, "never full")
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
        jobs.scale(shared_cluster, job_id, 2)
        eventually(lambda: jobs.job_view(shared_cluster, job_id)["world_size"] == 2, BOUND_S, "nobody gets in")
        assert json.loads((shared_cluster.job(job_id).path / "coordinator.json").read_text())["pid"] == pid
        assert not jobs.job_view(shared_cluster, job_id)["incidents"]
    finally:
        jobs.stop(shared_cluster, job_id)
        jobs.wait(shared_cluster, job_id, timeout_s=BOUND_S)


# -- between members -----------------------------------------------------------------------------------------------


@all_kinds
def test_mesh(kind: str) -> None:
    secret = os.urandom(32)
    listeners = [socket.create_server(("127.0.0.1", 0), backlog=256) for _ in range(2)]
    addresses = [collectives.Address(*listener.getsockname()[:2]) for listener in listeners]
    doors = [collectives.MeshListener(listener, secret) for listener in listeners]
    formed: dict[int, collectives.Mesh] = {}

    def form(rank: int, generation: int) -> None:
        formed[rank] = doors[rank].form(generation, rank, addresses, -1, lambda: None, lambda peer: None)

    try:
        for generation in (1, 2):
            answers = threading.Thread(target=form, args=(1, generation))
            answers.start()  # it listens, and strangers come first
            with strangers(addresses[1], kind, "mesh"):
                assert descriptors(os.getpid()) <= COUNT + 2 * PLACES + 100
                form(0, generation)
                answers.join(BOUND_S)
                assert not answers.is_alive(), "the members do not find each other"
                assert len(doors[1]._callers) <= collectives.CALLERS_KEPT
                for mesh in formed.values():
                    mesh.close()
    finally:
        for door in doors:
            door.close()
        for listener in listeners:
            listener.close()


@kinds
def test_rendezvous(kind: str) -> None:
    store, port = rendezvous.host("127.0.0.1")
    own = collectives.Address("127.0.0.1", 1)
    with strangers(("127.0.0.1", port), kind, "store"):
        other = rendezvous.connect(collectives.Address("127.0.0.1", port))
        both = [
            threading.Thread(target=rendezvous.exchange_addresses, args=(s, r, own, 2, lambda: None))
            for r, s in ((0, store), (1, other))
        ]
        for one in both:
            one.start()
        for one in both:
            one.join(BOUND_S)
        assert not any(one.is_alive() for one in both), "the members do not find each other"
    del store, other


# -- HTTP ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@kinds
def test_metrics(kind: str, store: Store, eventually: Wait) -> None:
    word = metrics.token(store).read_text()
    code = "import sys; from pathlib import Path; from jupyter_hyperpod.control import metrics; "
    code += "from jupyter_hyperpod.storage.store import Store; server = metrics.endpoint(Store(Path(sys.argv[1])), 0); "
    code += "print(server.server_address[1], flush=True); server.serve_forever()"
    command = [sys.executable, "-c", code, str(store.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as server:
        try:
            assert server.stdout and server.stderr
            port = int(server.stdout.readline())
            assert asks(("127.0.0.1", port), "/metrics", word)
            before = descriptors(server.pid)
            with strangers(("127.0.0.1", port), kind, "http"):
                eventually(lambda: asks(("127.0.0.1", port), "/metrics", word), BOUND_S)
                assert descriptors(server.pid) <= before + PLACES
            eventually(lambda: descriptors(server.pid) <= before, BOUND_S)
            server.kill()
            assert server.stderr.read().count(b"\n") < 20
        finally:
            server.kill()


def asks(address: tuple[str, int], path: str, token: str) -> bool:
    """Whether whoever has the token is answered."""
    with suppress(OSError), socket.create_connection(address, 2.0) as one:
        one.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
        return one.recv(100).startswith((b"HTTP/1.0 200", b"HTTP/1.1 200"))
    return False


# -- unix sockets --------------------------------------------------------------------------------------------------


@kinds
@pytest.mark.parametrize("whom", ["supervisor", "zygote", "node"])
def test_daemons(whom: str, kind: str, shared_cluster: Store, eventually: Wait) -> None:
    control.wait_ready(shared_cluster)
    place = shared_cluster.cluster
    name = {"supervisor": "supervisor.sock", "zygote": "warm.sock", "node": "node-1.sock"}[whom]

    def says(operation: str) -> int:
        channel = connect(place, name)
        if channel is None:
            return 0
        try:
            return int(channel.ask({"op": operation}, BOUND_S)["pid"])
        except ClusterError:
            return 0
        finally:
            channel.close()

    operation = "status" if whom == "supervisor" else "hello"
    pid = eventually(lambda: says(operation), BOUND_S)
    before = descriptors(pid)
    with strangers(place / name, kind, "lines"):
        assert eventually(lambda: says(operation), BOUND_S) == pid
        assert descriptors(pid) <= before + PLACES
    eventually(lambda: descriptors(pid) <= before + 5, BOUND_S)
    assert control.wait_ready(shared_cluster)


# -- what is told of them ------------------------------------------------------------------------------------------


def test_strangers_are_told_of_once_and_then_once_a_minute() -> None:
    told: list[str] = []
    waiting = Strangers(told.append)
    channels: list[Channel] = []
    began_s = float(math.ceil(time.monotonic()))  # sums of whole seconds are exact
    try:
        for number in range(COUNT):
            here, there = socket.socketpair()
            there.close()
            channels.append(Channel(here, bytes(32)))
            gone = waiting.called(channels[-1], began_s)
            assert gone == ([channels[number - MOST_STRANGERS]] if number >= MOST_STRANGERS else [])
            for channel in gone:
                channel.close()
        assert len(told) == 1 and "a connection was refused" in told[0]
        assert len(waiting.look(began_s + 59.0)) == MOST_STRANGERS, "those that are left have waited for too long"
        assert len(told) == 1
        assert waiting.look(began_s + 60.0) == []
        assert told[1].startswith(
            f"{COUNT - 1} connections were refused in the last 60 s; the last: nothing was proved"
        )
        waiting.refused("a frame does not carry the job's secret", began_s + 61.0)
        assert len(told) == 2
        waiting.look(began_s + 120.0)
        assert len(told) == 3 and told[2].startswith("1 connection was refused in the last 60 s")
    finally:
        for channel in channels:
            channel.close()


def test_all_agents_of_a_large_job_may_call_at_once_and_strangers_stay_bounded() -> None:
    assert places(4, 1 << 20) == MOST_STRANGERS
    assert places(10_000, 1 << 20) == MOST_PLACES
    assert places(1000, 1024) == MOST_STRANGERS, "descriptors that members need are not given to strangers"
    assert places(10_000, resource.RLIM_INFINITY) == MOST_PLACES, "no limit is more than any"
    waiting = Strangers(lambda text: None, places(300, 1 << 20))
    pairs = [socket.socketpair() for _ in range(301)]
    channels = [Channel(here, bytes(32)) for here, _ in pairs]
    try:
        now = time.monotonic()
        assert [gone for channel in channels[:300] for gone in waiting.called(channel, now)] == []
        assert waiting.next_to_go is channels[0], "its words are read before it is sent away"
        assert waiting.called(channels[300], now) == [channels[0]]
        assert waiting.late(now) == [] and len(waiting.late(now + HANDSHAKE_TIMEOUT_S + 1.0)) == 300
    finally:
        for channel, (_, there) in zip(channels, pairs, strict=True):
            channel.close()
            there.close()
