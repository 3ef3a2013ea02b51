"""The benchmark of SLURM runs, short: what it compares is the same, and what it leaves is nothing."""

from __future__ import annotations

import os

import pytest

from jupyter_hyperpod.bench import run
from tests.support.slurm import missing
from tests.support.slurm.machine import PLACE, PREFIX

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(240)]
TIMED = {"kill_stall_p50_s", "power_cut_stall_p50_s", "power_cut_whole_s", "urgent_first_step_s", "testbed_up_s"}


@pytest.fixture(autouse=True)
def possible() -> None:
    if reason := missing():
        pytest.skip(f"NO TEST AGAINST SLURM RUNS HERE: {reason}")


def test_the_benchmark_finds_the_same_bits_and_few_queries() -> None:
    report = run("slurm", kills=1, cuts=0, urgents=0, many=12, seconds=3.0)
    bars = {bar["name"]: bar for bar in report["bars"]}
    assert {"kill_stall_p50_s", "testbed_up_s", "mismatches", "queries_per_s", "jobs_listed"} <= bars.keys()
    assert not [bar for name, bar in bars.items() if name not in TIMED and not bar["ok"]], bars
    assert not [*PLACE.glob(f"{PREFIX}{os.getpid()}-*")], "its testbed is named by its process; other tests have theirs"
