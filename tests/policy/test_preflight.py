"""What a preflight's findings mean: no row passes that was not looked at."""

from __future__ import annotations

from typing import Any

import pytest

from jupyter_hyperpod.policy import preflight
from jupyter_hyperpod.policy.preflight import FAILED, PASSED, SKIPPED, Row


def probe(node: str, **found: Any) -> dict[str, Any]:
    """What a node finds where everything is in order: no accelerators, a good shared directory, a good network."""
    stored = {"written": f"digest of {node}", "read": {}, "took_s": 0.1, "problem": ""}
    blank = {
        "devices": 0,
        "efa": 0,
        "devices_expected": None,
        "efa_expected": None,
        "driver": "",
        "driver_problem": "",
        "storage": {"shared": stored},
    }
    reduced = {"reduce_problem": "", "reduce_mb": 16.0, "reduce_mb_s": 500.0, "backend": "gloo"}
    return {"node": node, "rank": 0} | blank | reduced | found


def pair(**found: Any) -> list[dict[str, Any]]:
    """Two nodes, the second of which finds something else."""
    return [probe("n1"), probe("n2", **found)]


def test_nodes_are_counted_and_the_wrong_ones_named() -> None:
    states = {"n1": ("idle", ""), "n2": ("mixed", ""), "n3": ("drained", "bad disk"), "n4": ("idle*", "")}
    good = preflight.nodes_ready(states, 2, "mend")
    assert good.verdict == PASSED and "n3 is drained (bad disk)" in good.sentence
    assert "n4 is idle* (it does not answer)" in good.sentence
    bad = preflight.nodes_ready(states, 3, "mend")
    assert (bad.verdict, bad.remedy) == (FAILED, "mend")
    assert bad.sentence.startswith("2 of 4 nodes are in service, 3 are needed")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, None),
        ({"gres": "gpu:8"}, 8),
        ({"gres": "tmpfs:1,gpu:h100:4"}, 4),
        ({"gres": "gpu"}, 1),
        ({"gpus-per-node": "2"}, 2),
        ({"gres": "gpu:lots"}, 1),
        ({"gres": "tmpfs:1"}, None),
    ],
)
def test_devices_that_a_job_asks_for(options: dict[str, str], expected: int | None) -> None:
    assert preflight.expected_devices(options) == expected


def test_devices_are_compared_with_what_is_asked_for() -> None:
    assert preflight.devices(pair(), None).verdict == SKIPPED
    assert preflight.devices(pair(), 8).verdict == FAILED
    assert preflight.devices([probe("n1", devices=8), probe("n2", devices=8)], None).verdict == PASSED
    one_short = preflight.devices([probe("n1", devices=8), probe("n2", devices=7)], 8)
    assert (one_short.verdict, one_short.sentence) == (FAILED, "n2 has 7 of 8")


def test_devices_and_fabric_are_compared_with_what_the_type_of_the_node_has() -> None:
    p5 = {"devices_expected": 8, "efa_expected": 32}
    short = [probe("n1", devices=7, efa=32, **p5), probe("n2", devices=7, efa=32, **p5)]
    assert preflight.devices(short, None).sentence == "n1 has 7 of 8, n2 has 7 of 8"
    assert preflight.devices(short, 4).verdict == FAILED, "the machine is broken, however few are asked for"
    assert preflight.fabric([probe("n1", **p5), probe("n2", **p5)]).sentence == "n1 has 0 of 32, n2 has 0 of 32"
    assert preflight.fabric([probe("n1", efa=4, **p5), probe("n2", efa=4, **p5)]).verdict == FAILED
    mixed = [probe("n1", devices=8, **p5), probe("n2", devices=4, devices_expected=4)]
    assert preflight.devices(mixed, None).sentence == "4 to 8 on each of 2 nodes"
    assert preflight.devices(mixed, 8).sentence == "n2 has 4 of 8"


def test_fabric_and_driver_are_skipped_only_where_there_is_nothing() -> None:
    assert preflight.fabric(pair()).verdict == SKIPPED
    assert preflight.fabric(pair(efa=4)).verdict == FAILED
    assert preflight.fabric([probe("n1", efa=4), probe("n2", efa=4)]).verdict == PASSED
    assert preflight.driver(pair()).verdict == SKIPPED
    blind = preflight.driver(pair(devices=1, driver_problem="nvidia-smi is not installed"))
    assert blind.verdict == FAILED and "n2 answers no driver query: nvidia-smi" in blind.sentence
    mixed = [probe("n1", devices=1, driver="550.1"), probe("n2", devices=1, driver="535.2")]
    assert preflight.driver(mixed).verdict == FAILED
    assert preflight.driver(mixed[:1]).verdict == PASSED


def stored(**found: Any) -> dict[str, Any]:
    """A second node's findings about the shared directory."""
    good = {"written": "b", "read": {"n1": "a", "n2": "b"}, "took_s": 0.2, "problem": ""}
    return {"storage": {"shared": good | found}}


def test_storage_has_to_be_the_same_for_two_nodes() -> None:
    first = probe(
        "n1", storage={"shared": {"written": "a", "read": {"n1": "a", "n2": "b"}, "took_s": 0.1, "problem": ""}}
    )
    good = preflight.storage("shared", [first, probe("n2", **stored())])
    assert good.verdict == PASSED and "0.20 s on n2" in good.sentence
    for found in (
        {"read": {"n1": "other"}},
        {"read": {"stranger": "a"}},
        {"problem": "Read-only file system"},
        {"took_s": 60.0},
    ):
        row = preflight.storage("shared", [first, probe("n2", **stored(**found))])
        assert row.verdict == FAILED and row.remedy, row
    alone = probe("n1", storage={"shared": {"written": "a", "read": {"n1": "a"}, "took_s": 0.1, "problem": ""}})
    assert preflight.storage("shared", [alone]).verdict == SKIPPED


def test_the_sum_has_to_be_exact_on_every_rank() -> None:
    assert preflight.all_reduce(pair()[:1]).verdict == SKIPPED
    assert preflight.all_reduce(pair(reduce_problem="3 of 9 sums are wrong")).verdict == FAILED
    row = preflight.all_reduce(pair(reduce_mb_s=80.0))
    assert row.verdict == PASSED and "80 MB/s (slowest: n2)" in row.sentence


def test_a_training_that_was_not_disturbed_proves_nothing() -> None:
    assert preflight.training("succeeded", "", 1, True, False).verdict == PASSED
    too_soon = preflight.training("succeeded", "", 0, True, False)
    assert too_soon.verdict == SKIPPED and "before a rank could be killed" in too_soon.sentence
    assert "one node" in preflight.training("succeeded", "", 0, True, True).sentence
    assert preflight.training("succeeded", "", 1, False, False).verdict == FAILED
    assert preflight.training("failed", "it broke", 1, True, False).verdict == FAILED


def test_the_last_line_counts_what_was_skipped() -> None:
    rows = [Row("a", PASSED, ""), Row("b", SKIPPED, "")]
    assert preflight.verdict(rows[:1]) == "go: 1 passed, 0 failed, 0 skipped"
    assert preflight.verdict(rows) == "go: 1 passed, 0 failed, 1 skipped (skipped is not passed)"
    assert preflight.verdict([*rows, Row("c", FAILED, "")]).startswith("no-go")
