"""Random faults on a real Kubernetes, one after another, for as long as you like: is anything lost, or ever stuck?"""

from __future__ import annotations

import sys
import time
from typing import Any

from benchmarks.kubernetes.rig import BASE, CPU, SPARE, URGENT, Rig, kubernetes_rig
from benchmarks.soak import EVERY_S, OURS, SAVE_EVERY, STUCK_S, Act, Mend, Soak, fault, nothing, until_commits
from jupyter_hyperpod.bench.laboratory import Observer
from jupyter_hyperpod.bench.report import not_run, report
from jupyter_hyperpod.control import jobs
from tests.support.kubernetes import TEAM, missing
from tests.support.kubernetes.cluster import API, ETCD, MANAGER, SCHEDULER

MEMORY = "1Gi"
AWAY_S = 10.0
NODES = 2
# Processes that fill a pod together, each of them smaller than a member: the kernel ends the members first.
GREEDY = """
import os, time
for _ in range(5):
    os.fork()
held = []
for _ in range(8):
    held.append(bytearray(os.urandom(1) * 8_000_000))
    time.sleep(0.05)
"""


def run(minutes: float = 60.0, seed: int = 0, every_s: float = EVERY_S) -> dict[str, Any]:
    """Disturb one job on two nodes for ``minutes``, a fault every ``every_s`` seconds or as soon as the last is mended;
    after each further steps have to be committed. Then compare with an undisturbed run. Needs root and
    `make kubernetes`.

    Every kind of fault comes once, in random order, before any comes again; however few the minutes, each comes once.
    """
    if reason := missing():
        return report("kubernetes-soak", [not_run(OURS, "everything", reason)], [])
    with kubernetes_rig() as rig:
        resources = f"cpu={CPU},memory={MEMORY}"
        watch = rig.train("soak", SAVE_EVERY, resources=resources, priority_class=BASE, elastic_priority_class=SPARE)
        watch.until_step(5, STUCK_S)
        return Soak("kubernetes-soak", rig, watch, FAULTS, members=NODES).run(minutes, seed, every_s)


def _deleted(rig: Rig, watch: Observer, victim: dict[str, Any]) -> None:
    for pod in rig.pods(watch.job_id).get(victim["node"], []):
        rig.delete(pod)


def _all_deleted(rig: Rig, watch: Observer, _: dict[str, Any]) -> None:
    for pods in rig.pods(watch.job_id).values():
        for pod in pods:
            rig.delete(pod)


def _out_of_memory(rig: Rig, watch: Observer, victim: dict[str, Any]) -> None:
    for pod in rig.pods(watch.job_id).get(victim["node"], []):
        rig.bed.kubectl("exec", pod, "-n", TEAM, "--", sys.executable, "-c", GREEDY, check=False)


def _drained(rig: Rig, _: Observer, victim: dict[str, Any]) -> None:
    how = ("--force", "--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={STUCK_S:.0f}s")
    rig.bed.kubectl("drain", victim["node"], *how)


def _urgent(rig: Rig, _: Observer, __: dict[str, Any]) -> None:
    rig.pod("urgent", "sleep 3600", CPU, priorityClassName=URGENT)
    rig.until_runs("urgent")


def _no_urgent(rig: Rig, _: str) -> None:
    rig.delete("urgent")
    rig.bed.kubectl("wait", "--for=delete", "pod/urgent", "-n", TEAM, f"--timeout={STUCK_S:.0f}s", check=False)


def _resized(_: Rig, watch: Observer, __: dict[str, Any]) -> None:
    jobs.scale(watch.store, watch.job_id, 1)
    watch.until(lambda: watch.view["world_size"] == 1, STUCK_S)
    jobs.scale(watch.store, watch.job_id, 2)


def _without(program: str) -> Act:
    def act(rig: Rig, watch: Observer, _: dict[str, Any]) -> None:
        with rig.bed.without(program):
            until_commits(watch, 3)
            time.sleep(AWAY_S)

    return act


def _in_service(rig: Rig, node: str) -> None:
    rig.bed.kubectl("uncordon", node)


def _back(rig: Rig, _: str) -> None:
    rig.bed.restore()


FAULTS: dict[str, tuple[Act, Mend]] = {
    "kill": (fault("kill"), nothing),
    "hang": (fault("hang"), nothing),
    "throttle": (fault("throttle", factor=3.0, duration_s=3.0), nothing),
    "preempt": (fault("preempt"), nothing),
    "pod deleted": (_deleted, nothing),
    "every pod deleted": (_all_deleted, nothing),
    "out of memory": (_out_of_memory, nothing),
    "power cut": (lambda rig, _, victim: rig.bed.power_cut(victim["node"]), _back),
    "partition": (lambda rig, _, victim: rig.bed.cut(victim["node"]), _back),
    "drain": (_drained, _in_service),
    "urgent pod": (_urgent, _no_urgent),
    "API server away": (_without(API), _back),
    "etcd away": (_without(ETCD), _back),
    "controller manager away": (_without(MANAGER), _back),
    "scheduler away": (_without(SCHEDULER), _back),
    "resize": (_resized, nothing),
}
