"""``make demo`` in small: it says yes to a run that was killed and recovered, and no to one where nothing happened."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from benchmarks import demo
from jupyter_hyperpod.control import cluster
from jupyter_hyperpod.storage.store import Store
from tests.cells import train

KILL = "%hyperpod fault kill --node node-2 --after-step 5"


def small_notebook(directory: Path, *, kill: bool) -> Path:
    cells = ["%load_ext jupyter_hyperpod", f"%%hyperpod --nodes 3 --elastic 2:3 --name tinylm --detach\n{train(60)}"]
    cells += [KILL] if kill else []
    cells += ["%hyperpod attach tinylm", "%hyperpod rerun tinylm --name tinylm-undisturbed"]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    path = directory / "small.ipynb"
    nbformat.write(book, path)
    return path


@pytest.mark.parametrize("kill", [True, False])
def test_demo_tells_the_truth(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], kill: bool
) -> None:
    monkeypatch.setattr(demo, "NOTEBOOK", small_notebook(tmp_path, kill=kill))
    assert demo.main() == (0 if kill else 1)
    out = capfd.readouterr().out
    assert ("All of it holds." in out) == kill
    assert "loss curves bit-identical" in out and "make lab" in out
    assert not cluster.connectable(store)


def test_demo_without_its_notebook_is_a_failure(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "NOTEBOOK", tmp_path / "absent.ipynb")
    assert demo.main() == 1
    assert "absent.ipynb is missing" in capfd.readouterr().err


def test_the_notebook_is_whole_and_holds_no_output() -> None:
    book = nbformat.read(demo.NOTEBOOK, as_version=4)
    nbformat.validate(book)
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    assert all(cell.outputs == [] and cell.execution_count is None for cell in code)
    assert any("--node node-2" in cell.source for cell in code)
