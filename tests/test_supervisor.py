"""The supervisor under what can happen to it: killed, doubled, a stale socket, a full disk, a deleted store."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from jupyter_hyperpod.backends.local.supervisor_watchdog import STOPPED_S
from jupyter_hyperpod.control import cluster as control
from jupyter_hyperpod.control import jobs
from jupyter_hyperpod.control import nodes as nodes_control
from jupyter_hyperpod.core.errors import ClusterError, Conflict, SpecError
from jupyter_hyperpod.core.views import View
from jupyter_hyperpod.storage.journal import event_writer, follow_events
from jupyter_hyperpod.storage.store import Store
from jupyter_hyperpod.supervisor import launch, lock
from jupyter_hyperpod.supervisor.succession import Succession
from jupyter_hyperpod.system.json_lines import connect, listen
from jupyter_hyperpod.system.processes import alive, identify, start_ticks
from jupyter_hyperpod.system.users import own_name
from tests.leaks import marked_processes

pytestmark = pytest.mark.slow

Wait = Callable[..., Any]
COUNT = """
import os, time
number = 0
while not os.path.exists(os.environ["HYPERPOD_JOB_DIR"] + "/go"):
    print("number", number, flush=True)
    number += 1
    time.sleep(0.02)
"""
TRAIN = """
import os, time, torch, jupyter_hyperpod as hp
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Embedding(256, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 256))
optimizer = torch.optim.AdamW(model.parameters())
data = hp.TokenDataset(os.__file__, sequence_length=16)
def loss_of(batch):
    time.sleep(0.01)
    inputs, targets = batch
    return torch.nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten().long())
with hp.Session(model, optimizer, data, global_batch=8, micro_batch=1, seed=0) as session:
    for step in session.steps(60):
        step.run(loss_of)
"""


def nodes(view: View) -> dict[str, Any]:
    return {node["node"]: (node["pid"], node["incarnation"]) for node in view["nodes"]}


def busy_nodes(store: Store) -> int:
    return sum(bool(node["jobs"]) for node in control.status(store)["nodes"])


def kill_supervisor(store: Store) -> None:
    """Its zygote is killed too, so that nobody starts another one."""
    answer = control.request(store, {"op": "status"})
    os.kill(answer["pid"], signal.SIGSTOP)
    zygote = connect(store.cluster, "warm.sock")
    assert zygote is not None
    os.kill(zygote.ask({"op": "hello"}, 10)["pid"], signal.SIGKILL)
    zygote.close()
    os.kill(answer["pid"], signal.SIGKILL)
    while start_ticks(answer["pid"]) == answer["start"]:
        pass


def supervisor_pid(store: Store) -> int:
    try:
        return int(control.request(store, {"op": "status"})["pid"])
    except ClusterError:
        return 0


def go(store: Store, job_id: str) -> View:
    (store.jobs / job_id / "go").touch()
    return jobs.wait(store, job_id, timeout_s=60)


def test_a_running_job_does_not_notice_that_the_supervisor_was_killed(cluster: Store, eventually: Wait) -> None:
    before = nodes(control.wait_ready(cluster))
    job_id = jobs.submit(cluster, COUNT, nodes=2)
    jobs.wait(cluster, job_id, {"running"}, 60)
    eventually(lambda: jobs.job_view(cluster, job_id)["output"])
    members = jobs.job_view(cluster, job_id)["members"]
    kill_supervisor(cluster)
    assert control.status(cluster)["state"] == "lost"
    written = len(jobs.job_view(cluster, job_id)["output"])
    eventually(lambda: len(jobs.job_view(cluster, job_id)["output"]) > written, message="the job stood still")

    control.ensure_started(cluster)
    assert nodes(control.wait_ready(cluster)) == before
    view = go(cluster, job_id)
    assert view["state"] == "succeeded" and view["members"] == members
    (incident,) = view["incidents"]
    assert incident["cause"] == "supervisor killed" and incident["detection_s"] is None, "nobody saw when it died"
    assert view["warnings"] == [] and view["generation"] == 1
    for rank in (0, 1):
        text = "".join(line["text"] for line in view["output"] if line["rank"] == rank)
        numbers = [int(number) for number in re.findall(r"number (\d+)", text)]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


@pytest.mark.parametrize("kind", ["kill", "hang"])
def test_a_supervisor_that_is_broken_is_started_again(cluster: Store, eventually: Wait, kind: str) -> None:
    before = nodes(control.wait_ready(cluster))
    job_id = jobs.submit(cluster, COUNT, nodes=2)
    jobs.wait(cluster, job_id, {"running"}, 60)
    eventually(lambda: jobs.job_view(cluster, job_id)["output"])
    pid = supervisor_pid(cluster)
    jobs.fault(cluster, job_id, kind, target="supervisor")
    eventually(lambda: supervisor_pid(cluster) not in (0, pid))
    assert nodes(control.wait_ready(cluster)) == before
    view = go(cluster, job_id)
    assert view["state"] == "succeeded" and view["generation"] == 1
    (incident,) = view["incidents"]
    assert (incident["cause"], incident["node"]) == ("supervisor killed", "supervisor")
    assert [stage["stage"] for stage in incident["stages"]] == ["detected", "diagnosed", "repaired", "resumed"]
    struck_s = next(e.time_s for e in jobs.follow(cluster, job_id).poll() if e.kind == "fault.injected")
    near_s = max(1.5, incident["recovery_s"] / 2)
    assert abs(incident["started_s"] - struck_s) < near_s, (
        "it is timed from its loss on, not from its successor's birth"
    )
    assert incident["recovery_s"] >= {"kill": 0.1, "hang": STOPPED_S - 0.5}[kind]


def test_what_happened_while_there_was_no_supervisor_is_caught_up_with(cluster: Store, eventually: Wait) -> None:
    control.wait_ready(cluster)
    ends = jobs.submit(cluster, COUNT, nodes=1, spares=0, name="ends")
    jobs.wait(cluster, ends, {"running"}, 60)
    victim = nodes(control.status(cluster))["node-4"]
    kill_supervisor(cluster)
    assert go(cluster, ends)["state"] == "succeeded"
    os.kill(victim[0], signal.SIGKILL)
    late = jobs.submit(cluster, "print('late')", nodes=4, name="late")
    assert jobs.wait(cluster, late, timeout_s=60)["state"] == "succeeded"
    assert nodes(control.wait_ready(cluster))["node-4"][0] != victim[0]


def test_a_lost_node_is_replaced_and_training_keeps_the_step(cluster: Store, eventually: Wait) -> None:
    control.wait_ready(cluster)
    undisturbed = jobs.submit(cluster, TRAIN, nodes=1, name="calm")
    digest = jobs.wait(cluster, undisturbed, timeout_s=90)["digest"]
    job_id = jobs.submit(cluster, TRAIN.replace("sleep(0.01)", "sleep(0.04)"), nodes=4, name="stormy")
    before = nodes(control.status(cluster))
    victims = []
    for kind, step in (("kill", 2), ("hang", 20)):
        eventually(lambda step=step: jobs.job_view(cluster, job_id)["step"] > step, 60)
        victims.append(jobs.job_view(cluster, job_id)["members"][1]["node"])
        jobs.fault(cluster, job_id, kind, node=victims[-1])
    view = jobs.wait(cluster, job_id, timeout_s=90)
    assert (view["state"], view["step"], view["digest"]) == ("succeeded", 60, digest), view["reason"]
    assert [incident["node"] for incident in view["incidents"]] == victims
    eventually(lambda: {nodes(control.status(cluster))[v][1] for v in victims} == {2})
    assert all(nodes(control.wait_ready(cluster))[victim][0] != before[victim][0] for victim in victims)
    events = jobs.follow(cluster, job_id).poll()
    injected = [event for event in events if event.kind == "fault.injected"]
    done = [event for event in events if event.kind == "command.done"]
    lost = [event for event in events if event.kind == "member.lost"]
    assert [event.data["node"] for event in injected] == victims and all(event.data["ok"] for event in done)
    assert injected[0].time_s <= done[0].time_s and injected[0].time_s <= lost[0].time_s


def test_a_killed_coordinator_is_started_again_and_the_job_goes_on(cluster: Store, eventually: Wait) -> None:
    job_id = jobs.submit(cluster, TRAIN, nodes=2)
    eventually(lambda: jobs.job_view(cluster, job_id)["step"] > 2, 60)
    endpoint = json.loads((cluster.jobs / job_id / "coordinator.json").read_text())
    os.kill(endpoint["pid"], signal.SIGKILL)
    view = jobs.wait(cluster, job_id, timeout_s=60)
    assert (view["state"], view["step"]) == ("succeeded", 60), view["reason"]
    assert any("started again (1 of 100)" in warning["text"] for warning in view["warnings"])


def processes(store: Store, job_id: str) -> set[str]:
    """Node and process id of every rank."""
    return {member["member"] for member in jobs.job_view(store, job_id)["members"]}


def test_a_queue_gets_its_own_nodes_back_from_whoever_borrowed_them(store: Store, eventually: Wait) -> None:
    try:
        control.ensure_started(store, nodes=3, spares=0, queues={"research": 2})
        endless = TRAIN.replace("steps(60)", "steps(100000)")
        borrower = jobs.submit(store, endless, nodes=3, elastic="1:3", priority=9, spares=0, name="borrower")
        eventually(lambda: jobs.job_view(store, borrower)["step"] > 2, 60)
        three = processes(store, borrower)
        owner = jobs.submit(store, COUNT, nodes=2, spares=0, queue="research", name="owner")
        assert jobs.wait(store, owner, {"running"}, 60)["state"] == "running"
        view = jobs.job_view(store, borrower)
        assert processes(store, borrower) < three and view["world_size"] == 1
        assert "lends 2 nodes to queue research, which is guaranteed them" in str(view["decisions"])
        lost = jobs.submit(store, COUNT, queue="reserch")
        assert "no queue 'reserch'; its queues are research" in jobs.wait(store, lost, timeout_s=60)["reason"]
        with pytest.raises(Conflict, match="as queues runs already"):
            control.ensure_started(store, queues={"research": 1})
    finally:
        control.stop(store)


def test_a_borrower_stands_in_for_a_guaranteed_node_that_is_out_of_service(store: Store, eventually: Wait) -> None:
    def members(job_id: str) -> set[str]:
        return {member["node"] for member in jobs.job_view(store, job_id)["members"]}

    try:
        control.ensure_started(store, nodes=4, spares=0, queues={"research": 2})
        endless = TRAIN.replace("steps(60)", "steps(100000)")
        owner = jobs.submit(store, endless, nodes=2, elastic="1:2", spares=0, queue="research", name="owner")
        eventually(lambda: len(members(owner)) == 2 and jobs.job_view(store, owner)["step"] > 2, 60)
        borrower = jobs.submit(store, endless, nodes=2, elastic="1:2", spares=0, priority=9, name="borrower")
        eventually(lambda: len(members(borrower)) == 2 and jobs.job_view(store, borrower)["step"] > 2, 60)
        away, lent = min(members(owner)), members(borrower)
        nodes_control.act(store, away, "drain", "a fan is loud")
        eventually(lambda: len(members(owner)) == 2 and away not in members(owner), 60)
        eventually(lambda: members(borrower) < lent, 60)  # its own journal may say so later than the owner's
        assert "lends 1 node to queue research" in str(jobs.job_view(store, borrower))
        nodes_control.act(store, away, "resume", "")
        eventually(lambda: away in members(borrower), 60)
        assert len(members(owner)) == 2
    finally:
        control.stop(store)


def test_a_higher_priority_borrows_nodes_and_they_come_back(cluster: Store, eventually: Wait) -> None:
    endless = TRAIN.replace("steps(60)", "steps(100000)")
    low = jobs.submit(cluster, endless, nodes=4, elastic="2:4", name="low")
    eventually(lambda: jobs.job_view(cluster, low)["step"] > 2, 60)
    four = processes(cluster, low)
    high = jobs.submit(cluster, COUNT, nodes=2, priority=10, spares=0, name="high")
    assert jobs.wait(cluster, high, {"running"}, 60)["state"] == "running"
    two = processes(cluster, low)
    assert len(two) == 2 and two < four, "the low one is shrunk, not started anew"
    assert go(cluster, high)["state"] == "succeeded"
    eventually(lambda: jobs.job_view(cluster, low)["world_size"] == 4, message="idle nodes are used within seconds")
    assert two < processes(cluster, low)
    view = jobs.job_view(cluster, low)
    assert any("lends 2 nodes to a job of higher priority" in d["reason"] for d in view["decisions"])
    assert view["incidents"] == []
    jobs.stop(cluster, low)
    assert jobs.wait(cluster, low, timeout_s=60)["state"] == "stopped"


def test_a_job_follows_its_owners_wish_for_more_or_fewer_nodes(shared_cluster: Store, eventually: Wait) -> None:
    endless = TRAIN.replace("steps(60)", "steps(100000)")
    job_id = jobs.submit(shared_cluster, endless, nodes=4, elastic="1:4")
    eventually(lambda: jobs.job_view(shared_cluster, job_id)["step"] > 2, 60)
    for target in (2, 4):
        jobs.scale(shared_cluster, job_id, target)
        eventually(lambda target=target: jobs.job_view(shared_cluster, job_id)["world_size"] == target)
        eventually(lambda target=target: busy_nodes(shared_cluster) == target + 1)
    jobs.stop(shared_cluster, job_id)
    assert jobs.wait(shared_cluster, job_id, timeout_s=60)["state"] == "stopped"


def test_a_second_supervisor_refuses_and_the_first_goes_on(shared_cluster: Store) -> None:
    pid = control.request(shared_cluster, {"op": "status"})["pid"]
    command = [sys.executable, "-m", "jupyter_hyperpod.supervisor.main", "--store", str(shared_cluster.root)]
    done = subprocess.run(command, capture_output=True, text=True, env=control.daemon_environment(os.environ))
    assert done.returncode == control.EXIT_LOCKED
    assert f"a supervisor (process {pid}) already serves {shared_cluster.root}" in done.stderr
    assert control.request(shared_cluster, {"op": "status"})["pid"] == pid


def succeed(store: Store) -> subprocess.CompletedProcess[str]:
    """Run what the zygote starts where a supervisor has died, as late as it may come on a busy machine."""
    command = [sys.executable, "-m", "jupyter_hyperpod.supervisor.main", "--store", str(store.root), launch.SUCCEED]
    environment = control.daemon_environment(os.environ)
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)


def test_an_heir_that_comes_after_the_cluster_was_stopped_leaves(store: Store) -> None:
    control.ensure_started(store, nodes=1, spares=0)
    control.stop(store)
    done = succeed(store)
    assert done.returncode == control.EXIT_LOCKED
    assert f"no supervisor of {store.root} has died: the last one took its leave" in done.stderr
    assert control.status(store)["state"] == "stopped"
    shutil.rmtree(store.root)
    assert succeed(store).returncode == control.EXIT_LOCKED
    assert not store.root.exists(), "a store that has been deleted is not made anew"


def test_when_another_host_has_taken_over_nothing_of_a_lost_supervisor_stays(store: Store, eventually: Wait) -> None:
    """It was away for longer than its lease; its job goes on elsewhere, and must not go on here."""
    control.ensure_started(store, nodes=1, spares=0)
    control.wait_ready(store)
    job_id = jobs.submit(store, COUNT, {"name": "count", "nodes": 1, "spares": 0})
    eventually(lambda: busy_nodes(store) == 1)
    answer = control.request(store, {"op": "status"})
    other, over = Succession(store, host="elsewhere"), threading.Event()

    def live() -> None:
        while not over.wait(0.1):
            other.renew(time.monotonic())

    assert other.try_to_take(time.monotonic(), at_once=True)
    thread = threading.Thread(target=live)
    thread.start()
    try:
        os.kill(answer["pid"], signal.SIGKILL)
        eventually(lambda: not list(store.cluster.glob("*.sock")), 60)
        eventually(lambda: connect(store.cluster, "node-1.sock") is None)
        view = jobs.job_view(store, job_id)
        assert view["state"] in ("running", "recovering"), "the other host decides what becomes of it"
        assert control.status(store)["reason"] == "the supervisor is on elsewhere"
    finally:
        over.set()
        thread.join(50)


def test_who_held_the_lock_may_take_its_leave_while_an_heir_waits_for_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    listen(store.cluster, control.SOCKET).close()
    take = lock.Lock

    def late(path: Path, root: Path) -> lock.Lock:
        (store.cluster / control.SOCKET).unlink()
        return take(path, root)

    monkeypatch.setattr(lock, "Lock", late)
    with pytest.raises(ClusterError, match="the last one took its leave"):
        lock.take_lock(store, succeed=True)


def test_every_heir_is_told_to_succeed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in (["--nodes", "1"], ["--nodes", "1", launch.SUCCEED]):
        monkeypatch.setattr(sys, "argv", ["supervisor", *arguments])
        assert cast("list[str]", launch.successor()["successor"])[3:] == ["--nodes", "1", launch.SUCCEED]


def test_a_cluster_of_another_size_is_a_conflict(shared_cluster: Store) -> None:
    control.ensure_started(shared_cluster, nodes=4, spares=1)
    with pytest.raises(Conflict, match="a cluster with 4 nodes runs already, 8 were asked for"):
        control.ensure_started(shared_cluster, nodes=8)
    with pytest.raises(SpecError, match="a local cluster of -1 nodes is impossible"):
        control.ensure_started(shared_cluster, nodes=-1)


def test_a_stale_socket_is_recognised_and_replaced(store: Store) -> None:
    listen(store.cluster, control.SOCKET).close()
    assert (store.cluster / control.SOCKET).exists() and not control.connectable(store)
    with pytest.raises(ClusterError, match="no cluster is running"):
        control.request(store, {"op": "status"})
    with pytest.raises(ClusterError, match="no cluster is running"):
        control.stop(store)
    control.ensure_started(store, nodes=1, spares=0)
    assert control.connectable(store)
    control.stop(store)


def test_a_full_disk_does_not_take_the_supervisor_down_and_nothing_is_forgotten(
    shared_cluster: Store, eventually: Wait
) -> None:
    """A limit on file sizes makes the supervisor's writes fail as a full disk does."""
    control.wait_ready(shared_cluster)
    status = control.request(shared_cluster, {"op": "status"})
    limit = resource.prlimit(status["pid"], resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    job_id = jobs.submit(shared_cluster, "print('hello')", nodes=4)
    assert jobs.wait(shared_cluster, job_id, timeout_s=60)["state"] == "succeeded"
    problem = eventually(lambda: control.request(shared_cluster, {"op": "status"})["problem"])
    assert problem.startswith("cannot") and "File too large" in problem
    never = jobs.submit(shared_cluster, "pass", nodes=40)
    eventually(lambda: never in control.request(shared_cluster, {"op": "status"})["jobs"])
    assert jobs.job_view(shared_cluster, never)["state"] == "pending"

    resource.prlimit(status["pid"], resource.RLIMIT_FSIZE, limit)
    assert jobs.wait(shared_cluster, never, timeout_s=60)["state"] == "failed"
    eventually(lambda: not control.request(shared_cluster, {"op": "status"})["problem"])
    decided = eventually(lambda: jobs.job_view(shared_cluster, job_id)["decisions"])  # the job's journal is another one
    assert any(decision["policy"] == "scaling" for decision in decided)
    assert control.request(shared_cluster, {"op": "status"})["pid"] == status["pid"]


def test_nonsense_from_a_client_is_refused_and_the_supervisor_goes_on(shared_cluster: Store) -> None:
    for nonsense in (b"not json\n", b"[]\n", b'{"op": "poke", "job": 7}\n', b"\xff\xfe\n", b"{}\n", b'{"op": "half'):
        channel = connect(shared_cluster.cluster, control.SOCKET)
        assert channel is not None
        channel._socket.sendall(nonsense)
        channel.close()
    with pytest.raises(ClusterError, match="unknown request 'explode'; expected poke, status, keep, stop"):
        control.request(shared_cluster, {"op": "explode"})
    with pytest.raises(ClusterError, match="no node 'node-99' is up"):
        control.request(shared_cluster, {"op": "node-fault", "node": "node-99", "kind": "kill"})
    assert control.request(shared_cluster, {"op": "status"})["ok"]


def test_a_job_that_cannot_be_read_is_left_alone_and_others_run(shared_cluster: Store) -> None:
    broken = jobs._create(
        shared_cluster, jobs.make_spec(jobs.complete({"name": "broken"}), shared_cluster.put_cell("pass"))
    )
    (broken.path / "spec.json").write_text("{")
    control.poke(shared_cluster, broken.id)
    job_id = jobs.submit(shared_cluster, "print(1)")
    assert jobs.wait(shared_cluster, job_id, timeout_s=60)["state"] == "succeeded"
    log = (shared_cluster.cluster / control.LOG).read_text()
    assert f"{broken.id} cannot be read and is left alone" in log
    view = jobs.job_view(shared_cluster, broken.id)
    assert view["state"] == "failed" and "spec.json is not JSON" in view["reason"]


def test_deleting_a_running_jobs_directory_frees_its_nodes(shared_cluster: Store, eventually: Wait) -> None:
    job_id = jobs.submit(shared_cluster, COUNT, nodes=4)
    jobs.wait(shared_cluster, job_id, {"running"}, 60)
    shutil.rmtree(shared_cluster.jobs / job_id, ignore_errors=True)
    eventually(lambda: not control.request(shared_cluster, {"op": "status"})["jobs"])
    again = jobs.submit(shared_cluster, "print(1)", nodes=4)
    assert jobs.wait(shared_cluster, again, timeout_s=60)["state"] == "succeeded"


def test_a_head_that_never_comes_up_fails_the_job_with_its_last_words(shared_cluster: Store) -> None:
    job = jobs._create(shared_cluster, jobs.make_spec(jobs.complete({"name": "mute"}), shared_cluster.put_cell("pass")))
    (job.path / "secret").unlink()
    control.poke(shared_cluster, job.id)
    view = jobs.wait(shared_cluster, job.id, timeout_s=60)
    assert view["state"] == "failed"
    assert "failed 5 times in a row within 10 s" in view["reason"] and "secret" in view["reason"]


def test_stopping_ends_jobs_nodes_and_sockets(store: Store, eventually: Wait) -> None:
    control.ensure_started(store, nodes=2, spares=0)
    job_id = jobs.submit(store, "import time; time.sleep(1000)", nodes=2)
    jobs.wait(store, job_id, {"running"}, 60)
    assert stat.S_IMODE((store.cluster / control.SOCKET).stat().st_mode) == 0o600
    seen = {"running"}
    with ThreadPoolExecutor() as pool:
        stopping = [pool.submit(control.stop, store, by=jobs.person()) for _ in range(2)]
        while not all(one.done() for one in stopping):
            seen.add(control.status(store)["state"])
        for one in stopping:
            one.result()
    view, why = jobs.job_view(store, job_id), f"the cluster was stopped by {own_name()}"
    assert (view["state"], view["reason"]) == ("stopped", why)
    ended = control.status(store)
    assert (ended["state"], ended["reason"], ended["nodes"]) == ("stopped", why, [])
    assert list(store.cluster.glob("*.sock")) == []
    assert seen <= {"running", "stopping", "stopped"}, "a cluster that ends is not lost"
    told = [
        event.data["state"] for event in follow_events(store.cluster_events).poll() if event.kind == "cluster.state"
    ]
    assert told == ["starting", "running", "stopping", "stopped"]


def test_a_cluster_that_somebody_else_stops_meanwhile_is_not_started_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    control.ensure_started(store, nodes=1, spares=0)
    control.wait_ready(store)
    control.stop(store)
    (store.cluster / "node-1.sock").touch()  # its nodes end at this moment
    answers = iter([True])  # so did it, when the other request was read
    monkeypatch.setattr(control, "connectable", lambda _: next(answers, False))
    monkeypatch.setattr(control, "ensure_started", lambda *_, **__: pytest.fail("it was started again"))
    control.stop(store)


def test_stopping_finds_the_nodes_of_a_dead_supervisor(store: Store) -> None:
    control.ensure_started(store, nodes=2, spares=0)
    left = [identify(pid) for pid, _ in nodes(control.wait_ready(store)).values()]
    kill_supervisor(store)
    assert len(left) == 2 and all(map(alive, left))
    control.stop(store)
    assert not any(map(alive, left))
    assert list(store.cluster.glob("*.sock")) == []


def test_sigterm_makes_it_leave_and_leave_all_running(cluster: Store, eventually: Wait) -> None:
    before = nodes(control.wait_ready(cluster))
    job_id = jobs.submit(cluster, COUNT, nodes=1)
    jobs.wait(cluster, job_id, {"running"}, 60)
    os.kill(control.request(cluster, {"op": "status"})["pid"], signal.SIGTERM)
    eventually(lambda: not (cluster.cluster / control.SOCKET).exists())
    control.ensure_started(cluster)
    assert nodes(control.wait_ready(cluster)) == before
    assert go(cluster, job_id)["state"] == "succeeded"


def test_deleting_the_store_ends_everything(store: Store, eventually: Wait, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYPERPOD_DELETED_STORE", "this one")
    control.ensure_started(store, nodes=1, spares=0)
    control.wait_ready(store)
    assert len(marked_processes("this one", "HYPERPOD_DELETED_STORE")) > 1
    shutil.rmtree(store.root)
    eventually(lambda: set(marked_processes("this one", "HYPERPOD_DELETED_STORE")) <= {os.getpid()})


def test_old_journals_of_the_cluster_do_not_confuse_a_new_start_and_are_forgotten(store: Store) -> None:
    for _ in range(20):
        event_writer(store.cluster_events, "supervisor").close()
    with event_writer(store.cluster_events, "supervisor") as journal:
        journal.append("cluster.state", {"state": "running", "reason": "", "nodes": ["node-1"], "pid": 1})
    assert control.status(store)["state"] == "lost"
    control.ensure_started(store, nodes=1, spares=0)
    assert control.wait_ready(store)["state"] == "running"
    control.stop(store)
    assert len(list(store.cluster_events.iterdir())) <= 9
