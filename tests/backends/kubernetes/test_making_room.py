"""Which kept pods have to go because a job of the same person waits for their room, and which stay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jupyter_hyperpod.backends.kubernetes import manifests
from jupyter_hyperpod.backends.kubernetes.client import Api
from jupyter_hyperpod.backends.kubernetes.manifests import PodUser
from jupyter_hyperpod.backends.kubernetes.warm import making_room as room
from jupyter_hyperpod.backends.kubernetes.warm import pods as kept_pods
from jupyter_hyperpod.backends.kubernetes.workloads.workload import JOB_NAME
from jupyter_hyperpod.backends.types import BASE
from tests.backends.kubernetes.test_kept import FIRST, OWNER, RICH, job_and_pod, merge

WAITS, MINE = "eval-abcdefgh", {"eval-abcdefgh"}
LACKS = "0/3 nodes are available: 1 node(s) had taint {x: y}, 2 Insufficient nvidia.com/gpu, 2 Insufficient cpu."
Pair = tuple[dict[str, Any], dict[str, Any]]


def a_wait(message: str = LACKS, number: int = 0, **options: str) -> Pair:
    """A Job of the job that waits, and its pod, of which the scheduler says something."""
    plan = replace(FIRST, job_id=WAITS)
    job = manifests.job(plan, {**RICH, **options}, BASE, 9, number, PodUser(1000, 1000))
    name = job["metadata"]["name"]
    placed = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    pod = {
        "metadata": {"name": f"{name}-x", "labels": {**job["metadata"]["labels"], JOB_NAME: name}},
        "spec": {},
        "status": {"phase": "Pending", "conditions": [placed]},
    }
    return job, pod


def a_kept(name: str = "hp-7-0", requests: tuple[str, ...] = ("cpu",), now_s: float = 1000.0) -> Pair:
    job, pod = job_and_pod(now_s)
    job["metadata"]["name"] = name
    merge(pod, {"metadata": {"name": f"{name}-x", "labels": {JOB_NAME: name}}})
    pod["spec"]["containers"] = [{"resources": {"requests": dict.fromkeys(requests, "1")}}]
    return job, pod


def go(*pairs: Pair, owner: str = OWNER) -> list[str]:
    """The Jobs of the kept pods that have to go."""
    jobs, there = [job for job, _ in pairs], [pod for _, pod in pairs if pod]
    return [pod.job for pod, _ in room.held_by(room.waiting(jobs, there, MINE), jobs, there, owner)]


def test_a_kept_pod_that_holds_what_a_job_lacks_goes_one_for_each_that_waits_and_the_oldest_first() -> None:
    kept = [a_kept("hp-7-0", now_s=1003.0), a_kept("hp-7-1", now_s=1001.0), a_kept("hp-7-2", now_s=1002.0)]
    assert go(a_wait(), *kept) == ["hp-7-1"]
    assert go(a_wait(), a_wait(number=1), *kept) == ["hp-7-1", "hp-7-2"]
    assert go(a_wait("0/2 nodes are available: 2 Too many pods."), *kept) == ["hp-7-1"]
    (told,) = room.waiting([a_wait()[0]], [a_wait()[1]], MINE)
    assert told.lacks == {"nvidia.com/gpu", "cpu"} and told.of == WAITS and told.element == "hp-9-0"


@pytest.mark.parametrize(
    "message",
    [
        "0/2 nodes are available: 2 Insufficient memory.",
        "0/2 nodes are available: 2 node(s) didn't match Pod's node affinity.",
        "",
    ],
)
def test_one_that_holds_nothing_of_what_is_lacking_stays(message: str) -> None:
    assert go(a_wait(message), a_kept()) == []


def test_pods_of_somebody_else_stay_and_nobody_else_is_made_room_for() -> None:
    assert go(a_wait(), a_kept(), owner="another") == []
    job, pod = a_wait()
    for thing in (job, pod):
        merge(thing, {"metadata": {"labels": {manifests.JOB: "other-abcdefgh"}}})
    assert go((job, pod), a_kept()) == []


def test_a_job_that_waits_for_a_quota_or_for_its_queue_is_made_room_for() -> None:
    job, _ = a_wait()
    assert go((job, {}), a_kept()) == ["hp-7-0"], "it gets no pod"
    job["spec"]["suspend"] = True
    assert go((job, {}), a_kept()) == ["hp-7-0"], "both are of one queue"
    job["metadata"]["labels"][manifests.QUEUE] = "another"
    assert go((job, {}), a_kept()) == []


def test_one_that_has_a_node_or_ends_does_not_wait() -> None:
    job, pod = a_wait()
    pod["spec"]["nodeName"] = "n1"
    assert go((job, pod), a_kept()) == []
    job, pod = a_wait()
    job["metadata"]["deletionTimestamp"] = "now"
    assert go((job, pod), a_kept()) == []


class Cluster(Api):
    """Takes every change, and keeps what was deleted."""

    def __init__(self) -> None:
        self.namespace, self.deleted = "team", list[str]()

    def patch(self, path: str, body: Any) -> dict[str, Any]:
        """Take it."""
        return {}

    def delete(self, path: str, *, grace_s: int | None = None) -> None:
        """Keep its name."""
        self.deleted.append(path.rpartition("/")[2])


def test_kept_pods_go_after_a_while_and_no_more_of_them_while_one_is_ending(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(kept_pods.time, "monotonic", lambda: now[0])
    api, known = Cluster(), kept_pods.KeptPods()
    pairs = [a_wait(), a_kept("hp-7-0", now_s=1001.0), a_kept("hp-7-1", now_s=1002.0)]

    def look(*pairs: Pair) -> list[tuple[str, str]]:
        jobs, pods = [job for job, _ in pairs], [pod for _, pod in pairs]
        known.seen(jobs, pods)
        return known.make_room(api, jobs, pods, MINE, OWNER)

    assert look(*pairs) == [] and known.watched
    now[0] += room.PATIENCE_S
    ((of, said),) = look(*pairs)
    assert of == WAITS and "hp-7-0-x on n1" in said and "Insufficient cpu" in said
    assert api.deleted == ["hp-7-0", "hp-7-0-x"]
    now[0] += 100
    assert look(*pairs) == [], "what it gives back may be enough"
    pairs.pop(1)
    assert look(*pairs) == [], "and is waited for again"
    now[0] += room.PATIENCE_S
    assert [said for _, said in look(*pairs)] and api.deleted[-1] == "hp-7-1-x"
    assert look(a_wait()) == [] and not known.watched, "nothing is kept any more"
