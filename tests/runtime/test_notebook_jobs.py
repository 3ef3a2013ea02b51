"""A notebook that is run as a job comes back with its outputs, although rank 0 is killed in the middle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest

from jupyter_hyperpod.cli import main
from jupyter_hyperpod.storage.store import Store
from tests.runtime.conftest import TRAIN, Run

IMPORTS, _, LOOP = TRAIN.partition("model = ")
CELLS = [
    f"{IMPORTS}print('begins')\n'the value'",
    f"model = {LOOP}        print('step', step.number)\n        display({{'step': step.number}})\nprint('trained')\n",
    "import sys\nprint('warned', file=sys.stderr)\nfrom types import SimpleNamespace\n{'after': 6 * 7}",
]


def book(cells: list[str]) -> str:
    code: list[dict[str, Any]] = [
        {
            "cell_type": "code",
            "metadata": {},
            "source": cell,
            "outputs": [],
            "execution_count": None,
            "id": f"c{number}",
        }
        for number, cell in enumerate(cells)
    ]
    title = {"cell_type": "markdown", "metadata": {}, "source": "# A run", "id": "title"}
    return json.dumps({"cells": [title, *code], "metadata": {}, "nbformat": 4, "nbformat_minor": 5})


def text(cell: Any, name: str = "stdout") -> str:
    return "".join(one.text for one in cell.outputs if one.output_type == "stream" and one.name == name)


def values(cell: Any, kind: str = "execute_result") -> list[str]:
    return [one.data["text/plain"] for one in cell.outputs if one.output_type == kind]


def test_an_executed_notebook_survives_the_loss_of_rank_0(
    shared_cluster: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, written = tmp_path / "book.ipynb", tmp_path / "out.ipynb"
    path.write_text(book(CELLS))
    store = ["--store", str(shared_cluster.root)]
    assert main(["submit", str(path), "--nodes", "2", "--json", *store]) == 0
    run = Run(shared_cluster, json.loads(capsys.readouterr().out)["id"])
    run.until_step(6)
    first = run.view["members"][0]["member"]
    assert main(["notebook", run.job_id, "-o", str(written), *store]) == 0
    early = nbformat.read(written, as_version=4)
    assert early.metadata.hyperpod.running_cell == 2 and early.cells[3].outputs == []
    run.kill_node(0)
    run.finish()
    assert main(["notebook", run.job_id, "-o", str(written), *store]) == 0
    notebook = nbformat.read(written, as_version=4)
    nbformat.validate(notebook)
    title, begins, trains, after = notebook.cells
    assert title.source == "# A run" and text(begins) == "begins\n"
    assert values(begins) == ["'the value'"]
    assert text(trains) == "".join(f"step {number}\n" for number in range(1, 25)) + "trained\n"
    assert values(trains, "display_data") == [str({"step": number}) for number in range(1, 25)]
    assert text(after, "stderr") == "warned\n" and values(after) == ["{'after': 42}"]
    about = notebook.metadata.hyperpod
    assert (about.steps, about.state, about.notes, about.members[0]) == (24, "succeeded", [], first)
    assert len(about.members) == 2
    assert [cell.metadata.papermill.status for cell in notebook.cells[1:]] == ["completed"] * 3
