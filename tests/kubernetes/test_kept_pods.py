"""Pods that stay after their job: the next job begins in them at once, and finds nothing of the one before."""

from __future__ import annotations

import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from jupyter_hyperpod.backends.kubernetes import manifests
from jupyter_hyperpod.backends.kubernetes.client import Api
from jupyter_hyperpod.backends.kubernetes.kubeconfig import read_access
from jupyter_hyperpod.backends.kubernetes.warm.fitting import FREE, KEEPER, LEFT_S, FreePod
from jupyter_hyperpod.backends.kubernetes.warm.keeper import READY
from jupyter_hyperpod.backends.kubernetes.warm.pod_order import PodOrder
from jupyter_hyperpod.backends.kubernetes.warm.pods import KeptPods, listed, path
from jupyter_hyperpod.backends.types import BASE
from jupyter_hyperpod.core.spec import LaunchPlan
from jupyter_hyperpod.storage.store import ENDPOINT_FILE
from tests.kubernetes.conftest import Desk, Submit
from tests.kubernetes.test_jobs import START_S, jobs_of
from tests.runtime.conftest import Run
from tests.slurm.conftest import Gated
from tests.support.kubernetes import CONTROLLER, TEAM, Testbed

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(900)]
NODES = ["--nodes", "2", "--spares", "0"]
ONE = ["--nodes", "1", "--spares", "0"]
KEPT, ONE_KEPT = ([*nodes, "--keep-warm", "5min"] for nodes in (NODES, ONE))
ROUNDS = 8
LEAVES = """
import os, pathlib, socket, subprocess
os.environ["LEFT"] = "1"
for place in ("/tmp/left", "/dev/shm/left", "/var/tmp/left"):
    if os.path.isdir(os.path.dirname(place)):
        os.makedirs(place)
        pathlib.Path(place, "file").write_text("x")
subprocess.Popen(["sleep", "1000"], start_new_session=True)
door = socket.create_server(("0.0.0.0", 7777))
if os.fork() == 0:
    os.setsid()
    import time; time.sleep(1000)
print("left by", os.environ["HYPERPOD_NODE"], flush=True)
"""
LOOKS = """
import json, os, socket
def name_of(pid):
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            return file.read().split("\\0")[0].rpartition("/")[2]
    except OSError:
        return None  # it has ended since it was listed
seen = {
    "node": os.environ["HYPERPOD_NODE"],
    "environment": sorted(os.environ),
    "secret": os.environ.get("SECRET"),
    "files": [name for place in ("/tmp", "/var/tmp", "/dev/shm") if os.path.isdir(place) for name in os.listdir(place)],
    "processes": sorted(found for pid in os.listdir("/proc") if pid.isdigit() and (found := name_of(pid)) is not None),
}
try:
    socket.create_connection(("127.0.0.1", 7777)).close()
    seen["port"] = True
except OSError:
    seen["port"] = False
print(json.dumps(seen), flush=True)
"""


# of the shell that begins another pod's program, beside PWD
OF_A_SHELL = {"SHLVL", "OLDPWD"}


def kept(bed: Testbed) -> dict[str, str]:
    """The pods that wait for a job, by the names of their Jobs."""
    free = {item["metadata"]["name"] for item in bed.get("jobs", "-n", TEAM, "-l", FREE)["items"] if lives(item)}
    pods = {pod["metadata"]["labels"]["job-name"]: pod["metadata"]["name"] for pod in pods_in(bed)}
    return {job: pods[job] for job in free if job in pods}


def lives(job: dict[str, Any]) -> bool:
    return bool(job.get("status", {}).get("active"))


def pods_in(bed: Testbed) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = bed.get("pods", "-n", TEAM)["items"]
    return found


def until_kept(bed: Testbed, count: int, times: int = 1) -> dict[str, str]:
    """So many pods are kept, and have been made ready so often."""
    bed.until(lambda: len(kept(bed)) == count, f"{count} pods are kept")
    there = kept(bed)
    for pod in there.values():
        ready = lambda pod=pod: bed.log(pod).count(READY) >= times  # noqa: E731
        bed.until(ready, f"{pod} is ready for the next job")
    return there


def seen(run: Run) -> list[dict[str, Any]]:
    """What each rank has seen, in the order of nodes."""
    run.finish(timeout_s=START_S)
    found = [json.loads(line) for text in run.text().values() for line in text.splitlines()]
    for one in found:
        one["environment"] = sorted(set(one["environment"]) - OF_A_SHELL)
        one["processes"] = sorted(set(one["processes"]))
        one["files"] = sorted(name for name in one["files"] if not name.startswith("hyperpod."))
    return sorted(found, key=lambda one: str(one["node"]))


def test_the_next_job_begins_in_the_same_pods_and_finds_nothing_of_the_one_before(
    kubernetes: Testbed, job: Submit
) -> None:
    new = seen(job(*NODES, source=LOOKS))
    first = job(*KEPT, "--env", "SECRET=hidden", source=LEAVES)
    first.finish(timeout_s=START_S)
    there = until_kept(kubernetes, 2)
    assert jobs_of(kubernetes, first) == []
    second = job(*KEPT, source=LOOKS)
    assert seen(second) == new
    assert until_kept(kubernetes, 2, times=2) == there, "the same pods"
    assert "hidden" not in json.dumps([kubernetes.get(kind, "-n", TEAM) for kind in ("jobs", "pods")])
    other = job(*NODES, "--threads", "2", source=LOOKS)
    seen(other)
    assert until_kept(kubernetes, 2) == there, "another kind of job has pods of its own"
    last = job(*NODES, source=LOOKS)
    assert seen(last) == new
    kubernetes.until(lambda: not kept(kubernetes), "a job that keeps none ends them")


def test_a_training_in_kept_pods_is_the_same_and_loses_one_as_any_other(
    kubernetes: Testbed, job: Submit, reference: Run, desk: Desk
) -> None:
    job(*KEPT, source="print('first')").finish(timeout_s=START_S)
    there = until_kept(kubernetes, 2)
    gate = Gated(desk.store.root)
    gate.let(3)
    run = job(*KEPT, "--env", f"GATE={gate.path}", source=gate.source)
    run.until_step(3, START_S)
    names = {one["metadata"]["labels"]["job-name"] for one in pods_in(kubernetes)}
    assert names == there.keys()
    run.kill_node(1)
    run.until_event("member.lost", timeout_s=START_S)
    gate.let(4)
    run.until_step(4, START_S)
    gate.until_whole(run, 2, START_S)
    run.until_made_good(1, 2, START_S)
    run.full_speed()
    gate.let(24)
    run.finish(timeout_s=START_S)
    run.same_as(reference)
    assert "node lost" in [incident["cause"] for incident in run.view["incidents"]], run.story()


def test_kept_pods_are_listed_and_let_go(kubernetes: Testbed, job: Submit, desk: Desk) -> None:
    where = ["--namespace", TEAM, "--json"]
    job(*KEPT, source="print('first')").finish(timeout_s=START_S)
    there = until_kept(kubernetes, 2)
    listed = json.loads(desk("kept", *where).stdout)["kept"]
    assert {place["name"] for place in listed} == set(there.values())
    assert {place["node"] for place in listed} == {"n1", "n2"}
    assert all(200 < place["until_s"] - time.time() < 300 for place in listed)
    assert set(json.loads(desk("kept", "let-go", *where).stdout)["let_go"]) == there.keys()
    kubernetes.until(lambda: not pods_in(kubernetes), "no pod is left")
    assert json.loads(desk("kept", *where).stdout) == {"kept": []}


def test_a_kept_pod_ends_by_itself_though_nobody_is_there(kubernetes: Testbed, job: Submit, desk: Desk) -> None:
    job(*ONE, "--keep-warm", "10s", source="print('first')").finish(timeout_s=START_S)
    until_kept(kubernetes, 1)
    supervisor = json.loads(desk("cluster", "status", "--json").stdout)["pid"]
    kubernetes.hosts.run(CONTROLLER, "kill", str(supervisor))  # it leaves, and what it has begun goes on
    kubernetes.until(lambda: kept(kubernetes) == {}, "no pod is kept any more", 60)
    phases = {pod["status"]["phase"] for pod in pods_in(kubernetes)}
    assert phases <= {"Succeeded"}, phases
    (left,) = kubernetes.get("jobs", "-n", TEAM)["items"]
    assert left["spec"]["ttlSecondsAfterFinished"] == LEFT_S
    soon = json.dumps({"spec": {"ttlSecondsAfterFinished": 1}})
    kubernetes.kubectl("patch", "job", left["metadata"]["name"], "-n", TEAM, "--type=merge", "-p", soon)
    kubernetes.until(lambda: pods_in(kubernetes) == [], "what is left of it is gone")


# Two jobs that a kept pod can be given to: what runs in it says which.
CLAIMED = """
import os
def main():
    with open(os.environ["CLAIMED"], "a") as file:
        file.write(os.environ["CLIENT"] + "\\n")
    return 0
"""


def test_of_two_clients_that_claim_one_pod_at_the_same_moment_one_has_it(
    kubernetes: Testbed, job: Submit, desk: Desk
) -> None:
    job(*ONE_KEPT, source="print('first')").finish(timeout_s=START_S)
    until_kept(kubernetes, 1)
    directory = desk.store.root / "claims"
    directory.mkdir()
    (directory / "claimed.py").write_text(CLAIMED)
    (directory / ENDPOINT_FILE).write_text('{"ended": "succeeded"}')  # so that the pod is kept each time
    ran, both = directory / "ran", threading.Barrier(2)

    def order(client: str, number: int) -> PodOrder:
        env = {"HYPERPOD_JOB_DIR": str(directory), "CLAIMED": str(ran), "CLIENT": client, "OMP_NUM_THREADS": "1"}
        place = str(directory)
        plan = LaunchPlan(f"claim-{client}", "claimed", "", (), env, sys.executable, place, place, "")
        return PodOrder(f"hp-{number}-0", plan, 300.0)

    def claim(client: str, number: int) -> dict[int, FreePod]:
        with kubernetes.network(), Api(read_access(kubeconfig=desk.kubeconfig)) as api:
            pods = KeptPods()
            pods.free = listed(api)
            (free,) = pods.free
            both.wait(60)
            labels = manifests.labels(f"claim-{client}", BASE, number)
            return pods.take(api, [order(client, number)], labels, free.fits, (), ())

    won: list[str] = []

    def all_have_run() -> bool:
        return ran.exists() and ran.read_text().split() == won

    for number in range(10, 10 + 2 * ROUNDS, 2):
        with ThreadPoolExecutor(2) as pool:
            asked = {name: pool.submit(claim, name, number + i) for i, name in enumerate(("a", "b"))}
            found = [name for name in asked if asked[name].result()]
        assert len(found) == 1, found
        won += found
        kubernetes.until(all_have_run, f"{won} have had the pod, and nobody else")
        with kubernetes.network(), Api(read_access(kubeconfig=desk.kubeconfig)) as api:
            (taken,), _ = api.list(path(api, "jobs"), f"{manifests.JOB}=claim-{found[0]}")
            assert KeptPods().keep(api, [taken]) == {taken["metadata"]["name"]}
        until_kept(kubernetes, 1, times=1 + len(won))


def test_a_coordinator_that_began_for_a_kept_pod_goes_where_the_pod_does_not_answer(
    kubernetes: Testbed, job: Submit, desk: Desk
) -> None:
    first = job(*ONE_KEPT, source="print('first')")
    first.finish(timeout_s=START_S)
    until_kept(kubernetes, 1)
    taint = ["kubectl-test", "NoSchedule"]
    kubernetes.kubectl("taint", "nodes", "n1", "n2", f"{taint[0]}=yes:{taint[1]}")
    try:
        for node in ("n1", "n2"):
            kubernetes.hosts.run(node, "pkill", "-STOP", "-f", KEEPER, check=False)
        run = job(*ONE, source="print('second')")
        endpoint = desk.store.job(run.job_id).path / ENDPOINT_FILE
        kubernetes.until(endpoint.exists, "the coordinator begins while the pod is asked")
        look = ["ps", "-o", "pid=", "-p", str(json.loads(endpoint.read_text())["pid"])]
        assert kubernetes.hosts.run(CONTROLLER, *look).stdout.strip()
        gone = lambda: not kubernetes.hosts.run(CONTROLLER, *look, check=False).stdout.strip()  # noqa: E731
        kubernetes.until(gone, "no pod was taken: the coordinator goes")
        run.until(lambda: "taint" in run.view["reason"], START_S)
        assert run.view["state"] == "pending" and not endpoint.exists()
    finally:
        kubernetes.kubectl("taint", "nodes", "n1", "n2", f"{taint[0]}-")
    run.finish(timeout_s=START_S)
    assert list(run.text().values()) == ["second\n"]
    assert run.view["incidents"] == [] and run.view["warnings"] == [], run.story()


def test_kept_pods_give_way_to_a_job_that_they_do_not_fit(kubernetes: Testbed, job: Submit) -> None:
    job(*KEPT, "--kubernetes", "resources=cpu=1500m", source="print('first')").finish(timeout_s=START_S)
    there = until_kept(kubernetes, 2)
    other = job(*NODES, "--kubernetes", "resources=cpu=1400m", source="print('second')")
    other.finish(timeout_s=START_S)
    told = [event.data["reason"] for event in other.events if event.kind == "decision.made"]
    said = [reason for reason in told if "is let go" in reason]
    assert len(said) == 2 and all("Insufficient cpu" in reason for reason in said), told
    assert all(any(pod in reason for reason in said) for pod in there.values())
    assert kept(kubernetes) == {}


def test_a_cluster_that_is_stopped_keeps_no_pod(kubernetes: Testbed, job: Submit, desk: Desk) -> None:
    job(*ONE_KEPT, source="print('first')").finish(timeout_s=START_S)
    until_kept(kubernetes, 1)
    desk("cluster", "stop")
    kubernetes.until(lambda: not pods_in(kubernetes), "no pod is left")
