"""The benchmark of Kubernetes runs, short: what it compares is the same, few requests are made, and nothing is left."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jupyter_hyperpod.bench import run

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(600)]
TIMED = {
    *("testbed_up_s", "submit_to_first_line_s", "first_line_beyond_a_bare_pod_s", "pod_deleted_stall_p50_s", "lists_s"),
    *("capacity_back_grown_s", "kept_one_node_first_line_s", "kept_two_nodes_first_line_s"),
    *("submit_to_first_line_with_torch_s", "first_line_beyond_a_bare_pod_with_torch_s"),
}


def test_the_benchmark_finds_the_same_bits_and_few_requests() -> None:
    before = of_this_process()
    report = run("kubernetes", runs=1, kept=1, deletions=1, cuts=0, evictions=1, hollow=20, many=8, seconds=10)
    bars = {bar["name"]: bar for bar in report["bars"]}
    assert {
        "requests_per_s",
        "mismatches",
        "steps_lost",
        "samples_repeated",
        "eviction_incidents",
        "pods_that_nobody_needs",
    } <= bars.keys()
    assert TIMED <= bars.keys()
    assert not [bar for name, bar in bars.items() if name not in TIMED and not bar["ok"]], bars
    assert of_this_process() == before


def of_this_process() -> set[Path]:
    """Those of this process: that of other tests may be up."""
    return set(Path("/var/tmp").glob(f"kubernetes-testbed-{os.getpid()}-*"))
