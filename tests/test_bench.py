"""The pure parts of the benchmarks: what is read, in which order arms run, what a bar says."""

from __future__ import annotations

import pytest

from jupyter_hyperpod import bench
from jupyter_hyperpod.bench.arms import Commit, parse_commits, rotation, step_times
from jupyter_hyperpod.bench.report import bar
from jupyter_hyperpod.cli.parser import build_parser
from jupyter_hyperpod.core.errors import SpecError


def test_a_bar_is_a_limit_or_a_minimum() -> None:
    assert bar("a", 1.0, 1.0)["ok"] and not bar("a", 1.1, 1.0)["ok"]
    more = bar("b", 0.95, at_least=0.95)
    assert more["ok"] and not bar("b", 0.94, at_least=0.95)["ok"]
    assert more == {"name": "b", "value": 0.95, "limit": 0.95, "direction": "at least", "ok": True}
    with pytest.raises(ValueError, match="needs a limit"):
        bar("c", 1.0)


def test_observations_are_read_as_they_were_written() -> None:
    commits = parse_commits("12.500000 3 0 4 77\n12.250000 3 1 4 78\n13.000000 4 0 4 77\n")
    assert commits[0] == Commit(12.5, 3, 0, 4, 77)
    assert step_times(commits) == {3: 12.25, 4: 13.0}
    with pytest.raises(ValueError):
        parse_commits("half a line\n")


def test_no_arm_is_always_first() -> None:
    assert rotation(["a", "b"], 3) == [["a", "b"], ["b", "a"], ["a", "b"]]
    assert {order[0] for order in rotation(["a", "b", "c"], 3)} == {"a", "b", "c"}


def test_settings_of_a_benchmark_on_the_command_line() -> None:
    options = build_parser().parse_args(["bench", "overhead", "members=4", "scale=0.5", "label=x", "--peers", "all"])
    assert dict(options.options) == {"members": 4, "scale": 0.5, "label": "x"} and options.peers == "all"
    with pytest.raises(SystemExit):
        build_parser().parse_args(["bench", "overhead", "members"])
    with pytest.raises(SpecError, match="bench latency: .*'colour'"):
        bench.run("latency", colour=1)
