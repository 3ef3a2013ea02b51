"""A job's own packages come along: members import them as they were at the submit, also when they join later."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from jupyter_hyperpod.control import lookup
from tests.runtime.conftest import Run, Submit

CELL = """
import torch, jupyter_hyperpod as hp
from torch import nn
from mine.losses import loss_of, words

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
data = [(x, x.sum()) for x in torch.randn(32, 4)]

with hp.Session(model, optimizer, data, global_batch=8, micro_batch=2, audit=None) as session:
    for step in session.steps(20):
        step.run(lambda batch: loss_of(model, batch))
print(words())
"""
LOSSES = """
import time
from importlib.resources import files
from .factors import FACTOR

def loss_of(model, batch):
    time.sleep(0.04)
    return (FACTOR * model(batch[0]).squeeze(-1) - batch[1]).square().mean()

def words():
    return FACTOR, files("mine").joinpath("words.txt").read_text()
"""


def package(folder: Path, factor: int) -> Path:
    mine = folder / "mine"
    mine.mkdir(exist_ok=True)
    (mine / "__init__.py").write_text("")
    (mine / "losses.py").write_text(LOSSES)
    (mine / "factors.py").write_text(f"FACTOR = {factor}\n")
    (mine / "words.txt").write_text(f"words {factor}")
    return mine


def test_members_import_what_was_there_at_the_submit(job: Submit, tmp_path: Path) -> None:
    """Relative imports, a data file, edits and a removal while the job runs, members that join later, and a rerun."""
    mine = package(tmp_path, 2)
    calm = job(CELL, nodes=1, include=(str(tmp_path),))
    calm.finish()
    run = job(CELL, include=(str(mine),))
    run.until_step(4)
    package(tmp_path, 3)
    run.kill(1)
    run.until_step(10)
    (mine / "factors.py").unlink()
    run.kill(0)
    run.finish()
    assert run.losses() == calm.losses() and run.view["digest"] == calm.view["digest"]
    assert run.text()[0] == "(2, 'words 2')\n"
    again = Run(run.store, lookup.submit_again(run.store, run.job_id))
    again.finish()
    assert again.view["digest"] == calm.view["digest"]


def test_processes_of_the_cell_import_them_too(job: Submit, tmp_path: Path) -> None:
    package(tmp_path, 5)
    source = "import subprocess, sys\n"
    source += (
        "print(subprocess.check_output([sys.executable, '-c', 'import mine.factors as f; print(f.FACTOR)'], text=True))"
    )
    run = job(source, nodes=1, include=(str(tmp_path),))
    run.finish()
    assert run.text()[0].strip() == "5"


def test_a_name_that_is_taken_is_said(job: Submit, tmp_path: Path) -> None:
    (tmp_path / "queue.py").write_text("x = 1\n")
    run = job("import queue\nprint(hasattr(queue, 'x'))", nodes=1, include=(str(tmp_path),))
    run.finish()
    assert "--include: queue: modules of these names are loaded already, and are used" in run.text("stderr")[0]


def test_the_command_line(tmp_path: Path) -> None:
    package(tmp_path, 1)
    cell = tmp_path / "cell.py"
    cell.write_text("import mine\n")

    def submit(folder: Path) -> subprocess.CompletedProcess[str]:
        words = ["submit", str(cell), "--include", str(folder), "--dry-run", "--store", str(tmp_path / "store")]
        command = [sys.executable, "-m", "jupyter_hyperpod", *words]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    done = submit(tmp_path / "mine")
    assert done.returncode == 0 and "package mine: 4 files" in done.stdout, done.stderr
    missing = submit(tmp_path / "missing")
    assert missing.returncode == 2 and "is missing; expected a folder" in missing.stderr
