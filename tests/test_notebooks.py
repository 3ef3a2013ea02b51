"""The notebooks of the life cycle: a question each, no output in the tree, and each runs, in order, in one store."""

from __future__ import annotations

import re
import time
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from jupyter_hyperpod.storage.store import Store
from tests.conftest import running_cluster

TREE = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((TREE / "notebooks").glob("*.ipynb"))
LIFE_CYCLE = [path for path in NOTEBOOKS if path.name >= "02"]
CELL_TIMEOUT_S = 300
LIFE_CYCLE_S = 600.0  # from the data to a served model, and beyond
EXECUTED = TREE / "test-output" / "notebooks"  # the documentation shows these copies, with their output

# What a reader is told to look for, as patterns in the output of a whole notebook.
SHOWN = {
    "02_prepare_data.ipynb": [r"held_out\.bin", r"(?s)(\[rank [0-3]\] train +\w{16}.*){4}", r"[\d,]+ samples"],
    "03_train_elastically.ipynb": [
        r"on 2 nodes", r"on 4 nodes", r"kill injected into rank 1", r"resumed: step",
        r"are bit-identical until step 160; their states after step 160 have the same digest",
    ],
    "04_sweep.ipynb": [r"4 of 4 trials · 4 succeeded · best loss"],
    "05_evaluate.ipynb": [r"bits per byte on 4 nodes", r"bits per byte here, the same bits"],
    "06_serve.ipynb": [r"answered [\d.]+ s", r"200 of 200 requests were answered; the first answer is the same"],
    "07_monitor.ipynb": [
        r"process killed", r"every micro-batch of every step counts exactly once", r"it succeeded", r"GOODPUT",
    ],
    "08_bring_your_script.ipynb": [r"(?s)final state (\w{16}).*final state \1"],
}  # fmt: skip


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_is_whole_and_holds_no_output(path: Path) -> None:
    book = nbformat.read(path, as_version=4)
    nbformat.validate(book)
    assert all(not cell.outputs and cell.execution_count is None for cell in book.cells if cell.cell_type == "code")
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", "\n".join(cell.source for cell in book.cells)):
        assert (path.parent / link).exists(), f"{path.name} links to {link}"


@pytest.mark.parametrize("path", LIFE_CYCLE, ids=lambda path: path.name)
def test_a_notebook_begins_with_a_question_and_is_tested(path: Path) -> None:
    heading = nbformat.read(path, as_version=4).cells[0].source.splitlines()[0]
    assert heading.startswith("# ") and heading.endswith("?")
    assert path.name in SHOWN


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_whole_life_cycle_runs_headless(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "notebooks"
    folder.mkdir()
    took_s: dict[str, float] = {}
    for _ in running_cluster(store, monkeypatch, "TEST_LIFE_CYCLE_MARK"):
        for path in LIFE_CYCLE:
            share, began_s = _share(), time.monotonic()
            text = _run(path, folder)
            took_s[path.name] = round((time.monotonic() - began_s) * (share + _share()) / 2, 1)
            for pattern in SHOWN[path.name]:
                assert re.search(pattern, text), f"{path.name} does not show {pattern!r}:\n{text}"
    assert (folder / "life.html").stat().st_size > 10_000
    print(f"the life cycle takes {sum(took_s.values()):.0f} s on a machine of its own: {took_s}")
    assert sum(took_s.values()) <= LIFE_CYCLE_S, took_s


def _share() -> float:
    """The share of a core that others leave to whoever needs one; 1 where nobody else uses the machine."""
    began_s, used_s = time.monotonic(), time.thread_time()
    while time.thread_time() - used_s < 0.5:
        pass
    return min(1.0, 0.5 / (time.monotonic() - began_s))


def _run(path: Path, folder: Path) -> str:
    """Run all cells of a notebook in a kernel of its own; return what they show. Raises CellExecutionError."""
    book = nbformat.read(path, as_version=4)
    quiet = ["--HistoryManager.enabled=False", "--IPKernelApp.log_level=40"]
    NotebookClient(
        book, timeout=CELL_TIMEOUT_S, resources={"metadata": {"path": str(folder)}}, extra_arguments=quiet
    ).execute()
    EXECUTED.mkdir(parents=True, exist_ok=True)
    nbformat.write(book, EXECUTED / path.name)
    shown = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    texts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in shown]
    return re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", "\n".join(texts))
