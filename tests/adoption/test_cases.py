"""Each case of `bench adoption` runs plainly, and in a session through kills, growth and shrinking: the same bits."""

from __future__ import annotations

import gc
import sys
import types
import warnings
from pathlib import Path

import pytest

from benchmarks.adoption import comparison
from benchmarks.adoption.cases import FOLDER, Case, read
from jupyter_hyperpod.core.errors import SpecError
from jupyter_hyperpod.storage.store import Store

FILES = sorted(FOLDER.glob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_case_does_what_its_file_says(
    shared_cluster: Store, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    case = read(path)
    if not case.refused:
        _run_in_plain_pytorch(case)
    result = comparison.judged(shared_cluster, case, seed=0, disturbances={"worn": comparison.worn})
    assert not result["problem"]


def _run_in_plain_pytorch(case: Case) -> None:
    """Run it as a script of its own: dataclasses look their module up, and our annotations are not its annotations."""
    module = types.ModuleType(f"{case.name}_in_plain_pytorch")
    sys.modules[module.__name__] = module
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of other people's libraries
            exec(compile(case.plain, module.__name__, "exec", dont_inherit=True), vars(module))
            gc.collect()
    finally:
        del sys.modules[module.__name__]
        if (state := sys.modules.get("accelerate.state")) is not None:  # one per process: the next case may refuse it
            state.AcceleratorState._reset_state(reset_partial_state=True)


def test_a_different_result_is_found(shared_cluster: Store) -> None:
    """What each rank prints for itself is no result of the run."""
    source = read(FOLDER / "linear_regression.py").ours
    case = Case("own_results", "", source, source.replace('"result", loss', '"result", session.world_size'), "")
    result = comparison.judged(shared_cluster, case, 0, {"killed": comparison.killed})
    assert "DIFFERENT" in result["problem"] and "it printed" in result["problem"]


def test_a_case_that_should_be_refused_and_is_not(shared_cluster: Store) -> None:
    source = read(FOLDER / "linear_regression.py").ours
    result = comparison.judged(shared_cluster, Case("not_refused", "", source, source, "some words"), 0)
    assert "its file says that it is refused" in result["problem"]


def test_the_parts_of_a_case(tmp_path: Path) -> None:
    parts = ['"""Title."""', "a = 1", "# ---- plain", "b = 2", "c = 3", "# ---- hyperpod", "    c = 3", "d = 4"]
    path = tmp_path / "case.py"
    path.write_text("\n".join([*parts, "# ---- both", "print(a)", ""]))
    case = read(path)
    assert (case.name, case.title, case.changed_lines) == ("case", "Title.", 1)
    assert case.plain.splitlines()[1:] == ["a = 1", "b = 2", "c = 3", "print(a)"]
    assert case.ours.splitlines()[1:] == ["a = 1", "    c = 3", "d = 4", "print(a)"]
    path.write_text("\n".join(parts[:4]))
    with pytest.raises(SpecError, match="lacks a title, or one of the lines"):
        read(path)
