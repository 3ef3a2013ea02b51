"""Pods that stay after their job: the next job begins in them at once, and finds nothing of the one before."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from jupyter_hyperpod.backends.kubernetes.warm.fitting import FREE
from jupyter_hyperpod.backends.kubernetes.warm.keeper import READY
from tests.kubernetes.conftest import Desk, Submit
from tests.kubernetes.test_jobs import START_S, jobs_of
from tests.runtime.conftest import Run
from tests.support.kubernetes import TEAM, Testbed

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(900)]
NODES = ["--nodes", "2", "--spares", "0"]
KEPT = [*NODES, "--keep-warm", "5min"]
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
seen = {
    "node": os.environ["HYPERPOD_NODE"],
    "environment": sorted(os.environ),
    "secret": os.environ.get("SECRET"),
    "files": [name for place in ("/tmp", "/var/tmp", "/dev/shm") if os.path.isdir(place) for name in os.listdir(place)],
    "processes": sorted(
        open(f"/proc/{pid}/cmdline").read().split("\\0")[0].rpartition("/")[2]
        for pid in os.listdir("/proc") if pid.isdigit()
    ),
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
        ready = lambda pod=pod: bed.kubectl("logs", pod, "-n", TEAM).stdout.count(READY) >= times  # noqa: E731
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
    kubernetes: Testbed, job: Submit, reference: Run
) -> None:
    job(*KEPT, source="print('first')").finish(timeout_s=START_S)
    there = until_kept(kubernetes, 2)
    run = job(*KEPT, pause_s=0.05)
    run.until_step(3, START_S)
    names = {one["metadata"]["labels"]["job-name"] for one in pods_in(kubernetes)}
    assert names == there.keys()
    run.kill_node(1)
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
    job(*NODES, "--keep-warm", "20s", source="print('first')").finish(timeout_s=START_S)
    until_kept(kubernetes, 2)
    desk("cluster", "stop")
    kubernetes.until(lambda: kept(kubernetes) == {}, "no pod is kept any more", 60)
    phases = {pod["status"]["phase"] for pod in pods_in(kubernetes)}
    assert phases <= {"Succeeded"}, phases
