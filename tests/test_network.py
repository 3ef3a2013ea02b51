"""Nodes with a network of their own: real namespaces, and nothing left of them whatever way their owners end."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_hyperpod.backends.local import network
from jupyter_hyperpod.backends.local.host import LocalHost
from jupyter_hyperpod.backends.local.known_node import LocalNode
from jupyter_hyperpod.backends.types import Surroundings
from jupyter_hyperpod.control import cluster as control
from jupyter_hyperpod.control.clusters.shape import SHAPE, forget_shape, keep_shape
from jupyter_hyperpod.core.errors import ClusterError, Conflict, NotFound, SpecError
from jupyter_hyperpod.storage.host_lease import directory_of_host
from jupyter_hyperpod.storage.store import Store, private_directory
from jupyter_hyperpod.supervisor.machines import node_record
from jupyter_hyperpod.system.processes import start_ticks
from tests.test_local_backend import Bench

Wait = Callable[..., object]
pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(bool(network.missing()), reason=f"NOT TESTED: {network.missing()}"),
]
LISTEN = """
import os, socket, sys
def main():
    with socket.create_server((os.environ["HYPERPOD_BIND"], 4000)) as server:
        print("listens", os.environ["HYPERPOD_BIND"], flush=True)
        while True:
            client, peer = server.accept()
            client.sendall(peer[0].encode())
            client.close()
"""
CALL = """
import os, socket, sys
def main():
    with socket.create_connection((os.environ["WORD"], 4000), timeout=2) as client:
        print("heard", client.recv(100).decode(), flush=True)
    return 0
"""


class IsolatedBench(Bench):
    """A host whose nodes have a network of their own, with its selector turned by hand."""

    def supervise(self) -> LocalHost:
        modules = self.directory / "modules"
        (modules / "listen_job.py").write_text(LISTEN)
        (modules / "call_job.py").write_text(CALL)
        return super().supervise()

    def run(self, module: str, node: str, job: str, word: str = "") -> None:
        plan = self.plan("0", job_id=job)
        fields = {name: getattr(plan, name) for name in plan.__slots__}
        fields |= {"module": module, "head_module": module, "env": dict(plan.env) | {"WORD": word}}
        assert self.start(type(plan)(**fields), node)


@pytest.fixture
def bench(tmp_path: Path, eventually: Wait) -> Iterator[IsolatedBench]:
    bench = IsolatedBench(tmp_path, isolated=True)
    try:
        eventually(bench.ready)
        yield bench
    finally:
        bench.host.close()


def namespace(node: LocalNode) -> int:
    return os.stat(f"/proc/{node.pid}/ns/net").st_ino


def holders(namespaces: set[int]) -> list[str]:
    """Processes that live in one of the namespaces or hold one open: without any, the kernel removes it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        for link in (process / "ns/net", *(process / "fd").glob("*")):
            try:
                if link.stat().st_ino in namespaces and "net:[" in os.readlink(link):
                    found.append(str(link))
            except OSError:
                continue
    return found


def interfaces() -> set[str]:
    return {name for _, name in socket.if_nameindex()}


def test_nodes_reach_each_other_until_one_is_cut_off(bench: IsolatedBench, eventually: Wait) -> None:
    before = interfaces()
    own = os.stat("/proc/self/ns/net").st_ino
    places = [bench.host.head, *bench.host.nodes.values()]
    assert len({own, *map(namespace, places)}) == 4, "the head and every node have a network of their own"
    bench.run("listen_job", "node-1", "job-aaaaaaaa")
    eventually(lambda: bench.turn() and "listens" in bench.log("node-1"))
    one, two = network.address(1), network.address(2)
    assert f"listens {one}" in bench.log("node-1")
    bench.run("call_job", "node-2", "job-bbbbbbbb", one)
    eventually(bench.exits)
    assert f"heard {two}" in bench.log("node-2")
    bench.host.cut("node-1")
    assert "heal" in bench.host.nodes["node-1"].reason
    assert node_record(bench.host.nodes["node-1"])["state"] == "partitioned"
    bench.run("call_job", "node-2", "job-cccccccc", one)
    eventually(lambda: len(bench.exits()) == 2)
    assert "TimeoutError" in bench.log("node-2"), "nothing answers, nothing refuses"
    bench.host.heal("node-1")
    bench.run("call_job", "node-2", "job-dddddddd", one)
    eventually(lambda: len(bench.exits()) == 3)
    assert bench.log("node-2").count("heard") == 2
    assert interfaces() == before, "the machine's own network is left alone"


def test_a_node_that_is_started_anew_is_reached_at_once_and_is_not_cut_off(
    bench: IsolatedBench, eventually: Wait
) -> None:
    bench.run("listen_job", "node-1", "job-aaaaaaaa")
    eventually(lambda: bench.turn() and "listens" in bench.log("node-1"))
    bench.host.cut("node-1")
    bench.host.signal_node("node-1", signal.SIGKILL)
    eventually(lambda: bench.ready() and bench.host.nodes["node-1"].incarnation == 2)
    assert not bench.host.nodes["node-1"].cut
    bench.run("listen_job", "node-1", "job-bbbbbbbb")
    eventually(lambda: bench.turn() and bench.log("node-1").count("listens") == 2)
    bench.run("call_job", "node-2", "job-cccccccc", network.address(1))
    eventually(lambda: bench.turn() and "heard" in bench.log("node-2"))


def test_a_new_supervisor_finds_the_switch_and_who_is_cut_off(bench: IsolatedBench, eventually: Wait) -> None:
    places = (bench.host.head, *bench.host.nodes.values())
    before = [(node.process, namespace(node)) for node in places]
    bench.host.cut("node-2")
    zygote = bench.host._zygote.process
    bench.abandon()
    assert bench.host._switch is not None
    bench.host._switch.close()
    bench.host = bench.supervise()
    bench.host._zygote.process = zygote
    eventually(bench.ready)
    places = (bench.host.head, *bench.host.nodes.values())
    assert [(node.process, namespace(node)) for node in places] == before
    assert [node.cut for node in bench.host.nodes.values()] == [False, True]
    bench.host.heal("node-2")
    bench.run("listen_job", "node-1", "job-aaaaaaaa")
    eventually(lambda: bench.turn() and "listens" in bench.log("node-1"))
    bench.run("call_job", "node-2", "job-bbbbbbbb", network.address(1))
    eventually(bench.exits)
    assert f"heard {network.address(2)}" in bench.log("node-2")


def test_closing_leaves_no_namespace(bench: IsolatedBench, eventually: Wait) -> None:
    namespaces = {namespace(node) for node in (bench.host.head, *bench.host.nodes.values())}
    assert holders(namespaces)
    bench.host.close()
    eventually(lambda: not holders(namespaces))


def test_nothing_is_left_when_the_store_is_deleted_under_nodes_without_a_supervisor(
    bench: IsolatedBench, eventually: Wait
) -> None:
    namespaces = {namespace(node) for node in (bench.host.head, *bench.host.nodes.values())}
    bench.abandon()
    assert bench.host._switch is not None and bench.host._zygote.process is not None
    bench.host._switch.close()
    shutil.rmtree(bench.cluster)
    eventually(lambda: not holders(namespaces))
    assert bench.host._zygote.process.wait(50) == 0
    surroundings = Surroundings(bench.cluster, selectors.DefaultSelector(), bench.reports.append, {})
    bench.host = LocalHost(surroundings)  # nothing to close


def test_nothing_is_left_after_a_killed_supervisor_and_a_new_start(store: Store, eventually: Wait) -> None:
    control.ensure_started(store, nodes=1, spares=1, isolated=True)
    view = control.wait_ready(store)
    pids = [node["pid"] for node in view["nodes"]]
    namespaces = {os.stat(f"/proc/{pid}/ns/net").st_ino for pid in pids}
    os.kill(view["pid"], signal.SIGKILL)
    eventually(lambda: start_ticks(view["pid"]) is None)
    control.ensure_started(store)  # without being told again
    eventually(lambda: control.status(store)["pid"] != view["pid"])
    assert [node["pid"] for node in control.wait_ready(store)["nodes"]] == pids
    assert control.request(store, {"op": "status"})["isolated"]
    with pytest.raises(Conflict, match="each node has a network of its own"):
        control.ensure_started(store, isolated=False)
    with pytest.raises(NotFound, match="there is no node 'node-9'; expected one of node-1, node-2"):
        control.heal(store, "node-9")
    assert control.heal(store) == []
    control.stop(store)
    eventually(lambda: not holders(namespaces))


def test_nodes_of_another_network_are_not_adopted(bench: IsolatedBench, eventually: Wait) -> None:
    before = {name: node.process for name, node in bench.host.nodes.items()}
    zygote = bench.host._zygote.process
    bench.abandon()
    assert bench.host._switch is not None
    bench.host._switch.close()
    bench.isolated = False
    bench.host = bench.supervise()
    bench.host._zygote.process = zygote
    eventually(bench.ready)
    own = os.stat("/proc/self/ns/net").st_ino
    for name, node in bench.host.nodes.items():
        assert node.process != before[name] and namespace(node) == own


def test_what_is_missing_is_said_before_anything_is_started(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_TOOL_PATH", "/nowhere")
    with pytest.raises(ClusterError, match="need `ip` and `bridge` of iproute2, which was not found.*apt-get install"):
        control.ensure_started(store, isolated=True)
    assert not control.connectable(store)


def test_it_takes_root(tmp_path: Path) -> None:
    found = tmp_path / "found"
    found.touch()
    found.chmod(0o666)
    with found.open("w") as file:
        pid = os.fork()
        if pid == 0:
            os.setuid(65534)
            file.write(network.missing())
            file.flush()
            os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert "isolated networks need root and this is user 65534" in found.read_text()


def test_only_nodes_with_a_network_of_their_own_can_be_cut_off(shared_cluster: Store) -> None:
    with pytest.raises(ClusterError, match="share the machine's network.*cluster start --isolate-network"):
        control.request(shared_cluster, {"op": "node-fault", "node": "node-1", "kind": "partition"})
    assert json.loads((shared_cluster.cluster / SHAPE).read_text())["isolated"] is False


def test_nodes_that_come_late_are_not_isolated_and_that_is_said(store: Store) -> None:
    """The cluster that was isolated ended by itself; the next supervisor began without nodes, for jobs elsewhere."""
    directory = private_directory(directory_of_host(store.prepare()))
    keep_shape(directory, 1, 0, {}, True)
    forget_shape(directory, by_itself=True)
    control.ensure_started(store, nodes=0, spares=0)
    try:
        view = control.wait_ready(store)
        assert not control.request(store, {"op": "status"})["isolated"] and len(view["nodes"]) == 1
        assert "share this machine's network, where those before had networks of their own" in view["reason"]
    finally:
        control.stop(store)


def test_options_belong_to_their_action(tmp_path: Path) -> None:
    from jupyter_hyperpod.control.option_parser import Parser
    from jupyter_hyperpod.control.verb_options import add_cluster_options, run_cluster

    parser = Parser(prog="cluster")
    add_cluster_options(parser)
    for words in (["stop", "--isolate-network"], ["start", "--node", "node-1"]):
        with pytest.raises(SpecError, match="belong"):
            run_cluster(parser.parse_args(words), Store(tmp_path), lambda store: None)
