"""The whole runtime on a real Kubernetes of two nodes: a cell starts, pods and nodes are lost, many jobs are followed.

Every disturbed run is compared, bit for bit, with an undisturbed one on one node.
"""

from __future__ import annotations

from typing import Any

from benchmarks.kubernetes.crowd import measure_crowd
from benchmarks.kubernetes.disturbed import measure_evictions, measure_losses
from benchmarks.kubernetes.rig import OURS, kubernetes_rig
from benchmarks.kubernetes.starts import measure_kept, measure_starts
from benchmarks.slurm.rig import compare, worst
from jupyter_hyperpod.bench.laboratory import Observer
from jupyter_hyperpod.bench.report import bar, not_run, report, row
from tests.support.kubernetes import missing

UP_LIMIT_S = 30.0


def run(
    runs: int = 5,
    kept: int = 7,
    deletions: int = 5,
    cuts: int = 3,
    evictions: int = 3,
    hollow: int = 500,
    many: int = 200,
    seconds: float = 20.0,
) -> dict[str, Any]:
    """Start a cell ``runs`` times, and ``kept`` times in kept pods, on one node and on two; delete a pod ``deletions``
    times, cut a node's power ``cuts`` times, preempt a pod ``evictions`` times; then follow ``many`` jobs among
    ``hollow`` nodes for ``seconds``, and one that trains for half of that. Needs root and `make kubernetes`."""
    if reason := missing():
        return report("kubernetes", [not_run(OURS, "everything", reason)], [])
    ended: list[Observer] = []
    with kubernetes_rig() as rig:
        rows = [row(OURS, "2 nodes in namespaces", "testbed up", "s", [rig.up_s])]
        bars = [bar("testbed_up_s", rig.up_s, UP_LIMIT_S)]
        for part in (
            measure_starts(rig, runs) if runs else ([], []),
            measure_kept(rig, kept) if kept else ([], []),
            measure_losses(rig, deletions, cuts, seconds / 2, ended) if deletions or cuts else ([], []),
            measure_evictions(rig, evictions, ended) if evictions else ([], []),
            measure_crowd(rig, hollow, many, seconds) if many else ([], []),
        ):
            rows, bars = [*rows, *part[0]], [*bars, *part[1]]
    bars += compare(*ended) if ended else []
    return report("kubernetes", rows, worst(bars))
