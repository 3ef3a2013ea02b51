"""The benchmark of SLURM runs, short: what it compares is the same, and what it leaves is nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_hyperpod.bench import run
from jupyter_hyperpod.bench.slurm_soak import FAULTS
from jupyter_hyperpod.bench.testbed import missing

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(240)]
TIMED = {"kill_stall_p50_s", "power_cut_stall_p50_s", "power_cut_whole_s", "urgent_first_step_s", "testbed_up_s"}


@pytest.fixture(autouse=True)
def possible() -> None:
    if reason := missing():
        pytest.skip(f"NO TEST AGAINST SLURM RUNS HERE: {reason}")


def test_the_benchmark_finds_the_same_bits_and_few_queries() -> None:
    before = set(Path("/var/tmp").glob("slurm-testbed-*"))
    report = run("slurm", kills=1, cuts=0, urgents=0, many=12, seconds=3.0)
    bars = {bar["name"]: bar for bar in report["bars"]}
    assert {"kill_stall_p50_s", "testbed_up_s", "mismatches", "queries_per_s", "jobs_listed"} <= bars.keys()
    assert not [bar for name, bar in bars.items() if name not in TIMED and not bar["ok"]], bars
    assert set(Path("/var/tmp").glob("slurm-testbed-*")) <= before


@pytest.mark.timeout(480)
def test_a_short_soak_every_kind_of_fault_once() -> None:
    """Not the five minutes that `make soak` takes, but nothing of what it does is left out."""
    report = run("slurm-soak", minutes=0, seed=0, every_s=0)
    bars = {bar["name"]: bar for bar in report["bars"]}
    assert {"mismatches", "steps_lost", "samples_repeated", "stuck"} <= bars.keys()
    assert not [bar for bar in bars.values() if not bar["ok"]], bars
    assert bars["faults"]["value"] >= len(FAULTS) - 2, "one may find that its victim has gone"
