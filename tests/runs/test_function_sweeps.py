"""`hp.sweep`: what travels of a function, what is refused, and its trials on a real cluster."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import jupyter_hyperpod as hp
from jupyter_hyperpod.control.sweeps.function_source import cell_of
from jupyter_hyperpod.control.sweeps.plan import space_of
from jupyter_hyperpod.core.errors import SpecError
from jupyter_hyperpod.notebook.function_sweeps import FunctionSweep
from jupyter_hyperpod.storage.store import Store

SHIFT = [3, 4]
HANDLE = object()


class Bowl:
    """A thing of this file that a function uses."""

    def depth(self, x: float) -> float:
        return (x - SHIFT[0]) ** 2


def shifted(x: float) -> float:
    return Bowl().depth(x)


def objective(x: float, y: int = 1, mode: str | None = None) -> float:
    if mode == "fails":
        raise ValueError(Path("here").name)
    return shifted(x) + math.sqrt(y)


def uses_a_handle(x: float) -> object:
    return HANDLE, x


def names_collide(SHIFT: float) -> float:
    return shifted(SHIFT)


def returned(function: Callable[..., Any], **space: Any) -> str:
    return cell_of(function, space_of(space))


def test_the_cell_of_a_function_stands_alone() -> None:
    cell = returned(objective, x=[1.5], y="1..4")
    found: dict[str, Any] = {}
    exec(cell.replace("x = None", "x = 5.0").replace("y = None", "y = 4"), found)
    assert found["result"] == 6.0
    assert "import math" in cell and "from pathlib import Path" in cell and "SHIFT = [3, 4]" in cell


@pytest.mark.parametrize(
    ("function", "space", "said"),
    [
        (lambda x: x, {"x": [1]}, "not a function with a name"),
        (objective, {"z": [1]}, "takes no z"),
        (objective, {"y": [1]}, "needs x"),
        (objective, {"x": 3}, "neither a list"),
        (objective, {"x": []}, "is empty"),
        (objective, {"x": [[1]]}, "expected numbers, text"),
        (uses_a_handle, {"x": [1]}, "uses HANDLE, a object that exists only here"),
        (names_collide, {"SHIFT": [1]}, "rename one of them"),
        (math.sqrt, {"x": [1]}, "not a function with a name"),
    ],
)
def test_what_cannot_travel_is_refused(function: Any, space: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        returned(function, **space)


def test_a_function_inside_another_is_refused() -> None:
    outer = 3

    def inner(x: float) -> float:
        return x + outer

    with pytest.raises(SpecError, match="inner uses outer of the function around it"):
        returned(inner, x=[1])


@pytest.mark.timeout(300)
def test_a_sweep_of_a_function(shared_cluster: Store, capfd: Any, tmp_path: Path) -> None:
    place = str(shared_cluster.root)
    sweep = hp.sweep(objective, {"x": [1, 3, 5], "mode": ["plain", "fails"]}, store=place)
    assert [trial.state for trial in sweep.trials] == ["succeeded", "failed"] * 3
    assert [trial.value for trial in sweep.trials[::2]] == [5.0, 1.0, 5.0]
    assert sweep.best is not None and sweep.best.values == {"x": 3, "mode": "plain"} and sweep.best.value == 1.0
    assert len(sweep.jobs) == 6 and sweep.best.job == sweep.jobs[2]
    assert "best" in sweep.table().render() and "<table>" in sweep.table()._repr_html_()
    assert "the best so far" in capfd.readouterr().out
    assert Path(sweep.report(str(tmp_path / "page.html"))).exists()
    later = FunctionSweep.of(sweep.id, place)
    assert later.best == sweep.best and later.jobs == sweep.jobs and later.stop() == []
