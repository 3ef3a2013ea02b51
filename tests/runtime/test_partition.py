"""A node that is cut off the network: nothing arrives, nothing refuses. Real namespaces, the cable really pulled."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from jupyter_hyperpod.backends.local import network
from jupyter_hyperpod.control import cluster, jobs
from jupyter_hyperpod.policy.membership import BEATS_LOST_S, SHORT_LEASE_S
from jupyter_hyperpod.runtime.comm.mesh import Address
from jupyter_hyperpod.storage.store import Store
from tests.conftest import SHARED_MARK, running_cluster
from tests.runtime.conftest import TRAIN, Run, Submit, counting_links, encrypted_links, submitting
from tests.runtime.meshes import BOUND_S, Relay

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(bool(network.missing()), reason=f"NOT TESTED: {network.missing()}"),
]
SLOW = {"PAUSE_S": "0.04"}


@pytest.fixture(scope="module")
def isolated_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """3 nodes and a spare, each with a network of its own."""
    store = Store(tmp_path_factory.mktemp("isolated") / "store").prepare()
    with pytest.MonkeyPatch.context() as patch:
        yield from running_cluster(store, patch, SHARED_MARK, nodes=3, spares=1, isolated=True)


@pytest.fixture
def job(isolated_cluster: Store) -> Iterator[Submit]:
    """Submit cells to the isolated cluster; afterwards its network is whole again."""
    yield from submitting(isolated_cluster, cluster.heal)


def cut(run: Run, rank: int) -> tuple[str, str]:
    """Cut the node of a rank off; returns the node and the member."""
    member = next(m for m in run.view["members"] if m["rank"] == rank)
    jobs.fault(run.store, run.job_id, "partition", node=member["node"])
    run.until_event("fault.injected", fault="partition", node=member["node"])
    return member["node"], member["member"]


def stood_still(run: Run, member: str) -> float:
    """When the agent of a member that was cut off stopped it."""
    return next(e.time_s for e in run.of_kind("warning.raised") if member in e.data["text"])


def has_committed_nothing_since(run: Run, member: str, time_s: float) -> bool:
    return not any(
        e.writer.startswith(f"worker-{member}.") and e.time_s > time_s for e in run.of_kind("step.committed")
    )


@pytest.mark.parametrize("rank", [0, 2])
def test_a_partition_costs_no_step_and_a_spare_takes_over(job: Submit, reference: Run, rank: int) -> None:
    run = job(env=SLOW)
    run.until_step(4)
    _, member = cut(run, rank)
    view = run.finish()
    assert [i["cause"] for i in view["incidents"]] == ["network partition"]
    (incident,) = view["incidents"]
    cut_s = run.of_kind("fault.injected")[0].time_s
    assert incident["detection_s"] >= SHORT_LEASE_S, "the silence belongs to what a partition costs"
    assert incident["recovery_s"] == pytest.approx(incident["resumed_s"] - cut_s, abs=1.0)
    assert view["world_size"] == 3 and member not in [m["member"] for m in view["members"]]
    lost_s = run.of_kind("member.lost")[0].time_s
    assert stood_still(run, member) < lost_s, "it stops before it is fenced"
    assert has_committed_nothing_since(run, member, stood_still(run, member))
    stages = [e.data["stage"] for e in run.of_kind("incident.stage")]
    assert stages[:3] == ["detected", "diagnosed", "fenced"] and {"replaced", "rejoined", "resumed"} <= set(stages[3:])
    run.same_as(reference)


def test_members_on_several_hosts_encrypt_what_they_exchange(job: Submit, reference: Run, tmp_path: Path) -> None:
    run = job(counting_links(tmp_path), spares=0)
    run.finish()
    assert set(encrypted_links(tmp_path)) == {2}
    run.same_as(reference)


class Middlebox(Relay):
    """A relay in the head's network, on the way of all calls between members: each says first where it goes."""

    def __init__(self, head_pid: int, flip_at: int) -> None:
        self._network = os.open(f"/proc/{head_pid}/ns/net", os.O_RDONLY)
        with network._inside(self._network):
            super().__init__(Address("", 0), flip_at, network.address(network.HEAD_INDEX))

    def _reach(self, caller: socket.socket) -> socket.socket:
        host, port = caller.recv(64, socket.MSG_WAITALL).split()
        with network._inside(self._network):
            return socket.create_connection((host, int(port)), BOUND_S)

    def close(self) -> None:
        super().close()
        os.close(self._network)


@pytest.mark.parametrize("flip_at", [300, 100_000], ids=["in a handshake", "in training"])
def test_a_byte_that_is_changed_between_two_hosts_costs_no_step(
    job: Submit, reference: Run, tmp_path: Path, flip_at: int
) -> None:
    way = tmp_path / "way"
    source = f"""
import socket, time, types
from pathlib import Path
from jupyter_hyperpod.runtime.comm import mesh
for _ in range(2000):
    if Path("{way}").exists(): break
    time.sleep(0.01)
def through(address, timeout):
    sock = socket.create_connection(("{network.address(network.HEAD_INDEX)}", int(Path("{way}").read_text())), timeout)
    sock.sendall(f"{{address.host}} {{address.port}}".encode().ljust(64))
    return sock
mesh.socket = types.SimpleNamespace(**(vars(socket) | {{"create_connection": through}}))
{TRAIN}"""
    run = job(source, spares=0, env=SLOW)
    run.until((run.store.job(run.job_id).path / "coordinator.json").exists, 60.0)
    middlebox = Middlebox(run.coordinator_pid(), flip_at)
    try:
        (tmp_path / "port").write_text(str(middlebox.address.port))
        (tmp_path / "port").rename(way)
        run.finish()
    finally:
        middlebox.close()
    assert len(middlebox.seen["there"]) > 100_000, "all went through it"
    assert not run.of_kind("member.lost"), "the members are sound"
    warned = [e.data["text"] for e in run.of_kind("warning.raised") if "changed on the way" in e.data["text"]]
    began = [generation["reason"] for generation in run.view["generations"]]
    if flip_at == 300:
        assert len(began) == 1 and not warned, "it is called again"
    else:
        assert began[1:] == ["a connection between members broke: 3 of 3 members"]
        assert len(warned) == 1
    run.same_as(reference)


def test_a_healed_node_comes_back_with_a_new_worker(job: Submit, reference: Run) -> None:
    run = job(env={"PAUSE_S": "0.08"}, spares=0)
    run.until_step(2)
    node, member = cut(run, 1)
    run.until_event("incident.stage", stage="resumed")
    assert cluster.heal(run.store, node) == [node]
    run.until_event("incident.stage", stage="rejoined")
    run.until_world(3)
    run.finish()
    assert {m["node"] for m in run.view["members"]} == {"node-1", "node-2", "node-3"}
    assert member not in [m["member"] for m in run.view["members"]]
    run.same_as(reference)


def test_the_only_member_stops_before_another_begins_again(job: Submit, reference: Run) -> None:
    run = job(nodes=1, elastic="1:1", env={"PAUSE_S": "0.03"})
    run.until_step(6)
    _, member = cut(run, 0)
    run.until_event("member.lost")
    run.finish()
    assert stood_still(run, member) < run.of_kind("member.lost")[0].time_s
    assert has_committed_nothing_since(run, member, stood_still(run, member))
    run.same_as(reference)


def test_two_nodes_cut_off_at_once(job: Submit, reference: Run) -> None:
    run = job(env={"PAUSE_S": "0.03"}, spares=0)
    run.until_step(4)
    first, alone, last = (run.node_of(rank) for rank in range(3))
    for node in (first, last):
        jobs.fault(run.store, run.job_id, "partition", node=node)
    run.finish()
    assert [e.data["cause"] for e in run.of_kind("member.lost")] == ["network partition"] * 2
    formed = [generation["nodes"] for generation in run.view["generations"]]
    assert [alone] in formed, "the one that is left goes on at once"
    later = formed[formed.index([alone]) :]  # the node that is idle takes a place where the job runs long enough
    assert not any({first, last} & set(nodes) for nodes in later)
    run.same_as(reference)


def test_a_spare_that_is_cut_off_is_not_called(job: Submit, reference: Run) -> None:
    run = job(nodes=3, env={"PAUSE_S": "0.06"})
    run.until_event("member.ready")
    spare = next(e.data for e in run.of_kind("member.ready"))
    jobs.fault(run.store, run.job_id, "partition", node=spare["node"])
    run.until_event("member.lost", member=spare["member"], cause="network partition")
    run.kill(1)
    run.finish()
    assert not any(spare["node"] in generation["nodes"] for generation in run.view["generations"])
    run.same_as(reference)


def test_a_node_that_is_cut_off_is_not_held_for_ever(job: Submit, reference: Run) -> None:
    run = job(nodes=2, elastic="1:2", spares=0, env={"PAUSE_S": "0.04"})
    run.until_step(3)
    first, member = cut(run, 1)
    run.until_event("member.lost", member=member)
    run.scale(1)
    run.until(lambda: any(e.data["kind"] == "scale" for e in run.of_kind("command.done")) or run.ended, 60.0)
    run.kill_node(0)
    run.finish()
    assert first not in [m["node"] for m in run.view["members"]], "it went on elsewhere, with the cut still there"
    run.same_as(reference)


def test_a_node_that_is_back_in_time_goes_on(job: Submit, reference: Run) -> None:
    run = job(env=SLOW, spares=0)
    run.until_step(4)
    node, member = cut(run, 1)
    run.until_event("warning.raised")
    cluster.heal(run.store, node)
    run.finish()
    assert "host is silent" in run.story()
    if not run.of_kind("member.lost"):  # on a machine under load it may have been too late
        assert member in [m["member"] for m in run.view["members"]]
    run.same_as(reference)


def test_members_train_on_while_the_coordinator_is_frozen(job: Submit, reference: Run) -> None:
    run = job(env={"PAUSE_S": "0.08"})
    run.until_step(2)
    coordinator = run.coordinator_pid()
    os.kill(coordinator, signal.SIGSTOP)
    try:
        frozen_s = run.of_kind("step.committed")[-1].time_s
        run.until(lambda: run.of_kind("step.committed")[-1].time_s > frozen_s + BEATS_LOST_S + 0.5, 60)
    finally:
        with suppress(ProcessLookupError):  # the supervisor may have replaced it
            os.kill(coordinator, signal.SIGCONT)
    run.finish()
    assert "host is silent" not in run.story(), "its host still confirms what is sent to it"
    assert not run.of_kind("member.lost")
    run.same_as(reference)


def test_nodes_with_a_network_of_their_own_share_no_memory(job: Submit) -> None:
    source = (
        "import os, torch, jupyter_hyperpod as hp\nmodel = torch.nn.Linear(2, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\ndata = [torch.ones(2)] * 8\n"
        "with hp.Session(model, optimizer, data, global_batch=4, micro_batch=1) as session:\n"
        "    for step in session.steps(3): step.run(lambda batch: model(batch).mean())\n"
        "    print(len(session._group.near), os.environ['MASTER_ADDR'])\n"
    )
    run = job(source, nodes=2)
    run.finish()
    assert set(run.text().values()) == {f"0 {network.address(1)}\n"}
