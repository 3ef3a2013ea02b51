"""The loading benchmark: its bars, and one small round for real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.loading.arms import CASES, CHECKSUMS, CONVENTIONAL, LIMIT, MAPPED, OURS, PREAD, SAFETENSORS
from benchmarks.loading.comparison import Samples, bars_of
from benchmarks.loading.weights import layers_for, tensor_shapes
from jupyter_hyperpod import bench
from jupyter_hyperpod.core.errors import SpecError


def facts(seconds: float, cpu_s: float = 1.0, **more: float) -> dict[str, float]:
    return {"seconds": seconds, "cpu_s": cpu_s, "peak_bytes": 1030.0, "held_bytes": 1000.0, **more}


def test_every_promise_is_judged_by_medians() -> None:
    ours = [facts(0.5, 0.4, first_layer_s=0.04), facts(0.4, 0.3, first_layer_s=0.04), facts(9.0, first_layer_s=0.04)]
    samples: Samples = {
        ("lean", OURS): ours,
        ("lean", LIMIT): [facts(0.45)],
        ("lean", CONVENTIONAL): [facts(3.0)],
        ("lean", "obstore"): [facts(1.0, 0.9)],
        ("lean", "awscrt"): [facts(0.8, 2.0)],
        ("seaweedfs", OURS): [facts(1.0)],
        ("seaweedfs", CONVENTIONAL): [facts(2.0)],
        ("checksum", OURS): [facts(1.0)],
        ("checksum", CHECKSUMS): [facts(1.2)],
        ("local", OURS): [facts(0.02)],
        ("local", PREAD): [facts(0.2)],
        ("local", MAPPED): [facts(0.019)],
        ("local", SAFETENSORS): [facts(0.021)],
        ("parts", f"{OURS}, tp = 3"): [facts(1.0, body_bytes=1010.0), facts(1.0, body_bytes=1100.0)],
        ("alone", f"{OURS}, tp = 3"): [facts(9.0, largest_share=1.01), facts(9.0, largest_share=1.04)],
    }
    found = {one["name"]: (round(one["value"], 4), one["ok"]) for one in bars_of(samples, 1000)}
    assert found == {
        "times_conventional_lean": (6.0, True),
        "times_conventional_seaweedfs": (2.0, False),
        "times_best_library": (1.6, True),
        "cpu_ratio_best_library": (0.4444, True),
        "fraction_of_limit": (0.9, True),
        "peak_memory_ratio": (1.03, True),
        "first_layer_fraction": (0.08, True),
        "checksum_slowdown": (1.2, False),
        "tp_bytes_ratio": (1.1, False),
        "tp_rank_bytes_ratio": (1.04, True),
        "local_fraction": (0.95, True),
        "local_vs_safetensors": (1.05, True),
    }


def test_what_was_not_measured_is_not_judged() -> None:
    assert bars_of({("lean", OURS): [facts(1.0, first_layer_s=0.5)]}, 1000) and not bars_of({}, 1000)


def test_names_are_checked() -> None:
    with pytest.raises(SpecError, match="no case named nowhere; expected some of lean, "):
        bench.run("loading", cases="lean,nowhere")
    assert len({arm.name for case in CASES.values() for arm in case.arms}) > 10


def test_the_model_has_about_the_size_that_was_asked_for() -> None:
    assert layers_for(1e9) == 32 and layers_for(1.0) == 1
    assert list(tensor_shapes(2)) == sorted(tensor_shapes(2))


@pytest.mark.slow
def test_a_small_round(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"gigabytes": 0.07, "peers": "none", "keep": str(tmp_path / "kept")}
    found = bench.run("loading", runs=1, cases="checksum,local", arms="mmap", **settings)
    rounds = {row["case"]: row["n"] for row in found["rows"]}
    assert rounds == {CASES["local"].label: 2, CASES["checksum"].label: 4}  # of two arms each is first equally often
    arms = {(row["case"], row["arm"]) for row in found["rows"]}
    assert len(arms) == 4
    assert {one["name"] for one in found["bars"]} == {"checksum_slowdown", "local_fraction"}
    sent = [row["median"] for row in found["rows"] if row["metric"] == "bytes sent"]
    assert len(sent) == 2 and all(1 <= value < 1.02 for value in sent)
    assert len(list((tmp_path / "kept").glob("*.json"))) == 12
    again = bench.run("loading", runs=1, cases="checksum,local", arms="mmap", **settings)
    assert again["rows"] == found["rows"]
