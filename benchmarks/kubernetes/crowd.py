"""Hundreds of nodes and jobs: how long people wait for their lists, and what the API server is asked meanwhile."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.kubernetes.rig import OURS, Part, Rig
from benchmarks.waits import until_each_says_why
from jupyter_hyperpod.bench.laboratory import progress
from jupyter_hyperpod.bench.report import bar, row
from jupyter_hyperpod.control import jobs

LIST_LIMIT_S, REQUESTS_LIMIT = 1.0, 1.0
KNOWN_S = 300.0
QUIET_S, QUIET_MOST = 5.0, 1.2  # per second; a list of both kinds and one of nodes come in that time anyway
LOOKS = 3
AT_ONCE = 4
NOBODY_HAS = "nvidia.com/gpu=1"


def measure_crowd(rig: Rig, hollow: int, many: int, seconds: float) -> Part:
    """``hollow`` nodes that are objects of the API alone, and ``many`` jobs that wait for a device that none has."""
    rig.bed.lose_later()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(lambda number: _add_node(rig, f"bare-{number:03}"), range(hollow)))
    began_s = time.time()
    fields: dict[str, Any] = {"name": "many", "nodes": 1, "kubernetes": {"resources": NOBODY_HAS}}
    for _ in range(many):
        rig.submit("print('here')", **fields)
    accepted_s = time.time() - began_s
    known_s = until_each_says_why(rig.store, many, b'"Pending"', began_s, KNOWN_S)
    progress(f"{many} jobs submitted in {accepted_s:.1f} s, all known after {known_s:.1f} s")
    rig.bed.until(lambda: _is_quiet(rig), "the cluster has said of all of them what there is to say")
    quiet_s = time.time() - began_s
    rate, watches = rig.asked_per_s(seconds)
    progress(f"quiet after {quiet_s:.1f} s; {rate:.2f} requests/s beside {watches} watches")
    told: dict[str, Callable[[], object]] = {
        "`list`": lambda: rig.on("list"),
        "`cluster status`": lambda: rig.on("cluster", "status"),
        "`nodes describe`": lambda: rig.on("nodes", "describe", "bare-000"),
        "the list of a Jupyter server": lambda: jobs.list_jobs(rig.store),
    }
    took = {name: [_timed(look) for _ in range(LOOKS)] for name, look in told.items()}
    progress(", ".join(f"{name} {statistics.median(samples):.2f} s" for name, samples in took.items()))
    case = f"{hollow} hollow nodes, {many} jobs that wait"
    rows = [
        row(OURS, case, "submitted, one after another", "s", [accepted_s]),
        row(OURS, case, "first submission until why each waits is known", "s", [known_s]),
        row(OURS, case, "requests beside watches", "1/s", [rate]),
        *(row(OURS, case, f"{name}", "s", samples) for name, samples in took.items()),
    ]
    slowest = max(max(samples) for samples in took.values())
    return rows, [bar("requests_per_s", rate, REQUESTS_LIMIT), bar("lists_s", slowest, LIST_LIMIT_S)]


def _is_quiet(rig: Rig) -> bool:
    """Whether few requests have come lately. While the cluster reports of new jobs, they are listed once per second."""
    return len(rig.bed.requests(time.time() - QUIET_S)) <= QUIET_S * QUIET_MOST


def _timed(look: Callable[[], object]) -> float:
    began_s = time.monotonic()
    look()
    return time.monotonic() - began_s


def _add_node(rig: Rig, name: str) -> None:
    """A node that says it is ready, and that no kubelet works for."""
    capacity = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    ready = {"type": "Ready", "status": "True", "reason": "Bench", "message": "an object of the API alone"}
    body = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
        "status": {"capacity": capacity, "allocatable": capacity, "conditions": [ready]},
    }
    with rig.bed.network():
        rig.api.create("/api/v1/nodes", body)
