"""Which CUDA devices the nodes of one machine see."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_hyperpod.backends.local.devices import VARIABLE, shares, visible


def nodes(count: int, spares: int = 0) -> dict[str, bool]:
    return {f"node-{number}": number >= count for number in range(count + spares)}


@pytest.mark.parametrize(
    ("chosen", "expected"),
    [("0,2", ["0", "2"]), (" GPU-a , GPU-b", ["GPU-a", "GPU-b"]), ("1,-1,0", ["1"]), ("", []), ("-1", [])],
)
def test_the_devices_of_the_environment_come_first(tmp_path: Path, chosen: str, expected: list[str]) -> None:
    (tmp_path / "nvidia0").touch()
    assert visible({VARIABLE: chosen}, str(tmp_path)) == expected


def test_the_devices_of_the_machine(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia10", "nvidia2", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert visible({}, str(tmp_path)) == ["0", "2", "10"]
    assert visible({}, str(tmp_path / "missing")) == []


def test_each_node_has_its_own_while_there_are_enough() -> None:
    assert shares("01234567", nodes(4)) == {
        "node-0": ("0", "1"), "node-1": ("2", "3"), "node-2": ("4", "5"), "node-3": ("6", "7"),
    }  # fmt: skip
    assert shares("01", nodes(3)) == {"node-0": ("0",), "node-1": ("1",), "node-2": ("0",)}, "they share"
    assert shares("01", nodes(2, spares=1))["node-2"] == ("0",), "who stands by takes nothing from those that work"
    assert shares("0", nodes(4)) == {} and shares("", nodes(1)) == {} and shares("01", {}) == {}


@given(st.integers(2, 16), st.integers(1, 20), st.integers(0, 3))
def test_no_device_is_idle_or_twice_before_it_must(devices: int, count: int, spares: int) -> None:
    names = [str(number) for number in range(devices)]
    found = shares(names, nodes(count, spares))
    assert len(found) == count + spares and all(found.values())
    used = [name for number in range(count) for name in found[f"node-{number}"]]
    assert set(used) == set(names[: max(count, devices)] if count >= devices else names)
    assert len(used) == max(devices, count)
